"""The step machine on a clock of our own: every microsecond is where it belongs."""

import pytest

from traceml.model import record_layout
from traceml.model.record_layout import StepFlag
from traceml.steps import events, losses, step_machine
from traceml.steps.events import (
    BACKWARD,
    CHECKPOINT,
    CLOSURE,
    COMMUNICATION,
    EVENT,
    EVENT_WITH_FLOAT,
    FORWARD,
    H2D,
    INPUT,
    OPTIMIZER,
    graph_contents,
    optimizer_ended,
    step_ended,
)
from traceml.steps.graph_replays import GraphContents
from traceml.steps.step_machine import StepMachine

FIELDS = [name for name, _ in record_layout.STEP]
TRAINING, VALIDATION, UNLABELLED = 11, 22, 33
ADAM, OTHER = 101, 102


class Story:
    """A training loop told in words, each word taking as long as it says."""

    def __init__(self):
        self.now = 1_000
        self.records = []
        self.machine = StepMachine()
        self.ends = 0
        self.losses = 0

    def tell(self, kind, argument=0, flags=0, mark=0):
        machine = self.machine
        machine.event += 1
        machine.is_timed = flags & events.TIMED
        machine.handlers[kind](argument, self.now, mark, flags)
        self.records += [dict(zip(FIELDS, row, strict=True)) for row in machine.rows.done]
        machine.rows.done.clear()
        return self

    def await_loss(self):
        """Gradients are asked for of a loss whose value comes later; returns its number."""
        self.losses += 1
        self.tell(events.BEGIN_BACKWARD, self.losses, events.AWAITED_LOSS)
        return self.losses

    def see_loss(self, number, value):
        return self.tell(events.SEE_LOSS, bits(value), mark=number)

    def enter(self):
        return self.tell(events.ENTER_STEP)

    def exit(self, is_aborted=False):
        self.ends += 1
        return self.tell(events.EXIT_STEP, step_ended(self.ends, is_aborted))

    def takes(self, duration):
        self.now += duration
        return self

    def fetch(self, duration, source=TRAINING, samples=8):
        self.tell(events.BEGIN_FETCH, source)
        self.takes(duration)
        self.tell(events.END_FETCH, samples)
        return self

    def exhaust(self, duration, source=TRAINING):
        self.tell(events.BEGIN_FETCH, source)
        self.takes(duration)
        self.tell(events.END_EPOCH, source)
        return self

    def forward(self, duration, training=True, gradients=True):
        mode = training + 2 * gradients
        self.tell(events.BEGIN_FORWARD, mode).takes(duration)
        return self.tell(events.END_FORWARD, mode)

    def evaluate(self, duration):
        return self.forward(duration, training=False, gradients=False)

    def backward(self, duration):
        self.tell(events.BEGIN_BACKWARD)
        self.takes(duration)
        self.tell(events.END_BACKWARD)
        return self

    def optimizer(self, duration, identity=ADAM):
        self.tell(events.BEGIN_OPTIMIZER, identity)
        self.takes(duration)
        return self.end_optimizer(identity)

    def end_optimizer(self, identity=ADAM):
        self.ends += 1
        return self.tell(events.END_OPTIMIZER, optimizer_ended(self.ends, identity))

    def save(self, duration):
        self.tell(events.BEGIN, CHECKPOINT)
        self.takes(duration)
        self.tell(events.END, CHECKPOINT)
        return self

    def copy(self, duration):
        self.tell(events.BEGIN, H2D)
        self.takes(duration)
        self.tell(events.END, H2D)
        return self

    def step(self, fetch=10, source=TRAINING):
        return self.fetch(fetch, source).forward(20).backward(30).optimizer(5).takes(2)

    def step_without_fetch(self):
        return self.takes(3).forward(20).backward(30).optimizer(5)

    @property
    def complete(self):
        return [record for record in self.records if not record["flags"] & record_layout.NO_STEP]

    def finish(self):
        return self.tell(events.FINISH)


def bits(value):
    """A number as the argument of an event has it."""
    return EVENT.unpack(EVENT_WITH_FLOAT.pack(0, 0, 0, 0, value, 0))[4]


@pytest.fixture
def story():
    return Story()


def check_accounts(story, began=None):
    """The walls follow each other without a gap, and each is input + body + what lies between."""
    end = began
    for record in story.records:
        if end is not None:
            assert record["start_ns"] == end
        end = record["start_ns"] + record["wall_ns"]
        known = max(record["input_ns"], 0) + record["body_ns"]
        known += record["evaluation_ns"] + record["checkpoint_ns"]
        assert record["wall_ns"] >= known
        if not record["flags"] & StepFlag.EXPLICIT:
            assert record["wall_ns"] == known + after_evaluation_ns(record)
    return end


def after_evaluation_ns(record):
    """What is no step's and nothing that was measured: only after an evaluation there is such."""
    measured = ("input_ns", "body_ns", "evaluation_ns", "checkpoint_ns")
    left = record["wall_ns"] - sum(max(record[name], 0) for name in measured)
    return left if record["evaluation_ns"] else 0


def test_a_step_reaches_from_its_fetch_to_the_next(story):
    began = story.now
    story.step().step().step().exhaust(1)
    assert len(story.complete) == 3
    first = story.records[0]
    assert first["start_ns"] == began
    assert first["wall_ns"] == 67
    assert first["input_ns"] == 10
    assert first["body_ns"] == 57
    assert (first["forward_ns"], first["backward_ns"], first["optimizer_ns"]) == (20, 30, 5)
    assert first["samples"] == 8
    assert check_accounts(story, began) == story.now - 1


def test_without_a_fetch_a_step_ends_where_its_optimizer_does(story):
    for _ in range(4):
        story.step_without_fetch()
    story.takes(50).finish()
    assert [record["wall_ns"] for record in story.complete] == [55, 58, 58, 58]
    assert all(record["input_ns"] == record_layout.NOT_MEASURED for record in story.records)
    assert story.records[-1]["flags"] & StepFlag.TAIL
    assert story.records[-1]["wall_ns"] == 50
    check_accounts(story)


def test_after_two_steps_without_fetches_each_is_written_as_its_optimizer_ends(story):
    story.step_without_fetch().step_without_fetch()
    assert len(story.complete) == 2
    story.step_without_fetch()
    assert len(story.complete) == 3


def test_accumulated_gradients_are_one_step(story):
    for _ in range(3):
        for _ in range(4):
            story.fetch(10).forward(20).backward(30)
        story.optimizer(5)
    story.exhaust(1)
    assert len(story.complete) == 3
    record = story.complete[1]
    assert record["micro_batches"] == 4
    assert record["input_ns"] == 40
    assert record["backward_ns"] == 120
    assert record["samples"] == 32
    check_accounts(story)


def test_a_pass_inside_another_is_of_its_micro_batch(story):
    for _ in range(3):
        story.fetch(10).forward(20).tell(events.BEGIN_BACKWARD).takes(5)
        story.backward(10).backward(10).tell(events.END_BACKWARD).optimizer(5)
    story.fetch(10)
    assert [step["micro_batches"] for step in story.complete] == [1, 1, 1]


def test_gradients_that_grad_is_asked_for_are_no_micro_batchs(story):
    for _ in range(3):
        story.takes(3).forward(20).tell(events.BEGIN_BACKWARD, 0, events.ASKED_BY_GRAD).takes(10)
        story.tell(events.END_BACKWARD).backward(30).optimizer(5)
    story.finish()
    assert [step["micro_batches"] for step in story.complete] == [1, 1, 1]


def call_closure(story, passes):
    story.tell(events.BEGIN, CLOSURE).takes(1)
    for _ in range(passes):
        story.forward(20).backward(30)
    story.tell(events.END, CLOSURE).takes(4)


@pytest.mark.parametrize("outside", [0, 3], ids=["all inside", "some before"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_closure_that_is_called_again_has_no_further_micro_batches(story, outside, passes):
    for _ in range(3):
        for _ in range(outside):
            story.forward(20).backward(30)
        story.tell(events.BEGIN_OPTIMIZER, ADAM).takes(2)
        for _ in range(4):
            call_closure(story, passes)
        story.end_optimizer()
    story.finish()
    assert [step["micro_batches"] for step in story.complete] == [outside + passes] * 3


def test_passes_that_an_optimizer_makes_itself_are_of_one_micro_batch(story):
    for _ in range(3):
        story.takes(3).forward(20).tell(events.BEGIN_OPTIMIZER, ADAM)
        story.backward(30).backward(30).end_optimizer()
    story.finish()
    assert [step["micro_batches"] for step in story.complete] == [1, 1, 1]


def test_two_optimizers_on_one_batch_are_one_step(story):
    for _ in range(3):
        story.fetch(10).forward(20).backward(30).optimizer(5, ADAM)
        story.forward(7).backward(9).optimizer(4, OTHER)
    story.exhaust(1)
    assert len(story.complete) == 3
    assert story.complete[0]["optimizer_steps"] == 2
    assert story.complete[0]["optimizer_ns"] == 9


def test_two_optimizers_without_fetches_are_one_step(story):
    for _ in range(5):
        story.forward(20).backward(30).optimizer(5, ADAM).forward(7).backward(9).optimizer(4, OTHER)
    story.finish()
    assert len(story.complete) == 5
    assert {record["optimizer_steps"] for record in story.complete} == {2}
    check_accounts(story)


def test_an_optimizer_that_steps_now_and_then_adds_no_step(story):
    for index in range(6):
        story.step_without_fetch()
        if index % 2:
            story.backward(9).optimizer(4, OTHER)
    story.finish()
    assert len(story.complete) == 6


def test_several_steps_on_one_batch_are_several_steps(story):
    for _ in range(2):
        story.fetch(10)
        for _ in range(3):
            story.forward(20).backward(30).optimizer(5)
    story.exhaust(1)
    assert len(story.complete) == 6
    check_accounts(story)


def test_a_closure_inside_the_optimizer_is_charged_once(story):
    for _ in range(2):
        story.tell(events.BEGIN_OPTIMIZER, ADAM)
        for _ in range(3):
            story.takes(1).forward(20).backward(30)
        story.takes(4)
        story.end_optimizer()
    story.finish()
    record = story.complete[-1]
    assert record["forward_ns"] == 60
    assert record["backward_ns"] == 90
    assert record["optimizer_ns"] == 7
    assert record["optimizer_steps"] == 1


def closure(story, outside):
    """A call of the closure, with so much time outside its forward and backward passes."""
    story.tell(events.BEGIN, CLOSURE).takes(outside).forward(20).backward(30)
    return story.tell(events.END, CLOSURE)


def test_what_a_closure_spends_outside_its_phases_is_rest_and_not_the_optimizers(story):
    for _ in range(2):
        story.tell(events.BEGIN_OPTIMIZER, ADAM).takes(1)
        for _ in range(3):
            closure(story, 100).takes(2)
        story.end_optimizer()
    story.finish()
    check_accounts(story)
    record = story.complete[-1]
    assert record["optimizer_ns"] == 7
    assert (record["forward_ns"], record["backward_ns"]) == (60, 90)
    assert record["body_ns"] == 60 + 90 + 7 + 300


def test_a_closure_inside_another_is_charged_once(story):
    for _ in range(2):
        story.tell(events.BEGIN_OPTIMIZER, ADAM).takes(1).tell(events.BEGIN, CLOSURE).takes(5)
        closure(story, 100).takes(5).tell(events.END, CLOSURE).takes(1)
        story.end_optimizer()
    story.finish()
    assert story.complete[-1]["optimizer_ns"] == 2
    assert story.complete[-1]["body_ns"] == 2 + 10 + 100 + 50


def test_batches_that_a_closure_fetches_belong_to_its_step(story):
    for _ in range(3):
        story.tell(events.BEGIN_OPTIMIZER, ADAM).tell(events.BEGIN, CLOSURE)
        for _ in range(2):
            story.fetch(10).forward(20).backward(30)
        story.exhaust(1).tell(events.END, CLOSURE).takes(4)
        story.end_optimizer()
    story.finish()
    check_accounts(story)
    assert [record["input_ns"] for record in story.complete] == [21] * 3
    assert [record["optimizer_ns"] for record in story.complete] == [4] * 3
    assert not any(record["flags"] & StepFlag.ABORTED for record in story.records)


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "its end was cut off"])
def test_a_closure_that_raises_leaves_its_optimizers_step(story, is_told):
    story.step().step().fetch(10)
    story.tell(events.BEGIN_OPTIMIZER, ADAM).tell(events.BEGIN, CLOSURE).takes(50)
    if is_told:
        story.tell(events.ABORT, CLOSURE)
    story.step().step().exhaust(1).finish()
    check_accounts(story)
    assert len(story.complete) == 4
    aborted = [record for record in story.records if record["flags"] & StepFlag.ABORTED]
    assert len(aborted) == is_told  # else it is told as a part of the next step


def test_a_copy_inside_forward_is_charged_to_the_copy(story):
    story.fetch(10)
    story.tell(events.BEGIN_FORWARD, 3)
    story.takes(5).copy(7).takes(5)
    story.tell(events.END_FORWARD, 3)
    story.backward(30).optimizer(5).exhaust(1)
    assert story.records[0]["h2d_ns"] == 7
    assert story.records[0]["forward_ns"] == 10


def test_evaluation_after_an_epoch_is_between_steps(story):
    story.step().step().exhaust(1)
    story.takes(2)
    for _ in range(3):
        story.fetch(100, VALIDATION).evaluate(50).takes(5)
    story.exhaust(1, VALIDATION).takes(9)
    story.step().exhaust(1)
    assert len(story.complete) == 3
    after = story.complete[2]
    assert after["evaluation_ns"] == 3 * 155 + 1
    assert after_evaluation_ns(after) == 9
    assert after["input_ns"] == 1 + 10
    assert after["forward_ns"] == 20
    assert after["samples"] == 8
    check_accounts(story)


def evaluated(story, batches=3):
    for _ in range(batches):
        story.fetch(100, VALIDATION).evaluate(50).takes(5)
    return story


EVALUATED = 3 * 155


def break_off(story):
    """The loop over the validation data ends before it does, in its last forward pass."""
    for _ in range(3):
        story.takes(5).fetch(100, VALIDATION).evaluate(50)


def exhaust(story):
    evaluated(story).exhaust(0, VALIDATION)


def fetch_ahead(story):
    """Accelerate asks for the batch after the one that it gives out."""
    story.fetch(100, VALIDATION)
    for _ in range(2):
        story.fetch(100, VALIDATION).takes(5).evaluate(50)
    story.exhaust(0, VALIDATION).takes(5).evaluate(50)


@pytest.mark.parametrize("loop", [break_off, exhaust, fetch_ahead])
@pytest.mark.parametrize("is_last", [False, True], ids=["training goes on", "the process ends"])
def test_what_follows_an_evaluation_is_neither_its_own_nor_a_steps(story, loop, is_last):
    story.step()
    exhaust(story.step())
    story.step().exhaust(1)
    loop(story)
    story.takes(3_000)
    if not is_last:
        story.step().exhaust(1)
    story.finish()
    check_accounts(story)
    ended = story.records[-1] if is_last else story.complete[-1]
    before = 5 if loop is break_off else 0  # it comes before the first fetch
    assert ended["evaluation_ns"] == EVALUATED - before
    assert after_evaluation_ns(ended) == 3_000
    assert max(record["body_ns"] for record in story.complete) < 100


def test_a_region_that_is_named_as_an_evaluation_says_where_that_ends(story):
    exhaust(story.step().step())
    story.takes(400).tell(events.LEAVE_EVALUATION).takes(70)
    story.step().tell(events.LEAVE_EVALUATION).takes(6).exhaust(1).finish()
    check_accounts(story)
    record = story.complete[-1]
    assert record["evaluation_ns"] == EVALUATED + 400
    assert after_evaluation_ns(record) == 70
    assert sum(each["evaluation_ns"] for each in story.records) == EVALUATED + 400


def test_a_checkpoint_after_an_evaluation_is_none_of_its_time(story):
    exhaust(story.step().step())
    story.takes(3).save(500).takes(4)
    story.step().exhaust(1)
    check_accounts(story)
    record = story.complete[-1]
    assert (record["evaluation_ns"], record["checkpoint_ns"]) == (EVALUATED, 500)
    assert after_evaluation_ns(record) == 7


def test_two_evaluations_in_a_row_have_a_gap_that_is_nobodys(story):
    exhaust(story.step().step())
    exhaust(story.takes(1_000))
    story.takes(200).step().exhaust(1)
    check_accounts(story)
    record = story.complete[-1]
    assert record["evaluation_ns"] == 2 * EVALUATED
    assert after_evaluation_ns(record) == 1_200


def test_waiting_for_the_device_after_an_evaluation_is_waiting_for_its_work(story):
    exhaust(story.step().step())
    story.takes(400).tell(events.SPEND_WAITING, 300).takes(9)
    story.step().exhaust(1)
    check_accounts(story)
    record = story.complete[-1]
    assert record["evaluation_ns"] == EVALUATED + 300
    assert after_evaluation_ns(record) == 109


def test_evaluation_in_the_middle_of_an_epoch_is_between_steps(story):
    story.step().step()
    story.fetch(100, VALIDATION).evaluate(50).exhaust(1, VALIDATION)
    story.step().exhaust(1)
    assert [record["input_ns"] for record in story.complete] == [10, 10, 10]
    assert story.complete[2]["evaluation_ns"] == 151


def test_evaluation_by_another_model_is_known_by_its_loader(story):
    """The averaged copy of a model is not the one we time: its batches alone give it away."""
    story.step().exhaust(1)
    for _ in range(3):
        story.fetch(100, VALIDATION).takes(50)
    story.exhaust(1, VALIDATION)
    story.step().exhaust(1)
    assert story.complete[1]["input_ns"] == 1 + 10
    assert story.complete[1]["evaluation_ns"] == 451


def test_evaluation_before_training_belongs_to_nothing(story):
    for _ in range(3):
        story.fetch(100, VALIDATION).evaluate(50)
    story.exhaust(1, VALIDATION)
    began = story.now
    story.step().exhaust(1)
    assert story.records[0]["start_ns"] == began
    assert story.records[0]["input_ns"] == 10


def test_evaluation_without_a_loader_is_between_steps(story):
    for _ in range(3):
        story.step_without_fetch()
    for _ in range(4):
        story.takes(6).evaluate(50)
    story.step_without_fetch().finish()
    record = story.complete[3]
    assert record["evaluation_ns"] == 50 + 3 * 56
    assert record["forward_ns"] == 20
    check_accounts(story)


def test_evaluation_with_a_loader_in_a_loop_without_one(story):
    for _ in range(3):
        story.step_without_fetch()
    story.fetch(100, VALIDATION).evaluate(50).exhaust(1, VALIDATION).takes(9)
    story.forward(20).backward(30).optimizer(5).finish()
    record = story.complete[3]
    assert record["evaluation_ns"] == 151
    assert after_evaluation_ns(record) == 9
    assert record["forward_ns"] == 20
    check_accounts(story)


def test_evaluation_on_the_training_data_is_between_steps(story):
    story.step().step().exhaust(1)
    for _ in range(2):
        story.fetch(10).evaluate(50)
    story.exhaust(1)
    story.step().exhaust(1)
    assert len(story.complete) == 3
    assert story.complete[2]["evaluation_ns"] == 120
    assert story.complete[2]["forward_ns"] == 20


def test_evaluation_that_keeps_gradients_is_between_steps(story):
    """A model in evaluation mode whose script forgot `no_grad`: no backward pass comes for it."""
    for _ in range(3):
        story.step_without_fetch()
    for _ in range(4):
        story.takes(6).forward(50, training=False)
    story.step_without_fetch().finish()
    record = story.complete[3]
    assert record["evaluation_ns"] == 50 + 3 * 56
    assert record["forward_ns"] == 20
    check_accounts(story)


def test_evaluation_that_keeps_gradients_at_the_end_of_a_batch_is_no_forward_of_the_step(story):
    for _ in range(3):
        story.step().takes(4).forward(50, training=False)
    story.exhaust(1)
    assert [record["evaluation_ns"] for record in story.complete] == [50, 50, 50]
    assert [record["forward_ns"] for record in story.complete] == [20, 20, 20]
    check_accounts(story)


@pytest.mark.parametrize("fetches", [True, False])
def test_a_model_that_trains_in_evaluation_mode_is_not_evaluated(story, fetches):
    """With frozen statistics of its normalisation; also twice before one backward pass."""
    for _ in range(4):
        if fetches:
            story.fetch(10)
        story.forward(20, training=False).forward(15, training=False).backward(30).optimizer(5)
    story.exhaust(1) if fetches else story.finish()
    assert [record["evaluation_ns"] for record in story.complete] == [0] * 4
    assert [record["forward_ns"] for record in story.complete] == [35] * 4
    check_accounts(story)


@pytest.mark.parametrize("keeping", [(True, False), (False, True), (False, True, False)])
@pytest.mark.parametrize("trains", [False, True])
def test_passes_with_and_without_gradients_are_told_apart_in_their_order(story, keeping, trains):
    """In evaluation mode: those that a backward pass comes for are none of an evaluation."""
    for _ in range(3):
        story.step_without_fetch()
    for keeps_gradients in keeping:
        story.takes(6).forward(50, training=False, gradients=keeps_gradients)
    if not trains:
        story.takes(3).forward(20)
    story.backward(30).optimizer(5).finish()
    record = story.complete[3]
    forwards = 50 * sum(keeping) if trains else 20
    assert record["forward_ns"] == forwards
    evaluated = keeping.count(False) if trains else len(keeping)
    # The time between two passes of one evaluation is a part of it.
    gaps = 0 if trains else len(keeping) - 1
    assert record["evaluation_ns"] == 50 * evaluated + 6 * gaps
    check_accounts(story)


@pytest.mark.parametrize("fetches", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_evaluation_that_keeps_gradients_is_no_forward_of_explicit_steps(story, fetches, inside):
    for _ in range(3):
        if fetches:
            story.fetch(10)
        story.enter()
        story.forward(20).backward(30).optimizer(5)
        if inside:
            story.forward(50, training=False)
        story.exit()
        if not inside:
            story.takes(2).forward(50, training=False)
    story.finish()
    assert [record["forward_ns"] for record in story.complete] == [20, 20, 20]
    evaluated = [50, 50, 50] if inside else [0, 50, 50]
    assert [record["evaluation_ns"] for record in story.complete] == evaluated
    assert [record["body_ns"] for record in story.complete] == [55, 55, 55]
    check_accounts(story)


def test_explicit_steps_that_only_call_a_model_in_evaluation_mode_are_its_forward(story):
    for _ in range(3):
        story.enter()
        story.forward(50, training=False)
        story.exit()
    assert [record["forward_ns"] for record in story.complete] == [50, 50, 50]


def test_a_pass_between_backward_and_the_optimizer_stays_the_steps_own(story):
    for _ in range(3):
        story.forward(20).backward(30).forward(7, training=False).optimizer(5)
    story.finish()
    assert [record["evaluation_ns"] for record in story.complete] == [0, 0, 0]
    assert [record["forward_ns"] for record in story.complete] == [27, 27, 27]
    check_accounts(story)


def test_passes_of_a_process_that_never_trains_are_not_kept(story):
    for _ in range(3 * step_machine.MAX_UNDECIDED):
        story.forward(1, training=False)
    assert len(story.machine.step.undecided) == step_machine.MAX_UNDECIDED


def test_forward_without_gradients_inside_a_step_is_the_steps_own(story):
    """A policy that acts before it learns, a teacher that is the student: not evaluation."""
    for _ in range(3):
        story.forward(7, training=True, gradients=False).forward(20).backward(30).optimizer(5)
    story.finish()
    assert [record["evaluation_ns"] for record in story.complete] == [0, 0, 0]
    assert story.complete[2]["forward_ns"] == 27


def test_a_checkpoint_is_between_steps(story):
    story.step().save(500).step().save(500).exhaust(1)
    assert [record["checkpoint_ns"] for record in story.complete] == [500, 500]
    assert story.complete[0]["body_ns"] == 57
    check_accounts(story)


def test_a_checkpoint_during_evaluation_stays_a_checkpoint(story):
    story.step().exhaust(1).fetch(100, VALIDATION).evaluate(50).save(500)
    story.exhaust(1, VALIDATION).step().exhaust(1)
    assert story.complete[1]["checkpoint_ns"] == 500
    assert story.complete[1]["evaluation_ns"] == 151


def test_two_loaders_per_step_are_both_input(story):
    for _ in range(3):
        story.fetch(10).fetch(15, UNLABELLED).forward(20).backward(30).optimizer(5)
    story.exhaust(1)
    assert len(story.complete) == 3
    assert story.complete[1]["input_ns"] == 25
    assert story.complete[1]["evaluation_ns"] == 0


def test_a_batch_that_is_skipped_stays_with_training(story):
    story.step().fetch(10).forward(20).fetch(10).forward(20).backward(30).optimizer(5).exhaust(1)
    assert len(story.complete) == 2
    assert story.complete[1]["input_ns"] == 20
    assert story.complete[1]["evaluation_ns"] == 0


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD], ids=["in forward", "in backward"])
def test_an_aborted_step_is_recorded_and_not_counted(story, phase):
    story.step().fetch(10)
    story.tell(events.BEGIN_FORWARD, 3)
    story.takes(4)
    if phase == BACKWARD:
        story.tell(events.END_FORWARD, 3)
        story.tell(events.BEGIN_BACKWARD)
        story.takes(4)
    story.tell(events.ABORT, phase)
    story.step().exhaust(1)
    assert len(story.complete) == 2
    assert [bool(record["flags"] & StepFlag.ABORTED) for record in story.records] == [
        False,
        True,
        False,
    ]
    check_accounts(story)


def test_an_optimizer_step_that_raises_aborts_the_step(story):
    story.step().fetch(10).forward(20).backward(30)
    story.tell(events.BEGIN_OPTIMIZER, ADAM)
    story.takes(3)  # … and raises: torch calls no hook
    story.step().exhaust(1)
    assert len(story.complete) == 2
    assert story.records[1]["flags"] & StepFlag.ABORTED


def test_updates_by_hand_are_marked_by_backward_and_fetch(story):
    story.tell(events.MARK_BY_BACKWARD, 1)
    for _ in range(3):
        story.fetch(10).takes(20).backward(30).takes(4)
    story.exhaust(1)
    assert len(story.complete) == 3
    assert story.complete[1]["optimizer_ns"] == record_layout.NOT_MEASURED
    check_accounts(story)


def test_updates_by_hand_without_fetches_are_marked_by_backward(story):
    story.tell(events.MARK_BY_BACKWARD, 1)
    for _ in range(4):
        story.takes(20).backward(30).takes(4)
    story.finish()
    assert len(story.complete) == 4
    check_accounts(story)


def test_an_explicit_step_is_what_the_user_says(story):
    for _ in range(3):
        story.fetch(10)
        story.enter()
        story.takes(1).forward(20).backward(30).optimizer(5)
        story.exit()
        story.takes(40)
    assert len(story.complete) == 3
    record = story.complete[1]
    assert record["flags"] == StepFlag.EXPLICIT
    assert record["body_ns"] == 56
    assert record["input_ns"] == 10
    assert record["wall_ns"] == 106
    check_accounts(story)


def test_explicit_steps_win_over_optimizer_steps(story):
    """Two optimizer steps inside one explicit step are one step."""
    for _ in range(3):
        story.enter()
        story.fetch(10).forward(20).backward(30).optimizer(5).backward(30).optimizer(5)
        story.exit()
    assert len(story.complete) == 3
    assert story.complete[1]["input_ns"] == 10
    assert story.complete[1]["body_ns"] == 90
    assert story.complete[1]["optimizer_steps"] == 2


def test_an_exception_leaves_an_explicit_step_aborted(story):
    story.enter()
    story.takes(5)
    story.exit(is_aborted=True)
    assert story.complete == []
    assert story.records[0]["flags"] == StepFlag.EXPLICIT | StepFlag.ABORTED


def test_nested_explicit_steps_are_the_outer_one(story):
    story.enter()
    story.enter()
    story.takes(5)
    story.exit()
    story.takes(5)
    story.exit()
    assert [record["body_ns"] for record in story.complete] == [10]


def test_evaluation_between_explicit_steps_is_told_apart(story):
    for _ in range(2):
        story.fetch(10)
        story.enter()
        story.forward(20).backward(30).optimizer(5)
        story.exit()
        for _ in range(2):
            story.fetch(100, VALIDATION).evaluate(50)
        story.exhaust(1, VALIDATION)
    assert story.complete[1]["evaluation_ns"] == 301
    assert story.complete[1]["input_ns"] == 10


def test_optimizers_that_step_inside_backward_are_one_step(story):
    for _ in range(3):
        story.fetch(10).forward(20)
        story.tell(events.BEGIN_BACKWARD)
        for parameter in range(4):
            story.takes(5).optimizer(2, 200 + parameter)
        story.tell(events.END_BACKWARD)
    story.exhaust(1)
    assert len(story.complete) == 3
    assert story.complete[1]["backward_ns"] == 20
    assert story.complete[1]["optimizer_ns"] == 8


def test_a_model_that_moves_before_training_begins_starts_no_step(story):
    story.copy(1_000).save(500).takes(100)
    began = story.now
    story.step().exhaust(1)
    assert story.records[0]["start_ns"] == began
    assert story.records[0]["h2d_ns"] == record_layout.NOT_MEASURED


def test_the_time_after_the_last_step_is_kept_as_the_tail(story):
    story.step().step().takes(7)
    story.finish()
    assert len(story.complete) == 2
    tail = story.records[-1]
    assert tail["flags"] & StepFlag.TAIL
    assert check_accounts(story) == story.now


def test_nothing_is_written_for_a_process_that_never_steps(story):
    story.fetch(10, VALIDATION).evaluate(5).fetch(10, VALIDATION).evaluate(5).finish()
    assert story.records == []


def test_phases_are_named_in_the_order_of_their_places():
    assert [INPUT, H2D, FORWARD, BACKWARD, OPTIMIZER] == [0, 1, 2, 3, 4]


def wait_in_backward(story, local, waited):
    """A backward pass that has its own gradients after a while and then waits for the others'."""
    story.tell(events.BEGIN_BACKWARD).takes(local)
    story.tell(events.HAVE_LOCAL_GRADIENTS).takes(waited)
    return story.tell(events.END_BACKWARD)


def test_backward_after_the_last_local_gradient_is_communication(story):
    story.fetch(10).forward(20)
    wait_in_backward(story, 30, 500).optimizer(5).fetch(10)
    (step,) = story.complete
    assert (step["backward_ns"], step["communication_ns"]) == (30, 500)


def test_of_several_moments_the_last_counts(story):
    story.fetch(10).forward(20).tell(events.BEGIN_BACKWARD).takes(30)
    story.tell(events.HAVE_LOCAL_GRADIENTS).takes(40)
    story.tell(events.HAVE_LOCAL_GRADIENTS).takes(50)
    story.tell(events.END_BACKWARD).optimizer(5).fetch(10)
    (step,) = story.complete
    assert (step["backward_ns"], step["communication_ns"]) == (70, 50)


def test_a_collective_while_backward_waits_is_charged_once(story):
    story.fetch(10).forward(20).tell(events.BEGIN_BACKWARD).takes(30)
    story.tell(events.HAVE_LOCAL_GRADIENTS).takes(40)
    story.tell(events.BEGIN, COMMUNICATION).takes(7).tell(events.END, COMMUNICATION)
    story.tell(events.END_BACKWARD).optimizer(5).fetch(10)
    (step,) = story.complete
    assert (step["backward_ns"], step["communication_ns"]) == (30, 47)


def test_a_pass_inside_another_leaves_it_its_moment(story):
    story.fetch(10).forward(20).tell(events.BEGIN_BACKWARD).takes(30)
    story.tell(events.HAVE_LOCAL_GRADIENTS).takes(40)
    story.backward(100).tell(events.END_BACKWARD).optimizer(5).fetch(10)
    (step,) = story.complete
    assert (step["backward_ns"], step["communication_ns"]) == (130, 40)


def test_the_moment_of_a_pass_that_failed_is_not_the_next_ones(story):
    story.step()
    story.fetch(10).forward(20).tell(events.BEGIN_BACKWARD).takes(30)
    story.tell(events.HAVE_LOCAL_GRADIENTS).takes(40)
    story.tell(events.ABORT, BACKWARD)
    story.step()
    story.fetch(10)
    assert story.complete[-1]["communication_ns"] in (-1, 0)


# Losses


def losses_of(story):
    """The record that each loss stands in, the record that it belongs to, and its value."""
    return [
        (place, place - record["loss_lag"], record["loss"])
        for place, record in enumerate(story.records)
        if record["flags"] & StepFlag.LOSS_SEEN
    ]


def fetched_backward(story, loss=None):
    """A step's batch and passes; without a loss it is on the device. Returns that one's number."""
    story.fetch(10).forward(20)
    if loss is None:
        number = story.await_loss()
    else:
        number = None
        story.tell(events.BEGIN_BACKWARD, bits(loss), events.KNOWN_LOSS)
    story.takes(30).tell(events.END_BACKWARD)
    return number


def test_a_loss_that_comes_late_belongs_to_the_step_of_its_backward_pass(story):
    story.step().step()
    awaited = fetched_backward(story)
    story.optimizer(5).step().step().fetch(10).see_loss(awaited, 0.5)
    story.forward(20).backward(30).optimizer(5).step().finish()
    assert losses_of(story) == [(5, 2, 0.5)]
    assert story.machine.losses.milestones == [losses.Milestone(3, 0.5)]


def test_the_first_loss_and_the_first_that_is_lost_are_milestones(story):
    for value in (2.0, 1.0, float("inf"), 0.5, float("inf")):
        fetched_backward(story, value)
        story.optimizer(5)
    story.finish()
    assert story.machine.losses.milestones == [
        losses.Milestone(1, 2.0),
        losses.Milestone(3, float("inf"), 2, 1.0),
    ]


def test_the_last_loss_is_kept_in_the_record_after_the_last_step(story):
    story.step()
    awaited = fetched_backward(story)
    story.optimizer(5).exhaust(1)
    story.see_loss(awaited, 0.5).finish()
    assert losses_of(story) == [(2, 1, 0.5)]
    assert story.records[-1]["flags"] & StepFlag.TAIL


def test_of_two_losses_that_come_at_once_one_that_is_lost_is_kept(story):
    lost = fetched_backward(story)
    story.optimizer(5)
    last = fetched_backward(story)
    story.optimizer(5).exhaust(1)
    story.see_loss(lost, float("inf")).see_loss(last, 1.0).finish()
    assert losses_of(story) == [(2, 0, float("inf"))]


def test_a_loss_that_comes_too_late_for_its_number_is_left_out(story, monkeypatch):
    monkeypatch.setattr(losses, "MAX_LOSS_LAG", 1)
    awaited = fetched_backward(story)
    story.optimizer(5).step().step().see_loss(awaited, 1.0).step().finish()
    assert losses_of(story) == []


def test_a_loss_that_waits_for_its_record_makes_room_for_the_records_own(story):
    awaited = fetched_backward(story)
    story.optimizer(5)
    fetched_backward(story, 2.0)
    story.see_loss(awaited, 1.0).optimizer(5)
    story.step().finish()
    assert losses_of(story) == [(1, 1, 2.0), (2, 0, 1.0)]


@pytest.mark.parametrize("comes", ["before the optimizer", "after it", "steps later"])
def test_without_fetches_a_loss_from_the_device_belongs_to_its_own_step(comes):
    """The first step is known to have ended only when its optimizer steps again."""
    story = Story()
    for value in (1.0, 2.0, float("inf")):
        story.forward(20)
        number = story.await_loss()
        story.takes(30).tell(events.END_BACKWARD)
        if comes == "before the optimizer":
            story.see_loss(number, value)
        story.optimizer(5)
        if comes == "after it":
            story.see_loss(number, value)
        elif comes == "steps later" and value == 2.0:
            second = number
    if comes == "steps later":
        story.see_loss(second, 2.0)
        story.forward(20).backward(30).optimizer(5)
    story.finish()
    owners = {value: owner for _, owner, value in losses_of(story)}
    expected = {1.0: 0, 2.0: 1, float("inf"): 2}
    assert 2.0 in owners and owners == {value: expected[value] for value in owners}
    milestones = {each.value: each.step for each in story.machine.losses.milestones}
    assert milestones == {value: expected[value] + 1 for value in milestones}


def test_a_loss_after_an_optimizer_that_is_not_the_last_belongs_to_the_same_step(story):
    """As in a GAN: two optimizers step, each after a backward pass of its own."""
    story.fetch(10).forward(20).backward(30).optimizer(5)
    number = story.await_loss()
    story.takes(30).tell(events.END_BACKWARD).see_loss(number, 2.0)
    story.optimizer(5, OTHER).step().finish()
    assert [(owner, value) for _, owner, value in losses_of(story)] == [(0, 2.0)]


def waited(record):
    return record["syncs"]


def test_waits_for_the_device_are_counted_step_by_step():
    story = Story()
    for waits in (0, 3, 70_000):
        story.fetch(10).forward(20).backward(30)
        for _ in range(waits):
            story.takes(1).tell(events.SPEND_WAITING, 1)
        story.optimizer(5)
    story.fetch(10)
    assert [record["sync_ns"] for record in story.records] == [0, 3, 70_000]
    assert [waited(record) for record in story.records] == [0, 3, record_layout.MAX_SYNCS]


def test_waits_of_an_evaluation_are_no_steps():
    story = Story()
    for _ in range(2):
        story.fetch(10).forward(20).backward(30).optimizer(5)
        story.fetch(10, VALIDATION).evaluate(20)
        story.tell(events.SPEND_WAITING, 1)
    story.fetch(10).forward(20).backward(30).optimizer(5).fetch(10)
    assert [waited(record) for record in story.records] == [0, 0, 0]


# CUDA graphs: one launch, compute that cannot be told apart


def whole_graph():
    return GraphContents(backwards=1, optimizers={ADAM}, optimizer_steps=1)


def graph(story, held):
    """Tell what a graph holds; returns its number."""
    number = len(story.machine.graphs.graphs) + 1
    contents = graph_contents(held.backwards, held.optimizer_steps)
    story.tell(events.HOLD_IN_GRAPH, contents, mark=number)
    for optimizer in held.optimizers:
        story.tell(events.HOLD_OPTIMIZER, optimizer, mark=number)
    return number


def replay(story, held, duration):
    number = graph(story, held)
    story.tell(events.BEGIN_REPLAY, number).takes(duration)
    return story.tell(events.END_REPLAY, optimizer_ended(0, number))


def test_every_replay_of_a_graph_that_holds_the_optimizer_is_a_step(story):
    for _ in range(3):
        story.step_without_fetch()
    for _ in range(5):
        replay(story.takes(3), whole_graph(), 50)
    story.finish()
    check_accounts(story)
    replayed = story.complete[3:]
    assert [record["graph_ns"] for record in replayed] == [50] * 5
    assert [record["optimizer_steps"] for record in replayed] == [1] * 5
    assert [record["micro_batches"] for record in replayed] == [1] * 5
    for name in ("forward_ns", "backward_ns", "optimizer_ns"):
        assert [record[name] for record in replayed] == [record_layout.NOT_MEASURED] * 5
    assert [record["body_ns"] for record in replayed[1:]] == [53] * 4


def test_a_replayed_step_reaches_from_its_fetch_to_the_next(story):
    for _ in range(4):
        replay(story.fetch(10).copy(2), whole_graph(), 50).takes(1)
    story.exhaust(1).finish()
    check_accounts(story)
    assert [record["body_ns"] for record in story.complete] == [53] * 4
    assert [record["graph_ns"] for record in story.complete] == [50] * 4


def test_a_graph_of_forward_and_backward_is_part_of_its_optimizers_step(story):
    held = GraphContents(backwards=1)
    for _ in range(4):
        replay(story.fetch(10), held, 40).optimizer(5)
    story.exhaust(1).finish()
    check_accounts(story)
    assert len(story.complete) == 4
    assert [(r["graph_ns"], r["optimizer_ns"]) for r in story.complete] == [(40, 5)] * 4
    assert {record["forward_ns"] for record in story.complete} == {record_layout.NOT_MEASURED}


def test_a_graph_of_the_optimizer_alone_is_the_optimizer(story):
    held = GraphContents(optimizers={ADAM}, optimizer_steps=1)
    for _ in range(4):
        replay(story.fetch(10).forward(20).backward(30), held, 5)
    story.exhaust(1).finish()
    assert [record["optimizer_ns"] for record in story.complete] == [5] * 4
    assert {record["graph_ns"] for record in story.complete} == {record_layout.NOT_MEASURED}


def test_two_graphs_with_an_optimizer_each_are_one_step(story):
    first = GraphContents(backwards=1, optimizers={ADAM}, optimizer_steps=1)
    second = GraphContents(backwards=1, optimizers={OTHER}, optimizer_steps=1)
    for _ in range(4):
        replay(replay(story.takes(1), first, 20), second, 30)
    story.finish()
    check_accounts(story)
    assert [record["optimizer_steps"] for record in story.complete] == [2] * 4


def test_a_graph_inside_a_phase_stays_in_it(story):
    held = GraphContents(backwards=1)
    for _ in range(3):
        story.fetch(10).forward(20)
        story.tell(events.BEGIN_BACKWARD)
        replay(story, held, 30)
        story.tell(events.END_BACKWARD).optimizer(5)
    story.exhaust(1).finish()
    assert [record["backward_ns"] for record in story.complete] == [30] * 3
    assert [record["micro_batches"] for record in story.complete] == [1] * 3
    assert {record["graph_ns"] for record in story.complete} == {record_layout.NOT_MEASURED}


def test_a_replay_that_fails_is_no_step(story):
    replay(story.fetch(10), whole_graph(), 50)
    failing = graph(story, whole_graph())
    story.fetch(10).tell(events.BEGIN_REPLAY, failing).takes(7)
    story.tell(events.ABORT_REPLAY, failing)
    replay(story.fetch(10), whole_graph(), 50)
    story.exhaust(1).finish()
    check_accounts(story)
    assert len(story.complete) == 2


# Optimizers that no hook sees


def change_parameters(story):
    story.tell(events.CHANGED_OPTIMIZER, 7)
    return story.tell(events.CHANGE_PARAMETERS, optimizer_ended(0, 1))


def test_parameters_that_change_are_a_step(story):
    for _ in range(4):
        change_parameters(story.takes(3).forward(20).backward(30).takes(5))
    story.finish()
    check_accounts(story)
    assert [record["body_ns"] for record in story.complete] == [55, 58, 58, 58]
    assert {record["optimizer_ns"] for record in story.complete} == {record_layout.NOT_MEASURED}


def test_micro_batches_before_a_change_are_one_step(story):
    for _ in range(3):
        for _ in range(2):
            story.fetch(10).forward(20).backward(30)
        change_parameters(story.takes(5))
    story.exhaust(1).finish()
    check_accounts(story)
    assert [record["micro_batches"] for record in story.complete] == [2] * 3


# Samples


def test_a_step_without_a_fetch_in_a_script_that_fetches_has_no_samples(story):
    """A loader that looks ahead fetches two batches before the first step and none for the last."""
    for _ in range(2):  # epochs
        story.fetch(1).fetch(1).forward(20).backward(30).optimizer(5)
        story.fetch(1).forward(20).backward(30).optimizer(5)
        story.exhaust(1).forward(20).backward(30).optimizer(5)
    story.fetch(1).finish()
    counted = [record["samples"] for record in story.complete]
    assert counted == [8, 8, 0, 16, 8, 0]  # of the first two batches one came before the loop


def test_a_batch_that_cannot_be_counted_leaves_its_step_uncounted(story):
    story.fetch(1).forward(20).backward(30).optimizer(5)
    story.fetch(1, samples=-1).fetch(1).forward(20).backward(30).optimizer(5)
    story.exhaust(1).finish()
    assert [record["samples"] for record in story.complete] == [8, record_layout.NOT_MEASURED]


def test_the_samples_of_an_evaluation_are_no_steps(story):
    for _ in range(3):
        story.takes(3).forward(20).backward(30).optimizer(5)
        for _ in range(2):
            story.fetch(1, VALIDATION).evaluate(4)
        story.exhaust(1, VALIDATION)
    story.takes(3).forward(20).backward(30).optimizer(5).finish()
    assert {record["samples"] for record in story.complete} == {record_layout.NOT_MEASURED}


# Saving


def test_what_a_saver_does_is_saving(story):
    story.step().step()
    story.tell(events.BEGIN, CHECKPOINT).takes(100)
    story.copy(7)
    story.tell(events.BEGIN, COMMUNICATION).takes(50).tell(events.END, COMMUNICATION)
    story.save(10)
    story.takes(1).tell(events.END, CHECKPOINT)
    story.step().exhaust(1).finish()
    check_accounts(story)
    assert sum(record["checkpoint_ns"] for record in story.complete) == 168
    assert {record["communication_ns"] for record in story.complete} == {record_layout.NOT_MEASURED}


# Notebooks


def test_time_in_which_no_cell_runs_is_no_steps(story):
    story.step().step().exhaust(1)
    story.tell(events.PAUSE).takes(15_000).tell(events.RESUME).takes(40)
    story.step().step().exhaust(1).finish()
    assert len(story.complete) == 4
    assert max(record["wall_ns"] for record in story.complete) < 100
    assert sum(record["wall_ns"] for record in story.records) < 400


def test_a_step_that_spans_cells_keeps_its_parts_and_loses_the_pause(story):
    story.step().step()
    story.fetch(10).forward(20).backward(30)
    story.tell(events.PAUSE).takes(15_000).tell(events.RESUME)
    story.optimizer(5).exhaust(1).finish()
    assert [record["wall_ns"] for record in story.complete] == [67, 67, 65]
    assert [record["forward_ns"] for record in story.complete] == [20] * 3


def test_an_evaluation_in_a_cell_of_its_own_is_evaluation(story):
    story.step().step().exhaust(1)
    story.tell(events.PAUSE).takes(900).tell(events.RESUME)
    for _ in range(3):
        story.fetch(2, VALIDATION).evaluate(5)
    story.exhaust(1, VALIDATION)
    story.tell(events.PAUSE).takes(900).tell(events.RESUME)
    story.step().exhaust(1).finish()
    assert len(story.complete) == 3
    assert sum(record["evaluation_ns"] for record in story.records) == 22
    assert {record["evaluation_ns"] for record in story.complete} == {0}
