"""The recorder in C and in Python: the same events, the same state, and nothing lost or leaked."""

import gc
import json
import re
import sys
import threading
import time
import weakref
from collections import UserDict
from pathlib import Path

import pytest
import torch

from processes import run_traceml
from traceml.model import record_layout
from traceml.model.packed_metrics import as_json
from traceml.steps import events
from traceml.trace import copies, loaders
from traceml.trace import loss as loss_reader
from traceml.trace import recorder as recorders
from traceml.trace import ring as rings
from traceml.trace.loss import show_torch_to_c
from traceml.trace.recorder import PythonEvents, RecorderInPython, events_in_c, recorder_of

in_c = events_in_c()
needs_c = pytest.mark.skipif(in_c is None, reason="recorder.c is not built here")


class Timeline:
    """A GPU's clock that numbers its marks."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.marks = 0

    def mark(self):
        self.marks += 1
        return self.marks

    def mark_boundary(self):
        if self.recorder.step_ends:
            self.recorder.step_ends = False
        return self.mark()


@pytest.fixture(params=["C", "Python"])
def recorder(request):
    if request.param == "Python":
        return RecorderInPython()
    if in_c is None:
        pytest.skip("recorder.c is not built here")
    return recorder_of(in_c.Events)()


def noted(recorder):
    """What was noted, without the moments."""
    content = bytes(recorder.buffer[: recorder.written * events.EVENT_BYTES])
    return [event[1:] for event in events.EVENT.iter_unpack(content)]


def bits(number):
    return events.EVENT.unpack(events.EVENT_WITH_FLOAT.pack(0, 0, 0, 0, number, 0))[4]


def test_events_hold_what_was_noted_and_their_number_plus_one(recorder):
    assert recorder.note(events.BEGIN, 7) == 0
    recorder.note(events.END, -5, 3)
    recorder.note_on_host(events.HOLD_OPTIMIZER, 4, 2, 9)
    recorder.note_loss(3, 0.25)
    recorder.note_backward(1.5)
    recorder.note_backward(None)
    recorder.note_backward(6)
    recorder.note_backward(None, events.ASKED_BY_GRAD)
    recorder.note_spent(events.SPEND, events.LOGGING, 11)
    known, awaited = events.KNOWN_LOSS, events.AWAITED_LOSS
    assert noted(recorder) == [
        (events.BEGIN, 0, 0, 7, 1),
        (events.END, 3, 0, -5, 2),
        (events.HOLD_OPTIMIZER, 2, 9, 4, 3),
        (events.SEE_LOSS, 0, 3, bits(0.25), 4),
        (events.BEGIN_BACKWARD, known, 0, bits(1.5), 5),
        (events.BEGIN_BACKWARD, 0, 0, 0, 6),
        (events.BEGIN_BACKWARD, awaited, 0, 6, 7),
        (events.BEGIN_BACKWARD, events.ASKED_BY_GRAD, 0, 0, 8),
        (events.SPEND, events.LOGGING << events.CAUSE_SHIFT, 0, 11, 9),
    ]


def test_moments_are_those_of_pythons_clock(recorder):
    before = time.perf_counter_ns()
    recorder.note(events.BEGIN)
    returned = recorder.note_backward(None)
    moments = [event[0] for event in events.EVENT.iter_unpack(bytes(recorder.buffer[:64]))]
    assert before <= moments[0] <= returned <= moments[1] <= time.perf_counter_ns()


def test_collections_are_charged_before_the_event_that_follows_them(recorder):
    recorder.collected_ns[0] = 40
    recorder.note(events.BEGIN)
    recorder.note(events.END)
    recorder.collected_ns[0] = 100
    recorder.note_collections()
    cause = events.GC << events.CAUSE_SHIFT
    assert [event[:4] for event in noted(recorder)] == [
        (events.SPEND, cause, 0, 40),
        (events.BEGIN, 0, 0, 0),
        (events.END, 0, 0, 0),
        (events.SPEND, cause, 0, 60),
    ]


def test_marks_are_made_in_timed_steps_and_where_one_is_planned(recorder):
    recorder.gpu = Timeline(recorder)
    assert recorder.note(events.BEGIN) == 0
    recorder.timed = True
    assert recorder.note(events.BEGIN) == 1
    recorder.note_backward(None)
    recorder.untimed_steps, recorder.timed = 2, False
    recorder.end_step(events.END_BACKWARD, 1)  # a boundary, since nothing is fetched
    assert (recorder.untimed_steps, recorder.step_ends) == (1, False)
    recorder.begin_fetch(5)  # no step ends here: none is counted
    recorder.end_step(events.END_BACKWARD, 2)
    recorder.begin_fetch(5)  # the last one of those that are left alone ends here
    assert [(kind, flags, mark) for kind, flags, mark, *_ in noted(recorder)] == [
        (events.BEGIN, 0, 0),
        (events.BEGIN, events.TIMED, 1),
        (events.BEGIN_BACKWARD, events.TIMED, 2),
        (events.END_BACKWARD, 0, 0),
        (events.BEGIN_FETCH, 0, 0),
        (events.END_BACKWARD, 0, 0),
        (events.BEGIN_FETCH, 0, 3),
    ]
    assert (recorder.source, recorder.trained, recorder.ends_at_fetch) == (5, 5, 0)


def test_a_mark_that_fails_is_no_event(recorder):
    recorder.gpu, recorder.timed = object(), True
    with pytest.raises(AttributeError):
        recorder.note(events.BEGIN)
    with pytest.raises(AttributeError):
        recorder.note_boundary(events.BEGIN)
    assert recorder.written == 0


def test_what_was_staged_is_moved_and_the_rest_goes_round(recorder):
    recorder.note(events.BEGIN, 1)
    ring = bytearray(64 + 4 * events.EVENT_BYTES)
    assert recorder.move_to(ring, 64, 4) == 0
    for argument in range(2, 7):
        recorder.note(events.BEGIN, argument)
    slots = events.EVENT.iter_unpack(bytes(ring[64:]))
    assert [(event[4], event[5]) for event in slots] == [(5, 5), (6, 6), (3, 3), (4, 4)]
    assert recorder.staged is ring  # any bytearray: a ring is mapped
    recorder.forget()
    assert recorder.written == 0
    recorder.note(events.BEGIN, 9)
    assert noted(recorder) == [(events.BEGIN, 0, 0, 9, 1)]
    ring.clear()  # nobody holds it any more


def test_two_threads_lose_no_event(recorder):
    ring = bytearray((1 << 15) * events.EVENT_BYTES)
    recorder.move_to(ring, 0, 1 << 15)

    def write(kind):
        for argument in range(8000):
            recorder.note(kind, argument)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=write, args=(kind,)) for kind in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_s)
    found = noted(recorder)
    assert [event[4] for event in found] == list(range(1, 16001))
    assert sorted(event[3] for event in found if event[0] == 1) == list(range(8000))


# What is in C alone


@needs_c
def test_both_have_the_same_state_and_methods():
    def public(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(in_c.Events) == public(PythonEvents)


@needs_c
def test_slots_outside_their_buffer_are_refused():
    bare = in_c.Events()
    for base, capacity in ((0, 2), (-1, 1), (1, 1), (0, 0), (0, 3)):
        with pytest.raises(ValueError):
            bare.write_to(bytearray(32), base, capacity)
    with pytest.raises(BufferError):
        bare.write_to(b"only for reading" * 4, 0, 1)
    with pytest.raises(TypeError):
        bare.note(1)  # nobody has said where collections are counted
    bare.note_on_host(1)  # nor where events go: nowhere


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_a_variable_leaves_c_out(monkeypatch, value):
    monkeypatch.delenv("TRACEML_WITHOUT_C", raising=False)
    found = events_in_c()
    monkeypatch.setenv("TRACEML_WITHOUT_C", value)
    assert events_in_c() is (None if value == "1" else found)


@needs_c
def test_a_build_of_an_older_source_is_left_alone(monkeypatch):
    monkeypatch.setattr(in_c, "SOURCE_CRC", in_c.SOURCE_CRC ^ 1)
    assert events_in_c() is None
    monkeypatch.delattr(in_c, "SOURCE_CRC")
    assert events_in_c() is None


def test_a_python_without_a_global_lock_runs_hooks_in_python(monkeypatch):
    monkeypatch.setattr(sys, "abiflags", "t")
    assert events_in_c() is None


LATE = """
import os
import traceml
traceml.log_params({"lr": 0.1})
os.environ["TRACEML_WITHOUT_C"] = "1"
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
"""


def test_a_variable_that_is_set_late_changes_nothing(tmp_path):
    done = run_traceml(["run", "train.py"], tmp_path, LATE)
    assert done.status == 0, done.stderr
    assert done.summary["step_time"]["metadata"]["training_total_steps"] == 5


class Owner:
    """A loader's iterator, an optimizer or a model."""

    training = True


class Job:
    """A recorder in the middle of training, and what was done the slow way."""

    def __init__(self):
        show_torch_to_c()
        self.recorder = recorder = recorder_of(in_c.Events)()
        self.owner = Owner()
        self.slow = []
        recorder.followed = threading.get_ident()
        recorder.identified, recorder.patience, recorder.training_workers = True, 16, 0
        recorder.iterator = recorder.optimizer = recorder.step_model = weakref.ref(self.owner)
        recorder.iterator_source = recorder.optimizer_number = 3
        recorder.watched_models[id(self.owner)] = weakref.ref(self.owner)
        recorder.contents_of = lambda batch: 8
        recorder.due_ns = sys.maxsize

    def shortcut(self, name):
        return self.recorder.shortcut(name, lambda *given: self.slow.append(given))


@pytest.fixture
def job():
    return Job()


LOSS = torch.tensor(2.5)
DEVICE = torch.device("cuda")
COUNTED_END = events.optimizer_ended(1, 3)
PLAIN = {
    "note": (lambda job: (events.END, events.H2D), {}, (events.END, 0, 0, events.H2D)),
    "begin_fetch": (lambda job: job.owner, {}, (events.BEGIN_FETCH, 0, 0, 3)),
    "end_fetch": (lambda job: [], {}, (events.END_FETCH, 0, 0, 8)),
    "begin_to": (
        lambda job: (LOSS, (DEVICE,), {}),
        {"copy_target": DEVICE},
        (events.BEGIN, 0, 0, events.H2D),
    ),
    "begin_cuda": (lambda job: (LOSS, (), {}), {}, (events.BEGIN, 0, 0, events.H2D)),
    "begin_forward": (lambda job: job.owner, {}, (events.BEGIN_FORWARD, 0, 0, 3)),
    "end_forward": (lambda job: 3, {}, (events.END_FORWARD, 0, 0, 3)),
    "begin_backward": (
        lambda job: LOSS,
        {},
        (events.BEGIN_BACKWARD, events.KNOWN_LOSS, 0, bits(2.5)),
    ),
    "end_backward": (lambda job: None, {"backwards_open": 1}, (events.END_BACKWARD, 0, 0, 0)),
    "begin_optimizer": (lambda job: job.owner, {}, (events.BEGIN_OPTIMIZER, 0, 0, 3)),
    "end_optimizer": (
        lambda job: job.owner,
        {"is_in_step": True},
        (events.END_OPTIMIZER, 0, 0, COUNTED_END),
    ),
    "enter_step": (lambda job: job.owner, {"is_explicit": True}, (events.ENTER_STEP, 0, 0, 0)),
    "exit_step": (
        lambda job: False,
        {"is_explicit": True, "explicit_depth": 1},
        (events.EXIT_STEP, 0, 0, events.step_ended(1, False)),
    ),
}
"""What a hook passes, the state it finds, and the event of the plain case."""


def prepared(job, name):
    argument, state, event = PLAIN[name]
    for each, value in state.items():
        setattr(job.recorder, each, value)
    return argument(job), event


def call(function, argument):
    return function(*argument) if type(argument) is tuple else function(argument)


@needs_c
@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_case_is_one_event_and_nothing_in_python(job, name):
    argument, event = prepared(job, name)
    assert call(job.shortcut(name), argument) in (None, 0, 3, events.H2D)
    assert [each[:4] for each in noted(job.recorder)] == [event]
    assert not job.slow


MARKED = ("note", "end_fetch", "begin_forward", "end_forward", "end_backward")
"""What is marked in a step that is timed on the GPU, and is plain all the same."""


@needs_c
@pytest.mark.parametrize("name", MARKED)
def test_in_a_timed_step_an_event_has_its_mark(job, name):
    argument, (kind, flags, _, value) = prepared(job, name)
    job.recorder.gpu, job.recorder.timed = Timeline(job.recorder), True
    call(job.shortcut(name), argument)
    assert [each[:4] for each in noted(job.recorder)] == [(kind, flags | events.TIMED, 1, value)]
    assert job.recorder.has_new_marks and not job.slow


@needs_c
@pytest.mark.parametrize("name", MARKED)
def test_where_a_mark_fails_python_tries_again(job, name):
    def fail():
        raise RuntimeError("the device has failed")

    argument, _ = prepared(job, name)
    job.recorder.gpu, job.recorder.timed = Timeline(job.recorder), True
    job.recorder.gpu.mark = fail
    before = [getattr(job.recorder, each) for each in CHANGED]
    call(job.shortcut(name), argument)
    assert job.slow == [argument if type(argument) is tuple else (argument,)]
    assert [getattr(job.recorder, each) for each in CHANGED] == before


CHANGED = ("ends", "passes", "backwards_open", "explicit_depth", "forward_of", "written")
"""What the hooks change."""

SPECIAL = [
    *((name, "timed", True) for name in ("begin_optimizer", "end_optimizer")),
    *((name, "followed", 1) for name in PLAIN),
    ("begin_fetch", "workers", 2),
    ("begin_fetch", "is_watching", True),
    ("begin_fetch", "iterator", lambda: None),
    ("end_fetch", "workers", 2),
    ("end_fetch", "training_workers", -1),
    ("begin_to", "copy_target", "cuda"),
    ("begin_backward", "is_in_step", True),
    ("begin_backward", "is_watching", True),
    ("begin_backward", "backwards_open", 1),
    ("begin_backward", "is_loss_scaled", True),
    ("end_backward", "backwards_open", 2),
    ("end_backward", "elsewhere_ns", 1),
    ("end_backward", "by_hand", True),
    ("end_backward", "stepped_in_backward", True),
    ("end_backward", "passes", 16),
    ("begin_optimizer", "identified", False),
    ("begin_optimizer", "is_watching", True),
    ("begin_optimizer", "passes", 1),
    ("begin_optimizer", "optimizer", lambda: None),
    ("end_optimizer", "passes", 1),
    ("end_optimizer", "optimizer", lambda: None),
    ("end_optimizer", "optimizer_mark", "marked"),
    ("end_optimizer", "has_new_marks", True),
    ("end_optimizer", "modules_seen", 1),
    ("end_optimizer", "looks", [print]),
    ("enter_step", "identified", False),
    ("enter_step", "is_explicit", False),
    ("enter_step", "step_model", lambda: None),
    ("exit_step", "explicit_depth", 2),
    ("exit_step", "looks", [print]),
]
"""What makes a hook go the slow way."""


@needs_c
@pytest.mark.parametrize(("name", "state", "value"), SPECIAL)
def test_whatever_is_special_is_left_to_python_untouched(job, name, state, value):
    argument, _ = prepared(job, name)
    setattr(job.recorder, state, value)
    before = [getattr(job.recorder, each) for each in CHANGED]
    call(job.shortcut(name), argument)
    assert job.slow == [argument if type(argument) is tuple else (argument,)]
    assert [getattr(job.recorder, each) for each in CHANGED] == before


@needs_c
@pytest.mark.parametrize("name", ["begin_fetch", "enter_step", "exit_step", "end_optimizer"])
def test_where_a_gpus_clock_has_something_to_do_python_does_it(job, name):
    argument, event = prepared(job, name)
    job.recorder.gpu = Timeline(job.recorder)
    job.shortcut(name)(argument)
    assert job.slow == [(argument,)]
    job.recorder.untimed_steps = 2
    job.shortcut(name)(argument)
    assert len(job.slow) == 1
    assert [each[:4] for each in noted(job.recorder)] == [event]


@needs_c
@pytest.mark.parametrize(
    "loss",
    [torch.ones(2), torch.tensor(3), torch.nn.Parameter(LOSS), [LOSS], None],
    ids=["a vector", "no real number", "a parameter", "a list", "nothing"],
)
def test_what_is_no_plain_loss_is_left_to_python(job, loss):
    job.shortcut("begin_backward")(loss)
    assert len(job.slow) == 1
    assert job.recorder.backwards_open == job.recorder.written == 0


@needs_c
def test_a_loss_under_a_mode_of_the_users_is_left_to_python(job):
    with torch.device("cpu"):  # a mode that sees every function of torch's
        job.shortcut("begin_backward")(LOSS)
    assert len(job.slow) == 1


class Anywhere(torch.Tensor):
    """A tensor that stands for one on the host and for one on a GPU."""

    is_cpu = is_cuda = True


@pytest.fixture
def on_stream(job, monkeypatch):
    """A recorder whose last mark was made on stream 5, and the current stream as the only item."""
    current = [5]
    monkeypatch.setattr(loss_reader, "_Tensor", Anywhere)
    monkeypatch.setattr(loss_reader, "_stream_number", lambda device: current[0])
    show_torch_to_c()
    job.recorder.gpu, job.recorder.stream = Timeline(job.recorder), 5
    yield current
    monkeypatch.undo()
    show_torch_to_c()


ANYWHERE = torch.ones(1).as_subclass(Anywhere)
COPIES = {
    "begin_to": (ANYWHERE, (), {"device": DEVICE}),
    "begin_cuda": (ANYWHERE, (), {}),
    "begin_copy_": (ANYWHERE, (ANYWHERE,), {}),
}


@needs_c
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("timed", [False, True])
def test_a_copy_over_a_stream_of_its_own_is_no_phase(job, on_stream, name, timed):
    job.recorder.copy_target, job.recorder.timed = DEVICE, timed
    begin = job.shortcut(name)
    assert begin(*COPIES[name]) == events.H2D
    assert [each[2:4] for each in noted(job.recorder)] == [(int(timed), events.H2D)]
    on_stream[0] = 6
    assert begin(*COPIES[name]) == copies.BESIDE
    assert not job.slow and job.recorder.written == 1
    job.recorder.stream = -1  # nothing is marked yet
    begin(*COPIES[name])
    assert job.slow == [COPIES[name]]


@needs_c
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("begin_to", (LOSS, (), {})),
        ("begin_to", (LOSS, (torch.float16,), {})),
        ("begin_to", (torch.nn.Parameter(LOSS), (DEVICE,), {})),
        ("begin_cuda", (torch.nn.Parameter(LOSS), (), {})),
        ("begin_copy_", (LOSS, (LOSS,), {})),
        ("begin_copy_", (LOSS, (), {})),
    ],
    ids=["nowhere", "another type", "a parameter", "its cuda()", "on the host", "of nothing"],
)
def test_copies_that_are_not_plain_are_left_to_python(job, name, given):
    job.recorder.copy_target = DEVICE
    job.shortcut(name)(*given)
    assert job.slow == [given] and not job.recorder.written


@pytest.fixture
def ring(job, tmp_path):
    """A ring that the recorder writes to, where values of two names were logged before."""
    made = rings.create([tmp_path], "made.ring")
    recorder = job.recorder
    recorder.move_to(made.mapping, made.event_base, made.event_capacity)
    place = made.message_place
    recorder.messages_at, recorder.message_slots, recorder.messages_counted_at = place
    recorder.metric_names["loss", "epoch"] = b'["loss","epoch"]'
    return made


def messages_in(ring):
    """The messages of a ring, as whoever reads it finds them."""
    first, _, counted_at = ring.message_place
    count = int.from_bytes(ring.mapping[counted_at : counted_at + 8], "little")
    found = []
    for number in range(count):
        slot = first + number * record_layout.MESSAGE_BYTES
        content = ring.mapping[slot : slot + record_layout.MESSAGE_BYTES]
        length, more, payload, sequence = record_layout.packer(record_layout.MESSAGE).unpack(
            content
        )
        assert (more, sequence) == (0, number + 1) and not payload[length:].strip(b"\0")
        found.append(json.loads(as_json(payload[:length])))
    return found


@needs_c
def test_numbers_under_known_names_are_logged_without_python(job, ring):
    log, before = job.shortcut("metrics"), time.time_ns()
    ring.write_message(b'{"kind":"params"}')
    log({"loss": float("nan"), "epoch": 2}, 7)
    job.recorder.note(events.BEGIN)
    log({"loss": 0.5, "epoch": -1}, None)
    ring.write_message(b'{"kind":"artifact"}')
    params, at_step, at_event, artifact = messages_in(ring)
    assert (params["kind"], artifact["kind"]) == ("params", "artifact")
    assert (at_step["step"], at_step["values"]) == (7, {"loss": "nan", "epoch": 2.0})
    assert (at_event["at"], at_event["values"]) == (1, {"loss": 0.5, "epoch": -1.0})
    assert before <= at_step["unix_ns"] <= at_event["unix_ns"] <= time.time_ns()
    assert not job.slow


@needs_c
@pytest.mark.parametrize(
    ("values", "step"),
    [
        ({"loss": 0.5}, 1),
        ({"epoch": 2, "loss": 0.5}, 1),
        ({"loss": LOSS, "epoch": 2}, 1),
        ({"loss": 0.5, "epoch": True}, 1),
        ({"loss": 0.5, "epoch": 10**400}, 1),
        ({"loss": 0.5, "epoch": 2}, -1),
        ({"loss": 0.5, "epoch": 2}, 10**30),
        ({"loss": 0.5, "epoch": 2}, 1.0),
        (UserDict({"loss": 0.5, "epoch": 2}), 1),
        ({}, 1),
        (None, 1),
    ],
    ids=str,
)
def test_other_metrics_are_left_to_python(job, ring, values, step):
    job.shortcut("metrics")(values, step)
    assert job.slow == [(values, step)] and not messages_in(ring)


@needs_c
@pytest.mark.parametrize("state", [{"message_writers": 1}, {"message_slots": 0}, {"followed": 1}])
def test_metrics_are_left_to_python_where_another_writes(job, ring, state):
    for name, value in state.items():
        setattr(job.recorder, name, value)
    job.shortcut("metrics")({"loss": 0.5, "epoch": 2}, 1)
    assert len(job.slow) == 1 and not messages_in(ring)


class Meddling(str):
    """A metric's name: while it is looked up, something happens to the recorder."""

    def __hash__(self):
        self.meddle()
        return super().__hash__()


@needs_c
@pytest.mark.parametrize("state", [("message_writers", 1), ("message_slots", 0)])
def test_metrics_are_left_to_python_where_another_begins_to_write_meanwhile(job, ring, state):
    name = Meddling("loss")
    name.meddle = lambda: None
    values = {name: 0.5, "epoch": 2}
    job.shortcut("metrics")(values, 1)
    assert len(messages_in(ring)) == 1 and not job.slow
    name.meddle = lambda: setattr(job.recorder, *state)
    job.shortcut("metrics")(values, 2)
    assert len(messages_in(ring)) == 1 and job.slow == [(values, 2)]


@needs_c
@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(5, 2), 5),
        (torch.ones(1).expand(3, 1 << 20, 1 << 20), 3),
        (torch.ones(1).expand(1 << 31, 2), -1),
        ([torch.ones(4), torch.ones(6)], 4),
        ((torch.ones(0, 3),), 0),
        ({"inputs": torch.ones(7, 1)}, 7),
        ([torch.tensor(1.0), torch.ones(3)], 3),
        ([[torch.ones(9)], torch.ones(2)], 2),
        ([], -1),
        ((), -1),
        ({}, -1),
        (None, -1),
    ],
    ids=str,
)
def test_samples_and_elements_are_counted_as_in_python(job, batch, samples):
    job.recorder.contents_of = loaders.contents_of
    job.shortcut("end_fetch")(batch)
    contents = loaders.contents_of(batch)
    assert events.split_fetched(contents)[0] == samples
    assert [each[3] for each in noted(job.recorder)] == [contents]


@needs_c
def test_memory_is_looked_at_when_it_is_due(job):
    looked = []
    job.recorder.due_ns, job.recorder.look_at_memory = 0, looked.append
    job.shortcut("begin_backward")(LOSS)
    moment = events.EVENT.unpack_from(job.recorder.buffer)[0]
    assert looked == [moment]


@needs_c
def test_only_the_outermost_call_of_a_watched_model_is_a_forward_pass(job):
    begin, end = job.shortcut("begin_forward"), job.shortcut("end_forward")
    job.recorder.watched_models[id(job)] = lambda: None  # a dead model's identity
    assert begin(Owner()) is None
    assert begin(job) is None
    with torch.no_grad():
        assert begin(job.owner) == 1
    assert begin(job.owner) is None
    end(1)
    assert begin(job.owner) == 3
    assert not job.slow


class Unreadable(Owner):
    @property
    def training(self):
        raise ValueError("not for you")


@needs_c
@pytest.mark.parametrize("is_interrupted", [True, False])
def test_what_fails_goes_on_to_the_script_or_is_tried_in_python(job, is_interrupted):
    model = Unreadable()
    job.recorder.watched_models[id(model)] = weakref.ref(model)
    asked = []
    job.recorder.is_interrupted = lambda error: asked.append(error) or is_interrupted
    if is_interrupted:
        with pytest.raises(ValueError, match="not for you") as caught:
            job.shortcut("begin_forward")(model)
        assert caught.value is asked[0]
        assert caught.value.__traceback__.tb_next.tb_frame.f_code.co_name == "training"
    else:
        assert job.shortcut("begin_forward")(model) is None
    assert [type(error) for error in asked] == [ValueError]
    assert job.slow == ([] if is_interrupted else [(model,)])
    assert job.recorder.written == job.recorder.forward_of == 0


@needs_c
def test_an_unknown_shortcut_is_the_slow_way_itself(job):
    assert job.recorder.shortcut("begin_anything", print) is print


@needs_c
def test_nothing_is_leaked(job):
    """Every plain case and every slow one, many times: no object more, no reference more."""
    recorder = job.recorder
    calls = [(job.shortcut(name), *prepared(job, name)) for name in PLAIN]
    plain = {name: value for _, state, _ in PLAIN.values() for name, value in state.items()}
    watched = [None, True, False, LOSS, job.owner, recorder.iterator, recorder]
    recorder.collected_ns.append(5)

    def run(times):
        for _ in range(times):
            for timed in (False, True):
                for name, value in plain.items():
                    setattr(recorder, name, value)
                recorder.gpu, recorder.timed = None, timed
                recorder.forward_of = recorder.passes = 0
                for function, argument, _ in calls:
                    recorder.backwards_open = int(function.__name__ == "end_backward")
                    call(function, argument)
            job.slow.clear()

    def counted():
        gc.collect()
        return [*(sys.getrefcount(each) for each in watched), sys.getallocatedblocks()]

    run(50)
    grown = []
    for _ in range(3):  # others in this process may keep something meanwhile, but not each time
        before = counted()
        run(500)
        grown.append([now - then for now, then in zip(counted(), before, strict=True)])
    assert all(min(each) < 200 for each in zip(*grown, strict=True)), grown


@needs_c
def test_a_recorder_that_refers_to_itself_is_collected():
    class Marked:
        pass

    recorder = recorder_of(in_c.Events)()
    recorder.gpu = marked = Marked()
    recorder.look_at_memory = recorder.shortcut("note", recorder.note)
    assert recorder in gc.get_referents(gc.get_referents(recorder.look_at_memory)[0])
    gone = weakref.ref(marked)
    del marked, recorder
    gc.collect()
    assert gone() is None


def test_every_shortcut_that_a_hook_asks_for_is_there():
    """One that is misspelt would silently be the slow way."""
    sources = Path(recorders.__file__).parent.glob("*.py")
    text = "".join(source.read_text() for source in sources)
    asked_for = set(re.findall(r'shortcut\("(\w+)"', text))
    asked_for |= {f"begin_{name}" for name in copies.WAYS}
    assert asked_for == PLAIN.keys() | COPIES.keys() | {"metrics"}
