"""A profiler of the script's own sees only the script's work, and ours make room for it."""

import os
import threading

import pytest
import torch
from torch import nn
from torch.autograd import profiler
from torch.profiler import ProfilerActivity, profile, schedule

from traceml.store.layer_records import read_layers
from traceml.trace.deep import bursts, gradient_norms, kernel_steps, kernels
from traceml.trace.deep.kernel_steps import GRAPHS, NSIGHT, KernelSteps
from traceml.trace.deep.kernels import KernelRecording
from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.profiler_turns import NSYS, TEARDOWN, ProfilerTurns, new_profile

STEPS = 40


@pytest.fixture
def eager(traced, monkeypatch):
    """A session whose deep profile looks as often as it can."""
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 100.0)
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 100.0)
    traced.session.begin_deep_profile()
    return traced


def step_of(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def operations(trace):
    """The operations of a trace; an annotation is none."""
    return [event.name for event in trace.events() if event.name.startswith("aten::")]


def test_every_trace_of_the_script_s_own_holds_the_script_s_work_alone(eager):
    step, seen = step_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))), []
    step()
    for number in range(STEPS):
        if number % 3 == 2:
            with profile(activities=[ProfilerActivity.CPU]) as trace:
                step()
            seen.append(operations(trace))
        else:
            step()
    assert all(each == seen[0] for each in seen) and "aten::addmm" in seen[0]
    assert "aten::_foreach_norm" not in seen[0]
    assert eager.session._failures == 0


def test_a_profiler_with_a_schedule_has_its_way_from_its_preparation_on(eager, monkeypatch):
    step, turns, seen = step_of(nn.Linear(4, 1)), [], []
    monkeypatch.setattr(bursts.Bursts, "_may_look", remember(turns, bursts.Bursts._may_look))
    plan = schedule(wait=2, warmup=2, active=2, repeat=2)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=lambda trace: seen.append(operations(trace)),
    ) as theirs:
        for _ in range(12):
            turns.clear()
            step()
            assert any(turns) == (theirs.current_action.name == "NONE")
            theirs.step()
    assert len(seen) == 2 and seen[0] == seen[1] != []
    turns.clear()
    step()
    assert any(turns)


def remember(answers, function):
    def remembering(self):
        answers.append(function(self))
        return answers[-1]

    return remembering


def test_recording_kernels_makes_room_for_the_script_s_profiler(traced, monkeypatch):
    monkeypatch.setattr(kernels, "new_profile", lambda **_: new_profile(on_cpu=True, on_gpu=False))
    turns = ProfilerTurns(traced.session)
    recording = KernelRecording(turns, "cpu")
    turns.enders.append(recording.end)
    assert turns.is_free and recording.begin()
    assert turns.is_running and os.environ[TEARDOWN] == "1"
    with profile(activities=[ProfilerActivity.CPU]) as theirs:
        assert TEARDOWN not in os.environ and not recording.begin()
        torch.ones(3).sum()
    assert "aten::sum" in operations(theirs)
    assert turns.is_free and recording.begin()
    recording.end()
    assert not turns.is_running and TEARDOWN not in os.environ


@pytest.fixture
def recording(traced, monkeypatch):
    monkeypatch.setattr(kernels, "new_profile", lambda **_: new_profile(on_cpu=True, on_gpu=False))
    return KernelRecording(ProfilerTurns(traced.session), "cpu")


def test_torch_believes_in_a_profiler_no_longer_than_kernels_are_recorded(recording):
    """Compiled code asks for that before it launches a kernel."""
    assert recording.begin() and profiler._is_profiler_enabled
    recording.end()
    assert not profiler._is_profiler_enabled


def test_torch_believes_in_no_profiler_that_could_not_begin(recording, monkeypatch):
    def fail(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr(profiler, "_enable_profiler", fail)
    with pytest.raises(RuntimeError, match="no room"):
        recording.begin()
    assert not profiler._is_profiler_enabled


def test_a_version_of_torch_that_remembers_no_profiler_is_told_nothing(recording, monkeypatch):
    assert recording.begin()
    monkeypatch.delattr(profiler, "_run_on_profiler_stop")
    recording.end()
    assert not torch._C._autograd._profiler_enabled()
    profiler._set_is_profiler_enabled(False)


def test_in_a_child_that_is_forked_meanwhile_torch_believes_in_no_profiler(traced, recording):
    assert recording.begin()
    child = os.fork()
    if child == 0:
        traced.session.forget_parent()
        os._exit(profiler._is_profiler_enabled)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert profiler._is_profiler_enabled
    recording.end()


@pytest.mark.parametrize(("device", "waits_for"), [("cpu", []), ("cuda:1", ["cuda:1"])])
def test_the_end_of_a_recording_waits_for_the_device_of_the_layers(
    traced, monkeypatch, device, waits_for
):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    monkeypatch.setattr(kernels, "new_profile", lambda **_: new_profile(on_cpu=True, on_gpu=False))
    recording = KernelRecording(ProfilerTurns(traced.session), device)
    assert recording.begin()
    recording.end()
    assert waited == waits_for


def test_a_setting_of_the_script_s_own_stays(traced, monkeypatch):
    monkeypatch.setenv(TEARDOWN, "0")
    monkeypatch.setattr(kernels, "new_profile", lambda **_: new_profile(on_cpu=True, on_gpu=False))
    recording = KernelRecording(ProfilerTurns(traced.session), "cpu")
    assert recording.begin() and os.environ[TEARDOWN] == "0"
    recording.end()
    assert os.environ[TEARDOWN] == "0"


def test_a_child_that_is_forked_while_kernels_are_recorded_has_its_environment_back(
    traced, monkeypatch
):
    monkeypatch.setattr(kernels, "new_profile", lambda **_: new_profile(on_cpu=True, on_gpu=False))
    recording = KernelRecording(ProfilerTurns(traced.session), "cpu")
    traced.session.forgets.append(recording.forget)
    assert recording.begin()
    child = os.fork()
    if child == 0:
        traced.session.forget_parent()
        os._exit(TEARDOWN in os.environ or recording.end() != [])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.environ[TEARDOWN] == "1"
    recording.end()
    assert TEARDOWN not in os.environ


def test_a_profiler_that_cannot_begin_is_not_taken_for_one_that_runs(traced, monkeypatch):
    def fail(this):
        raise RuntimeError("no room")

    monkeypatch.setattr(torch.autograd.profiler.profile, "_prepare_trace", fail)
    turns = ProfilerTurns(traced.session)
    with pytest.raises(RuntimeError, match="no room"), profile(activities=[ProfilerActivity.CPU]):
        pass
    assert not turns.is_running


def test_nothing_of_ours_records_under_nsight_systems(traced, monkeypatch):
    turns = ProfilerTurns(traced.session)
    monkeypatch.setenv(NSYS, "1")
    assert not turns.is_free and not KernelRecording(turns, "cpu").begin()


@pytest.mark.parametrize(
    ("uses_graphs", "session_of_nsight", "said"),
    [(True, "", (GRAPHS,)), (False, "1", (NSIGHT,)), (False, "", ())],
)
def test_why_no_kernels_are_recorded_is_said_once(
    traced, monkeypatch, uses_graphs, session_of_nsight, said
):
    if session_of_nsight:
        monkeypatch.setenv(NSYS, session_of_nsight)
    monkeypatch.setattr(kernel_steps, "is_on_one_gpu", lambda session, layers: True)
    turns = ProfilerTurns(traced.session)
    monkeypatch.setattr(turns, "_prepared", True)  # as by a profiler of the script's
    file = LayerFile(traced.session)
    steps = KernelSteps(traced.session, file, lambda: uses_graphs, turns)
    assert [steps.begin([]) for _ in range(3)] == [False] * 3
    assert [note for each in read_layers(traced.folder) for note in each.notes] == list(said)


def test_a_recording_is_ended_by_the_thread_that_began_it_not_by_one_that_compiles(
    traced, monkeypatch
):
    monkeypatch.setattr(kernels, "new_profile", lambda **_: new_profile(on_cpu=True, on_gpu=False))
    session, turns, left = traced.session, ProfilerTurns(traced.session), []
    session.follow_this_thread()
    steps = KernelSteps(session, LayerFile(session), lambda: False, turns)
    steps._recording = KernelRecording(turns, "cpu")
    assert steps._recording.begin()
    compiling = threading.Thread(target=lambda: left.append(steps.take_out()))
    compiling.start()
    compiling.join()
    assert left == [False] and turns.is_running
    assert steps.end(step=5) is None and steps.take_out()
    assert not turns.is_running
