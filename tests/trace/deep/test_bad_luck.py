"""What scripts do to their models while the deep profile looks: all of it goes as without."""

import contextlib
import copy
import gc
import io
import json
import multiprocessing
import pickle
import re
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from traceml.facts.gradients import gradient_facts
from traceml.facts.layer_memory import layer_memory
from traceml.store.layer_records import layer_files, read_layers
from traceml.trace import current
from traceml.trace.deep import bursts, gradient_norms, phase_marks
from traceml.trace.deep.bursts import FIRST_BURST, MAX_LOST
from traceml.trace.deep.call_watch import INTERRUPTED

STEPS = FIRST_BURST + 20
"""Until several bursts are over, with no limit to their share of the time."""


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs):
        return self.norm(self.inner(inputs)).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(4, 4)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = inputs + block(inputs)
        return self.last(inputs)


@pytest.fixture
def deep(begin_deep, monkeypatch):
    """A session that looks at memory often; what it wrote, when it is called."""
    monkeypatch.setattr(bursts, "MEMORY_EVERY", 2)
    return begin_deep()


def train(model, each_step=lambda step, loss: None, steps=STEPS, call=None):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for step in range(steps):
        loss = (call or model)(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        each_step(step, loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def without_addresses(pickled):
    """What is pickled by Python names storages by their addresses."""
    return re.sub(rb"\d{8,}", b"", pickled)


def saved_bytes(model):
    written = io.BytesIO()
    torch.save(model, written)
    return written.getvalue()


def per_sample_gradients(model):
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss(parameters, inputs):
        return torch.func.functional_call(model, parameters, (inputs[None],)).square().mean()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.ones(3, 4))
    return [each.tolist() for each in found.values()]


def scripted(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(torch.jit.script(model.last).graph)


def jit_traced(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, torch.ones(2, 4))(torch.ones(2, 4)).tolist()


class TimesTwo(nn.Module):
    """Multiplies by a plain number, which torch.jit.trace records beside no dispatch mode."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs) * 2


def jit_traced_with_a_number(model):
    return jit_traced(TimesTwo(model.last))


def jit_traced_function(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda inputs: (inputs * 2 + 1).view(-1), torch.ones(2, 4))
    return traced(torch.ones(2, 4)).tolist()


def exported(model):
    program = torch.export.export(model, (torch.ones(2, 4),))
    return [node.target.__str__() for node in program.graph.nodes]


def hooks_of_a_copy(model):
    twin = copy.deepcopy(model)
    return [
        (len(each._forward_hooks), len(each._forward_pre_hooks), sorted(vars(each)))
        for each in twin.modules()
    ]


USES = {
    "pickle": lambda model: without_addresses(pickle.dumps(model)),
    "torch.save": saved_bytes,
    "deepcopy": hooks_of_a_copy,
    "state_dict": lambda model: [(k, v.tolist()) for k, v in model.state_dict().items()],
    "jit.script": scripted,
    "jit.trace": jit_traced,
    "jit.trace with a number": jit_traced_with_a_number,
    "jit.trace of a function": jit_traced_function,
    "torch.export": exported,
    "torch.func": per_sample_gradients,
}


@pytest.mark.parametrize("use", USES)
def test_uses_of_a_model_in_a_step_that_is_looked_at_are_as_without(deep, use):
    def used():
        torch.manual_seed(1)
        found = []
        losses = train(model := Model(), lambda step, loss: found.append(USES[use](model)))
        return losses, found

    seen = used()
    assert deep().steps
    assert used() == seen  # the session is over


class Interrupted(nn.Module):
    """Is interrupted in one call, inside a layer, and goes on without it."""

    def __init__(self, at, error):
        super().__init__()
        self.inner, self.calls, self.at, self.error = Block(), 0, at, error

    def forward(self, inputs):
        self.calls += 1
        handle = None
        if self.calls == self.at:
            handle = self.inner.norm.register_forward_hook(self._raise)
        with contextlib.suppress(self.error):
            inputs = self.inner(inputs)
        if handle is not None:
            handle.remove()
        return inputs

    def _raise(self, *_):
        raise self.error("mine")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, ArithmeticError])
def test_an_exception_that_a_layer_catches_costs_its_own_step_at_most(deep, error):
    model = Model()
    model.blocks[0] = Interrupted(FIRST_BURST + 1, error)
    train(model)
    found = deep()
    assert set(found.calls.flatten().tolist()) <= {0, 1}
    is_lost = not issubclass(error, Exception)  # torch calls no hook for those
    assert (FIRST_BURST + 1 in found.steps) != is_lost and len(found.steps) >= 6
    assert not found.notes


class InterruptedAlways(Interrupted):
    def __init__(self):
        super().__init__(0, KeyboardInterrupt)

    def forward(self, inputs):
        self.at = self.calls + 1
        return super().forward(inputs)


def test_an_interruption_that_the_loop_catches_costs_its_own_step_at_most(deep):
    model, calls = Model(), []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == FIRST_BURST + 1:
            raise KeyboardInterrupt

    model.blocks[1].inner.register_forward_pre_hook(interrupt)

    def call(inputs):
        try:
            return model(inputs)
        except KeyboardInterrupt:
            return model(inputs)

    train(model, call=call)
    found = deep()
    assert FIRST_BURST + 1 not in found.steps and len(found.steps) >= 6
    assert set(found.calls.flatten().tolist()) <= {0, 1}


def test_interruptions_in_every_step_are_given_up_and_said(deep):
    model = Model()
    model.blocks[0] = InterruptedAlways()
    train(model)
    assert deep().notes == (INTERRUPTED,)


def test_hooks_of_the_script_that_raise_in_a_layer_raise_as_without(deep):
    model, raised = Model(), []

    def fail(*_):
        raise ArithmeticError("mine")

    def each_step(step, loss):
        for register in (
            model.last.register_forward_pre_hook,
            model.last.register_forward_hook,
            module_hooks.register_module_forward_pre_hook,
            module_hooks.register_module_forward_hook,
        ):
            handle = register(fail)
            with pytest.raises(ArithmeticError, match="mine"):
                model(torch.ones(2, 4))
            handle.remove()
            raised.append(step)

    train(model, each_step)
    assert len(raised) == 4 * STEPS
    assert deep().steps


def test_modules_that_are_made_replaced_and_let_go_are_seen_as_they_are(deep):
    model, freed = Model(), []

    def each_step(step, loss, model=model):
        if step % 3 == 0:
            freed.append(weakref.ref(model.blocks[1]))
            model.blocks[1] = nn.Sequential(Block())  # not known to the optimizer either
        if step % 3 == 1:
            model.extra = nn.Linear(4, 4)
            del model.extra

    train(model, each_step)
    gc.collect()
    assert [each() for each in freed[:-2]] == [None] * (
        len(freed) - 2
    )  # but for a look in progress
    found = deep()
    assert found.steps and {"blocks.1", "last"} <= set(found.names)


class Overflows(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, inputs):
        self.calls += 1
        return inputs * (float("inf") if self.calls >= self.at else 1.0)


def test_a_model_that_takes_the_place_of_another_is_not_left_out_silently(deep):
    train(Model(), steps=2 * STEPS)
    train(nn.Sequential(nn.Linear(4, 4), Overflows(STEPS), nn.Linear(4, 4)), steps=STEPS + 2)
    found = deep()
    assert "blocks.0.inner" in found.names and found.others_at_end is not None
    assert (found.calls[:, 0] > 0).all() and (found.others_at_end.calls[:, 0] > 0).all()
    others, last = len(found.others_at_end.steps), found.at_end
    (note,) = found.notes
    assert f"it had in {len(found.steps)} of the {others + len(found.steps)} steps looked" in note
    assert f"from step {found.steps[0]} to step {found.steps[-1]}." in note
    assert f"1 (Overflows, seen since step {last.steps[0]})" in note
    assert set(last.names) == {"", "0", "1", "2"} and last.pid == found.pid
    bad = gradient_facts([found], {}).bad_value
    assert (bad.step, bad.phase, bad.layer) == (3 * STEPS, "forward", "1")
    assert {group.name for group in layer_memory([found]).groups} <= {"* (Linear)", "1"}


def test_models_of_earlier_folds_that_the_script_keeps_are_none_that_train(deep):
    folds = [Model() for _ in range(3)]
    for model in folds:
        train(model)
    found = deep()
    assert not found.notes and found.others_at_end is None
    assert found.names[0] == "" and "blocks.0.inner" in found.names
    assert (found.calls[:, 0] == 1).all() and found.steps[-1] > 2 * STEPS


def test_gradients_that_models_of_earlier_folds_have_left_are_not_measured(
    traced, begin_deep, monkeypatch
):
    """In a fold's first backward pass no optimizer says which model trains."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 1.0)
    deep, folds = begin_deep(), []
    for _ in range(4):
        folds.append(Model())
        train(folds[-1])
    found = deep()
    (file,) = layer_files(traced.folder)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    measured = {line["set"] for line in lines if "norms" in line}
    names = [tuple(line["names"]) for line in lines if line["set"] in measured and "names" in line]
    assert len(found.norms.steps) > STEPS and names == [found.names]


def test_a_layer_that_calls_itself_and_is_called_often_is_counted_as_often(deep):
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, inputs, depth=2):
            inputs = self.inner(inputs)
            return self(inputs, depth - 1) if depth else inputs

    model = Model()
    model.blocks[1] = Recursive()
    train(model)
    found = deep()
    calls = dict(zip(found.names, found.calls[0].tolist(), strict=True))
    assert calls == {
        "": 1,
        "blocks": 0,
        "blocks.0": 1,
        "blocks.0.inner": 1,
        "blocks.0.norm": 1,
        "blocks.1": 3,
        "blocks.1.inner": 3,
        "last": 1,
    }


def test_forward_called_directly_or_outside_a_step_shows_the_layers_below(deep):
    model = Model()
    train(model, lambda step, loss: model.last(torch.ones(2, 4)), call=model.forward)
    found = deep()
    calls = dict(zip(found.names, found.calls[-1].tolist(), strict=True))
    assert (calls[""], calls["blocks.0"], calls["last"]) == (0, 1, 2)


def test_a_model_on_two_devices_and_moved_between_them_trains_on(deep):
    model = Model()
    model.unused = nn.Linear(4, 4, device="meta")

    def each_step(step, loss):
        if step == FIRST_BURST:
            model.last.double().float()
            model.to(torch.float64).to(torch.float32)

    train(model, each_step)
    found = deep()
    assert found.steps and found.held_bytes["parameters"][found.names.index("unused")] == 80


def test_a_profiler_of_the_script_s_own_sees_the_same_operations(deep):
    """But for the loss, which is read in every step."""
    from torch.profiler import ProfilerActivity, profile

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()

    def operations():
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            step()
        names = {event.name for event in recorded.events()} - {"aten::item"}
        return sorted(name for name in names if name.startswith("aten::") and "scalar" not in name)

    seen = [operations() for _ in range(STEPS)]
    for _ in range(STEPS):
        step()
    assert min(deep().steps) > STEPS
    assert all(each == operations() for each in seen)


def test_a_model_called_in_another_thread_is_neither_seen_nor_disturbed(deep):
    model, results = Model(), []

    def each_step(step, loss):
        beside = threading.Thread(target=lambda: results.append(model(torch.ones(2, 4)).sum()))
        beside.start()
        beside.join()
        results[-1].backward()

    train(model, each_step)
    found = deep()
    assert len(results) == STEPS and set(found.calls.flatten().tolist()) == {0, 1}


def _call_in_child(model, queue):
    queue.put(model(torch.ones(2, 4)).detach().numpy().tolist())


@pytest.mark.slow
def test_forked_workers_call_the_model_as_without(deep):
    context = multiprocessing.get_context("fork")
    model, same = Model(), []

    def each_step(step, loss):
        if FIRST_BURST <= step < FIRST_BURST + 3:
            queue = context.Queue()
            worker = context.Process(target=_call_in_child, args=(model, queue))
            worker.start()
            found = queue.get(timeout=60)
            worker.join(60)
            same.append((found == model(torch.ones(2, 4)).tolist(), worker.exitcode))

    train(model, each_step)
    assert same == [(True, 0)] * 3
    assert deep().steps


def test_what_was_put_into_torch_is_out_again_where_beginning_fails_half_way(traced, monkeypatch):
    def fail(calls):
        raise RuntimeError("a version of torch that we do not know")

    monkeypatch.setattr(phase_marks.ForwardCalls, "put_in", fail)
    traced.session.begin_deep_profile()
    train(Model())
    assert not module_hooks._global_forward_hooks and not module_hooks._global_forward_pre_hooks
    current.end()
    (found,) = read_layers(traced.folder)
    assert found.notes == (bursts.LOOK_FAILED.format("timing layers"),)


def end_of(kind):
    """Has a look fail at the end of a step, as one does that meets what nobody thought of."""

    def fail(look, step, steps):
        raise ArithmeticError("an odd tensor")

    return kind, "end", fail


@pytest.mark.parametrize(
    ("failing", "name"),
    [
        (end_of(bursts.TimedSteps), "timing layers"),
        (end_of(bursts.MemorySteps), "looking at the memory of layers"),
        (end_of(bursts.ActivationSteps), "looking at what layers return"),
        (end_of(bursts.OperationSteps), "counting the operations of layers"),
    ],
    ids=["times", "memory", "activations", "operations"],
)
def test_a_look_that_fails_is_dropped_and_said_and_the_others_go_on(
    traced, monkeypatch, failing, name
):
    monkeypatch.setattr(*failing)
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 1e9)
    failures = []
    monkeypatch.setattr(traced.session, "failed", failures.append)
    traced.session.begin_deep_profile()
    train(Model(), steps=6 * STEPS)
    traced.finish()
    (found,) = read_layers(traced.folder)
    assert found.notes == (bursts.LOOK_FAILED.format(name),)
    assert list(map(str, failures)) == ["an odd tensor"]
    seen = {
        "timing layers": bool(found.steps),
        "looking at the memory of layers": bool(found.held_bytes),
        "looking at what layers return": len(found.largest.steps) > 0,
        "counting the operations of layers": bool(found.counted),
    }
    assert [each for each, is_seen in seen.items() if not is_seen] == [name]


def test_what_fails_beside_every_look_ends_all_of_them(traced, monkeypatch):
    def fail(steps):
        raise ArithmeticError("a clock that goes backwards")

    monkeypatch.setattr(bursts.TimedSteps, "tell_passed", fail)
    traced.session.begin_deep_profile()
    train(Model())
    assert traced.session._failures == 1
    current.end()
    (found,) = read_layers(traced.folder)
    assert found.notes == (bursts.FAILED,)


@pytest.mark.parametrize(
    "loses", [False, True], ids=["every step is seen", "no step is seen to its end"]
)
def test_a_model_that_the_script_lets_go_of_is_freed_whatever_was_looked_at_last(
    deep, monkeypatch, loses
):
    monkeypatch.setattr(bursts, "ACTIVATIONS_BURST", 0)
    model = Model()
    if loses:
        model.blocks[0] = InterruptedAlways()
    # The last look of the first burst is one at activations; some steps without any follow it.
    train(model, steps=FIRST_BURST + 2 * MAX_LOST if loses else FIRST_BURST + 6)
    freed = weakref.ref(model)
    del model
    gc.collect()
    assert freed() is None


def test_a_lazy_layer_that_is_never_called_holds_nothing(deep):
    model = Model()
    model.unused = nn.LazyLinear(4)
    model.unused.register_buffer("table", nn.UninitializedBuffer())
    called = [each for name, each in model.named_parameters() if "unused" not in name]
    optimizer = torch.optim.SGD(called, 0.01)
    for step in range(STEPS):
        loss = model(torch.randn(2, 4)).square().mean() * (torch.inf if step == STEPS - 2 else 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = deep()
    assert not found.notes and found.steps
    held = dict(zip(found.names, found.held_bytes["parameters"].tolist(), strict=True))
    assert held["unused"] == 0 and held["last"] == 4 * (16 + 4)


class FunctionsSeen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class OperationsSeen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [FunctionsSeen, OperationsSeen])
def test_a_mode_of_the_script_s_sees_nothing_of_ours(begin_deep, mode):
    """It may count, change or refuse what it sees."""

    def seen_in_each_step():
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        counts = []
        for _ in range(STEPS):
            with mode() as seen:
                loss = model(torch.randn(2, 4)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            counts.append(seen.count)
        return counts

    without = seen_in_each_step()
    deep = begin_deep()
    assert seen_in_each_step() == without
    assert len(deep().steps) > 4
