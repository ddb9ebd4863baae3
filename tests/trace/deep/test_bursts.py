"""The deep profile on real torch: what it sees of layers, and that training does not notice."""

import copy
import gc
import os
import pickle
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from traceml.store.layer_records import read_layers
from traceml.trace.deep import bursts, flop_formulas, gradient_norms, layer_marks, layer_names
from traceml.trace.deep.bursts import FIRST_BURST, LAYERS_SHARE, MAX_LOST
from traceml.trace.deep.late_numbers import MAX_COMING
from traceml.trace.deep.layer_marks import MAX_MARKS, TOO_MANY_CALLS
from traceml.trace.deep.layer_memory import MAX_OUTPUTS, ReturnedMemory
from traceml.trace.deep.layer_names import MAX_LAYERS, LayerName
from traceml.trace.deep.layer_times import LayerMark
from traceml.trace.deep.loss_graph import MAX_LEARNED, UsualOperation
from traceml.trace.deep.operations import FAILED, OWN_MODE
from traceml.trace.deep.timed_steps import MAX_PENDING, TimedSteps

WAIT_S = 0.01
STEPS = FIRST_BURST + 4
"""Until the first burst is over: two steps for the times, one for the memory."""


class WaitsForward(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, inputs):
        time.sleep(WAIT_S)
        return self.inner(inputs)


class WaitBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(WAIT_S)
        return gradient


class WaitsBackward(nn.Module):
    def forward(self, inputs):
        return WaitBackward.apply(inputs)


class Parts(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, inputs):
        for part in self.children():
            inputs = part(inputs)
        return inputs


class Checkpointed(nn.Module):
    def __init__(self, inner, use_reentrant):
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=self.use_reentrant)


def train(model, steps=STEPS, batch=2, width=4, beside=lambda: None):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        loss = model(torch.randn(batch, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        beside()
        optimizer.step()


def seconds(found, key, name):
    """A layer's own time, as a mean over the steps that were looked at."""
    return np.nanmean(found.times_ns[key][:, found.names.index(name)]) / 1e9


def test_time_is_that_of_the_layer_that_takes_it(deep):
    train(Parts(first=nn.Linear(4, 4), slow=WaitsForward(), heavy=WaitsBackward()))
    found = deep()
    assert found.names == ("", "first", "slow", "slow.inner", "heavy")
    assert found.kinds == ("Parts", "Linear", "WaitsForward", "Linear", "WaitsBackward")
    assert found.steps == (FIRST_BURST + 1, FIRST_BURST + 2)
    forward = {name: seconds(found, "host_forward", name) for name in found.names}
    backward = {name: seconds(found, "host_backward", name) for name in found.names}
    assert forward.pop("slow") >= WAIT_S > max(forward.values())
    assert backward.pop("heavy") >= WAIT_S > max(backward.values())


def test_a_step_that_fetches_a_batch_has_the_number_that_the_step_table_has(traced, monkeypatch):
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 100.0)
    traced.session.begin_deep_profile()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in DataLoader(torch.randn(2 * STEPS, 4), batch_size=2):
        model(batch).square().mean().backward()
        optimizer.step()
    complete = len(traced.complete())
    (found,) = read_layers(traced.folder)
    assert found.steps == (FIRST_BURST + 1, FIRST_BURST + 2)
    assert found.norms.steps[-1] == complete == STEPS


def test_own_times_add_up_to_the_model_s_call_without_our_own_time(deep):
    model = Parts(one=WaitsForward(), two=WaitsForward(), three=nn.ReLU())
    took = []
    call = model.forward

    def timed(inputs):
        began = time.perf_counter_ns()
        result = call(inputs)
        took.append(time.perf_counter_ns() - began)
        return result

    model.forward = timed
    train(model)
    found = deep()
    whole = found.times_ns["host_forward"].sum(axis=1)
    measured = np.array([took[step - 1] for step in found.steps])
    assert (whole >= 0.9 * 2 * WAIT_S * 1e9).all() and (whole <= measured).all()


def test_a_layer_that_is_shared_is_counted_once_by_name_and_twice_by_calls(deep):
    shared = nn.Linear(4, 4)
    train(Parts(first=shared, between=nn.ReLU(), again=nn.Sequential(shared)))
    found = deep()
    assert found.names == ("", "first", "between", "again")
    assert found.calls.tolist() == [[1, 2, 1, 1]] * 2


def test_a_step_with_two_models_and_optimizers_is_seen_as_a_whole(deep):
    makes, judges = Parts(one=nn.Linear(4, 4)), Parts(two=nn.Linear(4, 1), three=nn.Sigmoid())
    makers, judge = (torch.optim.SGD(model.parameters(), 0.01) for model in (makes, judges))
    for real in DataLoader(torch.randn(2 * STEPS + 8, 4), batch_size=2):
        makers.zero_grad()
        made = makes(torch.randn(2, 4))
        judges(made).mean().backward()
        makers.step()
        judge.zero_grad()
        (judges(real).mean() - judges(made.detach()).mean()).backward()
        judge.step()
    found = deep()
    assert found.steps[1] == found.steps[0] + 1
    calls = {name: list(found.calls[:2, place]) for place, name in enumerate(found.names)}
    assert {len(calls), *map(tuple, calls.values())} == {5, (1, 1), (3, 3)}
    assert all(made == [1, 1] for name, made in calls.items() if name.endswith("one"))


def test_steps_of_a_critic_that_steps_more_often_than_its_generator_are_counted_as_many(deep):
    """Which step is over is known late there: two at once, and then one."""
    makes, judges = Parts(one=nn.Linear(4, 4)), Parts(two=nn.Linear(4, 1))
    makers, judge = (torch.optim.SGD(model.parameters(), 0.01) for model in (makes, judges))
    for _ in range(STEPS):
        for _ in range(3):
            judge.zero_grad()
            (
                judges(torch.randn(2, 4)) - judges(makes(torch.randn(2, 4)).detach())
            ).mean().backward()
            judge.step()
        makers.zero_grad()
        judges(makes(torch.randn(2, 4))).mean().backward()
        makers.step()
    found = deep()
    assert sorted(found.row_steps[:2]) == [1, 2]
    calls = (found.calls[:2] * found.row_steps[:2, None]).sum(axis=0)  # of one turn, three steps
    by_name = dict(zip(found.names, calls.tolist(), strict=True))
    assert [count for name, count in by_name.items() if name.endswith("one")] == [4]
    assert [count for name, count in by_name.items() if name.endswith("two")] == [7]


def test_calls_of_another_thread_take_no_time_from_a_layer(deep):
    class CalledBeside(nn.Module):
        def forward(self, inputs, is_beside=False):
            if not is_beside:
                beside = threading.Thread(target=self, args=(inputs, True))
                beside.start()
                beside.join()
                time.sleep(WAIT_S)
            return inputs

    train(Parts(one=nn.Linear(4, 4), slow=CalledBeside()))
    found = deep()
    assert seconds(found, "host_forward", "slow") >= WAIT_S
    assert found.calls.tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_checkpointing_computes_again_is_told_apart(deep, use_reentrant):
    model = Parts(first=nn.Linear(4, 4), block=Checkpointed(WaitsForward(), use_reentrant))
    train(model)
    found = deep()
    assert seconds(found, "host_forward", "block.inner") >= WAIT_S
    assert seconds(found, "host_recompute", "block.inner") >= WAIT_S
    assert seconds(found, "host_backward", "block.inner") < WAIT_S
    assert found.calls[0].tolist() == [1, 1, 1, 1, 1]


def test_memory_that_layers_keep_for_backward_and_hold(deep):
    train(Parts(one=nn.Linear(8, 16), act=nn.ReLU(), two=nn.Linear(16, 8)), batch=32, width=8)
    found = deep()
    held = {
        key: dict(zip(found.names, values, strict=True)) for key, values in found.held_bytes.items()
    }
    assert held["parameters"] == {
        "": 0,
        "one": 4 * (8 * 16 + 16),
        "act": 0,
        "two": 4 * (16 * 8 + 8),
    }
    assert held["gradients"] == held["parameters"]
    assert held["optimizer"] == {"": 0, "one": 0, "act": 0, "two": 0}
    # The input of `one`, and the result of `act`, which is also the input of `two`.
    assert held["saved"] == {"": 0, "one": 4 * 32 * 8, "act": 4 * 32 * 16, "two": 0}


def test_training_is_the_same_with_and_without(deep):
    def trained():
        torch.manual_seed(1)
        model = Parts(
            one=nn.Linear(4, 8),
            act=nn.ReLU(inplace=True),
            drop=nn.Dropout(0.2),
            two=nn.Linear(8, 4),
        )
        train(model, steps=20)
        return model.state_dict()

    seen = trained()
    assert deep().steps
    for name, value in trained().items():  # the session is over
        assert torch.equal(value, seen[name]), name


def test_models_are_copied_and_pickled_in_a_step_that_is_looked_at(deep):
    model = Parts(one=nn.Linear(4, 4))
    pickled, copies = set(), []

    def keep():
        pickled.add(pickle.dumps(model.one).count(b"traceml"))
        copies.append(copy.deepcopy(model))

    train(model, beside=keep)
    assert deep().steps and pickled == {0}
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in copies)


def test_functional_gradients_work_in_every_step(deep):
    def gradients():
        gradient = torch.func.grad(lambda x: x.square().sum())(torch.ones(3))
        assert gradient.tolist() == [2, 2, 2]

    train(Parts(one=nn.Linear(4, 4)), beside=gradients)
    assert deep().steps


def test_a_script_that_saves_tensors_in_its_own_way_is_traced_and_left_alone(deep):
    model, packed = Parts(one=nn.Linear(4, 4)), []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        train(model)
    found = deep()
    assert len(packed) == STEPS * 2 and found.steps  # the input, and what the square keeps
    saved = dict(zip(found.names, found.held_bytes["saved"], strict=True))
    assert np.isnan(saved["one"])  # only their hooks know what is kept
    assert top_of_saved_tensors() is None


def top_of_saved_tensors():
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def test_a_script_that_forbids_to_save_tensors_in_other_ways_is_traced(deep):
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        train(Parts(one=nn.Linear(4, 4)))
    assert deep().steps


def test_a_model_is_freed_and_nothing_grows_between_bursts(traced, deep, monkeypatch):
    monkeypatch.setattr(bursts, "MEMORY_EVERY", 1)
    model = Parts(one=nn.Linear(4, 4))
    train(model)
    before = len(traced.session.restores)
    steps_of_burst = bursts.TIMED_STEPS + 2 + bursts.MIN_STEPS_BETWEEN
    train(model, steps=4 * steps_of_burst + 1)
    assert not module_hooks._global_forward_hooks
    assert len(traced.session.restores) <= before
    freed = weakref.ref(model)
    del model
    gc.collect()
    assert freed() is None
    assert len(deep().steps) > 4 * bursts.TIMED_STEPS


class _AddsToMainGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, weight):
        context.save_for_backward(inputs, weight)
        return inputs @ weight

    @staticmethod
    def backward(context, gradient):
        inputs, weight = context.saved_tensors
        weight.main_grad += inputs.t() @ gradient
        return gradient @ weight.t(), torch.zeros_like(weight)


class _KnowsItsWeight(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, weight, is_same):
        context.save_for_backward(inputs, weight)
        context.weight, context.is_same = weight, is_same
        return inputs @ weight

    @staticmethod
    def backward(context, gradient):
        inputs, weight = context.saved_tensors
        context.is_same.append(weight is context.weight)
        return gradient @ weight.t(), inputs.t() @ gradient, None


def test_a_saved_parameter_comes_back_as_itself_in_every_step(deep):
    is_same = []

    class Knows(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, inputs):
            return _KnowsItsWeight.apply(inputs, self.weight, is_same)

    train(Parts(knows=Knows()))
    assert deep().steps and is_same == [True] * STEPS


def test_attributes_of_a_saved_parameter_are_there_in_backward(deep):
    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))
            self.weight.main_grad = torch.zeros(4, 4)

        def forward(self, inputs):
            return _AddsToMainGradient.apply(inputs, self.weight)

    train(Parts(one=nn.Linear(4, 4), fused=Fused()))
    found = deep()
    saved = dict(zip(found.names, found.held_bytes["saved"], strict=True))
    assert found.steps and saved == {"": 0, "one": 32, "fused": 32}  # their inputs


class Counts(TorchDispatchMode):
    """A mode as scripts have them, to count operations."""

    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_script_s_around_the_model_s_call_is_left_as_it_was(deep, monkeypatch):
    monkeypatch.setattr(bursts, "COUNTED_BURST", 0)
    model, mode = Parts(one=nn.Linear(4, 4)), Counts()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    left = []
    for _ in range(STEPS + 4):
        with mode:
            loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        left.append(torch._C._len_torch_dispatch_stack())
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack()
    found = deep()
    assert found.steps and mode.operations and set(left) == {0}
    assert found.why_uncounted == OWN_MODE


def test_a_forked_child_has_none_of_the_parent_s_hooks(deep):
    hooks = []

    def fork():
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            nn.Linear(1, 1)(torch.zeros(1, 1))
            has_hooks = bool(module_hooks._global_forward_pre_hooks)
            os.write(writer, bytes([has_hooks, top_of_saved_tensors() is not None]))
            os._exit(0)
        hooks.append((bool(module_hooks._global_forward_pre_hooks), *os.read(reader, 2)))
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)

    train(Parts(one=nn.Linear(4, 4)), beside=fork)
    assert deep().steps
    assert {(False, 0, 0), (True, 0, 0)} == set(hooks)


def test_operations_are_counted_where_an_optimizer_keeps_its_step_from_the_compiler(
    deep, monkeypatch
):
    monkeypatch.setattr(bursts, "COUNTED_BURST", 0)
    torch._dynamo.disable(lambda: None)()  # as every optimizer's step is, once dynamo is loaded
    train(Parts(one=nn.Linear(4, 4, bias=False)), steps=STEPS + 4)
    found = deep()
    # Two rows of four through a matrix of four by four; backward its gradient alone.
    assert [*found.counted["forward_flops"]] == [0, 2 * 2 * 4 * 4]
    assert [*found.counted["backward_flops"]] == [0, 2 * 2 * 4 * 4]


def test_operations_are_counted_later_where_a_profiler_begins_in_the_step_for_it(deep, monkeypatch):
    """As recordings of `--kineto` do: without it the burst ends with that step."""
    monkeypatch.setattr(bursts, "COUNTED_BURST", 0)
    steps = []

    def record():
        steps.append(None)
        if len(steps) == FIRST_BURST + bursts.TIMED_STEPS + 2:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                pass

    train(Parts(one=nn.Linear(4, 4, bias=False)), steps=3 * STEPS, beside=record)
    assert [*deep().counted["forward_flops"]] == [0, 2 * 2 * 4 * 4]


def test_a_step_whose_count_stays_in_torch_for_another_is_written_once(deep, monkeypatch):
    """A mode of the script's may lie above ours for some steps."""
    monkeypatch.setattr(bursts, "COUNTED_BURST", 0)
    ended, refused, really = [], [], bursts.OperationSteps.take_out
    end = bursts.OperationSteps.end

    def take_out(look):
        if ended and len(refused) < 2:
            refused.append(ended[-1])
            return False
        return really(look)

    def end_once(look, step, steps):
        ended.append(step)
        return end(look, step, steps)

    monkeypatch.setattr(bursts.OperationSteps, "end", end_once)
    monkeypatch.setattr(bursts.OperationSteps, "take_out", take_out)
    train(Parts(one=nn.Linear(4, 4)), steps=STEPS + 8)
    assert len(refused) == 2 and len(ended) == 1
    assert deep().counted["forward_flops"].sum() > 0


def test_a_count_that_fails_ends_with_its_first_failure(traced, monkeypatch):
    class FailingFormulas:
        def get(self, operation):
            raise ArithmeticError("an odd shape")

    monkeypatch.setattr(bursts, "COUNTED_BURST", 0)
    monkeypatch.setattr(flop_formulas, "flop_registry", FailingFormulas())
    counted = []
    monkeypatch.setattr(traced.session, "failed", counted.append)
    traced.session.begin_deep_profile()
    train(Parts(one=nn.Linear(4, 4), two=nn.Linear(4, 4)), steps=STEPS + 4)
    assert [str(error) for error in counted] == ["an odd shape"]
    assert torch._C._len_torch_dispatch_stack() == 0
    traced.finish()
    (found,) = read_layers(traced.folder)
    assert found.steps and found.why_uncounted == FAILED


def test_that_a_model_has_too_many_modules_is_said_once(deep, monkeypatch):
    for module in (bursts, layer_names):
        monkeypatch.setattr(module, "MAX_LAYERS", 3)
    train(Parts(**{f"part{n}": nn.Linear(4, 4) for n in range(4)}), steps=4 * STEPS)
    found = deep()
    assert len(found.names) == 3 and found.notes == (bursts.TOO_MANY,)


def test_layers_on_several_devices_are_said_once(deep, monkeypatch):
    model = Parts(one=nn.Linear(4, 4))
    model.one.unused = nn.Linear(4, 4, device="meta")
    train(model, steps=4 * STEPS)
    (note,) = deep().notes
    assert "on several devices (cpu, meta): layers are timed on the host" in note


def test_what_people_state_of_their_device_is_kept(deep, monkeypatch):
    monkeypatch.setenv("TRACEML_DEVICE_PEAKS", "fp32=0.1,memory=0.02")
    train(Parts(one=nn.Linear(4, 4)))
    assert deep().stated_peaks == "fp32=0.1,memory=0.02"


def test_nothing_of_it_is_left_when_the_session_ends_in_a_burst(deep):
    train(Parts(one=nn.Linear(4, 4)), steps=FIRST_BURST + 1)
    deep()
    assert not module_hooks._global_forward_hooks and not module_hooks._global_forward_pre_hooks


def test_an_exception_of_the_model_s_goes_its_way(deep):
    model, calls = Parts(one=nn.Linear(4, 4)), []

    class Fails(nn.Module):
        def forward(self, inputs):
            calls.append(1)
            if len(calls) == FIRST_BURST + 1:
                raise ArithmeticError("mine")
            return inputs

    model.fails = Fails()
    with pytest.raises(ArithmeticError, match="mine"):
        train(model)
    train(model)
    assert len(deep().steps) >= 2


def test_the_next_burst_waits_for_what_the_last_one_cost(traced, monkeypatch):
    """On a clock that says that steps take a second, and twice as long while they are looked at."""
    now = [0]

    def clock():
        return now[0]

    def pass_time():
        now[0] += 2_000_000_000 if module_hooks._global_forward_hooks else 1_000_000_000

    monkeypatch.setattr(bursts, "perf_counter_ns", clock)
    traced.session.begin_deep_profile()
    train(Parts(one=nn.Linear(4, 4)), steps=FIRST_BURST + 220, beside=pass_time)
    traced.finish()
    (found,) = read_layers(traced.folder)
    first, second, third = found.steps[:3]
    assert (first, second) == (FIRST_BURST + 1, FIRST_BURST + 2)
    # Three steps took a second more each: the next burst comes when that is a share of the time.
    # One step more shows where a step begins.
    time_before_third = third - 1 + 3 - 1
    assert time_before_third == 3 / LAYERS_SHARE


def test_writing_what_was_seen_is_counted_as_a_cost(traced, monkeypatch):
    """On a clock on which each timed step takes half a second to write, and nothing else takes more
    than usual; looking at a step costs a tenth of it at least."""
    now = [0]

    def pass_time():
        now[0] += 1_000_000_000

    tell = TimedSteps._tell

    def tell_slowly(*given):
        now[0] += 500_000_000
        tell(*given)

    monkeypatch.setattr(bursts, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(TimedSteps, "_tell", tell_slowly)
    traced.session.begin_deep_profile()
    train(Parts(one=nn.Linear(4, 4)), steps=FIRST_BURST + 150, beside=pass_time)
    traced.finish()
    (found,) = read_layers(traced.folder)
    cost_s = 2 * 0.5 + 3 * bursts.MIN_COST
    assert found.steps[2] == pytest.approx(cost_s / LAYERS_SHARE, abs=4)


def test_naming_the_model_begins_it(traced):
    import traceml

    model = traceml.trace_model_instance(Parts(one=nn.Linear(4, 4)))
    train(model)
    traced.finish()
    (found,) = read_layers(traced.folder)
    assert found.steps


def test_without_the_deep_profile_nothing_is_written(traced):
    train(Parts(one=nn.Linear(4, 4)))
    traced.finish()
    assert read_layers(traced.folder) == ()


class _WaitInLoss(torch.autograd.Function):
    @staticmethod
    def forward(context, outputs):
        context.shape = outputs.shape
        return outputs.square().mean()

    @staticmethod
    def backward(context, gradient):
        time.sleep(WAIT_S)
        return gradient * torch.ones(context.shape)


class CallsSlowly(Parts):
    """A model with something around its call that is none of its layers."""

    def __call__(self, inputs):
        time.sleep(2 * WAIT_S)
        return super().__call__(inputs)


def test_layers_and_the_rest_are_the_phase_of_the_same_steps(traced):
    """What the recorder measures of these steps, independently, is the sum of both."""
    traced.session.begin_deep_profile()
    model = CallsSlowly(slow=WaitsForward(), checked=Checkpointed(WaitsForward(), False))
    model.last = WaitsBackward()
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        loss = _WaitInLoss.apply(model(torch.randn(2, 4)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows = traced.complete()
    (found,) = read_layers(traced.folder)
    assert len(found.steps) == 2
    phases_ns = {
        phase: np.array([rows[f"{phase}_ns"][step - 1] for step in found.steps], float)
        for phase in ("forward", "backward")
    }
    in_layers = {phase: found.times_ns[f"host_{phase}"].sum(axis=1) for phase in phases_ns}
    in_layers["backward"] += found.times_ns["host_recompute"].sum(axis=1)
    for phase, wanted in phases_ns.items():
        rest = found.outside_ns[f"host_{phase}"]
        assert (rest >= WAIT_S * 1e9).all()
        # On a busy machine one of the two may be interrupted between our mark and the recorder's.
        assert np.abs((in_layers[phase] + rest) / wanted - 1).min() < 0.05, phase


def test_the_rest_is_not_known_of_gradients_that_were_asked_for_in_another_way(deep):
    model = Parts(one=nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        loss = model(torch.randn(2, 4)).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    found = deep()
    assert np.isfinite(found.outside_ns["host_forward"]).all()
    assert "host_backward" in found.times_ns and np.isnan(found.outside_ns["host_backward"]).all()


def test_the_rest_is_not_known_where_some_gradients_were_asked_for_in_another_way(deep):
    """A gradient penalty, for one: what it takes is no part of the phase."""
    model = Parts(one=nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        inputs = torch.randn(2, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        (model(inputs).square().mean() + slope.square().mean()).backward()
        optimizer.step()
    found = deep()
    assert "host_backward" in found.times_ns and np.isnan(found.outside_ns["host_backward"]).all()


def test_what_it_costs_to_find_where_a_step_begins_puts_off_no_first_look(traced, monkeypatch):
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 0.5)
    monkeypatch.setattr(bursts.UsualCost, "charge", lambda cost, took_ns: 1e15)
    traced.session.begin_deep_profile()
    train(Parts(one=nn.Linear(4, 4)), steps=FIRST_BURST + 30)
    traced.finish()
    (found,) = read_layers(traced.folder)
    assert len(found.steps) == bursts.TIMED_STEPS


def test_a_step_with_more_calls_than_are_kept_is_said_not_to_be_seen(deep, monkeypatch):
    monkeypatch.setattr(layer_marks, "MAX_MARKS", 6)
    train(Parts(one=nn.Linear(4, 4), two=nn.Linear(4, 4)), steps=FIRST_BURST + 2 * MAX_LOST)
    found = deep()
    assert not found.steps and TOO_MANY_CALLS in found.notes


MAX_HELD_BYTES = 64 << 20
"""What the deep profile may hold in the training process, however long the run is."""


def test_what_is_held_is_bounded_whatever_the_model_and_the_length_of_the_run():
    """By the most of everything that is kept between hooks, and the size of one of it."""
    text = sys.getsizeof("encoder.layers.100.attention.output.dense")
    layer = sys.getsizeof(LayerName("a", "b", True)) + text
    mark = sys.getsizeof(LayerMark(0, 0, 1, None, 1)) + 3 * sys.getsizeof(1 << 60) + 8
    norm = sys.getsizeof(1.5) + 8
    operation = sys.getsizeof(UsualOperation("a", 1)) + 2 * text
    output = sys.getsizeof(ReturnedMemory(0, 0, 1 << 60, None)) + 4 * 64
    for layers in (1, 100, 2_000, MAX_LAYERS):
        rows = gradient_norms._cadence(layers).recent + MAX_COMING
        held = (
            MAX_PENDING * MAX_MARKS * mark  # of the steps that the GPU has not passed
            + rows * layers * norm
            + 3 * layers * layer  # of the last line, of norms, and of outputs that are followed
            + layers * (text + 100)  # what each module held at first, by name
            + MAX_LEARNED * operation
            + 2 * MAX_OUTPUTS * output  # of the step that is followed, and what is left of another
        )
        assert held < MAX_HELD_BYTES, (layers, held)
