"""`--kineto`: whole traces of single steps, chosen while training goes on."""

import contextlib
import gzip
import json
import os

import pytest
import torch
from torch import nn
from torch.autograd import profiler
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from traceml.model.environment import KINETO, PROFILE
from traceml.store.step_trace_records import read_step_traces
from traceml.trace import hooks, step_recording, step_traces
from traceml.trace.profiler_turns import ProfilerTurns, new_profile
from traceml.trace.step_boundary import FetchWatch
from traceml.trace.step_choice import FIRST_STEP, MIN_STEPS_BETWEEN
from traceml.trace.step_recording import StepRecording

STEPS = FIRST_STEP + 4 * MIN_STEPS_BETWEEN


@pytest.fixture
def recording(monkeypatch, tmp_path, traced_in):
    """Begins a session that keeps traces of so many steps; the files it left, when it is over."""

    def start(count=2, **environment):
        monkeypatch.setenv(KINETO, str(count))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        traced = traced_in(tmp_path)

        def found():
            traced.finish()
            (records,) = read_step_traces(tmp_path)
            left = {path.name for path in tmp_path.glob("*kineto*")}
            assert left == {f"kineto-{os.getpid()}.jsonl", *(each.file for each in records.kept)}
            assert not torch._C._autograd._profiler_enabled()
            assert not profiler._is_profiler_enabled  # compiled code asks for that at each kernel
            return records

        found.session = traced.session
        return found

    return start


def events_of(folder, kept):
    with gzip.open(folder / kept.file) as file:
        return json.load(file)


def names_of(folder, kept, beginning):
    events = events_of(folder, kept)["traceEvents"]
    return {event["name"] for event in events if event.get("name", "").startswith(beginning)}


def step_of(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(inputs):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def train(steps=STEPS, beside=lambda number: None, loader=True):
    step = step_of(nn.Linear(4, 4))
    batches = DataLoader(torch.randn(2 * steps, 4), batch_size=2) if loader else [None] * steps
    for number, batch in enumerate(batches, start=1):
        with record_function(f"mine {number}"):
            beside(number)
            step(torch.randn(2, 4) if batch is None else batch)


@pytest.mark.parametrize("loader", [True, False], ids=["with a loader", "without"])
@pytest.mark.parametrize("profile_kind", ["essential", "deep"])
def test_a_trace_holds_exactly_the_step_in_its_name(recording, tmp_path, loader, profile_kind):
    found = recording(3, **{PROFILE: profile_kind})
    train(loader=loader)
    records = found()
    assert records.asked == 3 and len(records.kept) == 3 <= len(records.recorded)
    assert sorted(each.is_ for each in records.kept) == ["typical", "typical", "worst"]
    for kept in records.kept:
        assert kept.file == f"kineto-rank-0-step-{kept.step}-pid-{os.getpid()}.json.gz"
        assert names_of(tmp_path, kept, "mine") == {f"mine {kept.step}"}
        assert names_of(tmp_path, kept, "ProfilerStep") == {f"ProfilerStep#{kept.step}"}
        assert "aten::addmm" in names_of(tmp_path, kept, "aten")
        assert "aten::_foreach_norm" not in names_of(tmp_path, kept, "aten")  # nothing of ours
        whole = events_of(tmp_path, kept)
        assert whole["traceml"] == {"rank": 0, "step": kept.step}
        shapes = [event for event in whole["traceEvents"] if event["name"] == "aten::addmm"]
        assert shapes[0]["args"]["Input Dims"]
    assert records.cost_ns > 0 and not records.notes


def test_of_two_optimizers_in_turn_both_are_in_the_trace(recording, tmp_path):
    found = recording(1)
    first, second = step_of(nn.Linear(4, 4)), step_of(nn.Linear(4, 2))
    for _ in range(STEPS):
        with record_function("first one"):
            first(torch.randn(2, 4))
        with record_function("second one"):
            second(torch.randn(2, 4))
    (kept,) = found().kept
    assert names_of(tmp_path, kept, "first") and names_of(tmp_path, kept, "second")


@pytest.mark.parametrize("is_loader", [True, False], ids=["with a loader", "without"])
@pytest.mark.parametrize("is_judge_first", [True, False], ids=["judge first", "makers first"])
def test_the_trace_of_two_optimizers_on_one_batch_holds_one_whole_step(
    recording, tmp_path, is_loader, is_judge_first
):
    found = recording(2)
    makes, judges = nn.Linear(4, 4), nn.Linear(4, 1)
    makers, judge = (torch.optim.SGD(model.parameters(), 0.01) for model in (makes, judges))
    data = DataLoader(torch.randn(2 * STEPS, 4), batch_size=2)
    for number, real in enumerate(data if is_loader else [torch.randn(2, 4)] * STEPS, start=1):
        with record_function(f"made {number}"):
            made = makes(torch.randn(2, 4))
        turns = [("judge", judge, made.detach(), real), ("makers", makers, made, real)]
        for name, optimizer, given, real_ones in turns if is_judge_first else turns[::-1]:
            with record_function(f"{name} {number}"):
                optimizer.zero_grad()
                (judges(given).mean() - judges(real_ones).mean()).backward()
                optimizer.step()
    kept = found().kept
    assert len(kept) == 2
    for each in kept:
        for name in ("made", "judge", "makers"):
            assert names_of(tmp_path, each, name) == {f"{name} {each.step}"}


def test_the_slow_step_that_recurs_is_recorded(recording, monkeypatch):
    monkeypatch.setattr(step_traces, "SHARE", 1e9)
    waits = iter(range(10**9))
    clock = {"now": 0}

    def now():
        return clock["now"] + next(waits)

    monkeypatch.setattr(step_traces, "perf_counter_ns", now)
    monkeypatch.setattr(step_recording, "perf_counter_ns", now)

    def beside(number):
        clock["now"] += 500_000_000 if number % 8 == 0 else 10_000_000

    found = recording(2)
    train(steps=140, beside=beside)
    later = [step % 8 == 0 for step, _ in found().recorded if step > 50]
    assert sum(later) >= 0.4 * len(later) > 0, later  # by chance every eighth


def test_a_profiler_of_the_script_s_own_has_its_way(recording):
    found, step, seen = recording(2), step_of(nn.Linear(4, 4)), []
    for number in range(STEPS):
        if number % 4 == 3:
            with profile(activities=[ProfilerActivity.CPU]) as theirs:
                step(torch.randn(2, 4))
            seen.append([event.name for event in theirs.events()])
        else:
            step(torch.randn(2, 4))
    records = found()
    assert step_traces.THEIRS in records.notes
    assert all(each == seen[0] for each in seen) and "aten::addmm" in seen[0]


def test_a_profiler_that_the_script_begins_in_a_recorded_step_throws_ours_away(recording):
    found = recording(1)
    seen = []

    def beside(number):
        if torch._C._autograd._profiler_enabled() and not seen:
            with profile(activities=[ProfilerActivity.CPU]) as theirs:
                torch.ones(3).sum()
            seen.extend(event.name for event in theirs.events())

    train(beside=beside)
    records = found()
    assert "aten::sum" in seen and step_traces.THEIRS in records.notes
    assert len(records.kept) == 1  # of a later step


def test_a_worker_that_is_forked_in_a_recorded_step_records_nothing(recording):
    found, statuses = recording(1), []
    fork = os.fork

    def beside(number):
        if torch._C._autograd._profiler_enabled():
            child = os.fork()
            if child == 0:
                with record_function("in the child"):
                    torch.ones(3).sum()
                is_believed = profiler._is_profiler_enabled
                events = torch._C._autograd._disable_profiler().events()
                os._exit(is_believed or any("child" in event.name() for event in events))
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    train(beside=beside)
    assert len(found().kept) == 1
    assert statuses and not any(statuses) and os.fork is fork


@pytest.mark.slow
def test_workers_of_a_loader_that_start_in_a_recorded_step_do_their_work(recording):
    found, step = recording(1), step_of(nn.Linear(4, 4))
    for _ in range(FIRST_STEP + 3):  # every step has a loader of its own
        for batch in DataLoader(torch.randn(2, 4), batch_size=2, num_workers=1):
            step(batch)
    assert len(found().kept) == 1


def test_a_recording_waits_for_every_device_that_the_script_uses_and_for_no_other(
    recording, monkeypatch
):
    """The current device need not be one of them; waiting for it would take memory there."""
    waited = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    has_context = (False, True, False, True)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", has_context.__getitem__, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    found = recording(1)
    session = found.session
    here = StepRecording(session, ProfilerTurns(session), FetchWatch(session), lambda: None)
    monkeypatch.setattr(
        step_recording,
        "new_profile",
        lambda **_: new_profile(on_cpu=True, on_gpu=False),
    )
    here.begin(1)
    assert waited == [1, 3]
    here.end()
    assert waited == [1, 3, 1, 3]


def test_an_interrupted_step_leaves_no_trace_and_no_profiler(recording):
    found = recording(1)

    def beside(number):
        if torch._C._autograd._profiler_enabled():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(beside=beside)
    found.session.finish()
    assert not torch._C._autograd._profiler_enabled()
    (records,) = read_step_traces(found.session.run_folder)
    assert records.kept == () and records.notes == (step_traces.TOO_SHORT,)


@pytest.mark.parametrize("place", ["took_ns", "_wait_for_gpu"], ids=["before", "while"])
def test_an_interruption_while_a_recording_ends_leaves_no_profiler(recording, monkeypatch, place):
    """The script goes on: it was not its last step."""
    found, original, left = recording(1), getattr(StepRecording, place), [1]

    def interrupted(self):
        is_ending = place == "took_ns" or self._annotation is None
        if left and self.is_on and is_ending:
            left.clear()
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(StepRecording, place, interrupted)
    step = step_of(nn.Linear(4, 4))
    for _ in range(STEPS):
        with contextlib.suppress(KeyboardInterrupt):
            step(torch.randn(2, 4))
    records = found()
    assert not left and (step_traces.INTERRUPTED in records.notes) == (place == "took_ns")
    (kept,) = records.kept  # of a later step
    events = events_of(found.session.run_folder, kept)["traceEvents"]
    assert sum(event["name"].startswith("Optimizer.step") for event in events) == 1


def test_a_trace_that_cannot_be_written_is_said_and_training_goes_on(recording, monkeypatch):
    def fail(result, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step_traces, "write_trace", fail)
    found = recording(2)
    train()
    records = found()
    assert records.kept == () and "No space left on device" in records.notes[0]


def test_a_step_with_an_evaluation_in_it_is_given_up_while_it_runs(recording, monkeypatch):
    monkeypatch.setattr(step_traces, "MAX_RECORDING_S", 1e-9)
    monkeypatch.setattr(step_traces, "MAX_TIMES_USUAL", 0.0)
    monkeypatch.setattr(step_traces, "SHARE", 0.0)
    found, seen = recording(1), []

    def beside(number):
        if torch._C._autograd._profiler_enabled():
            for _ in DataLoader(torch.randn(4, 4)):
                seen.append(torch._C._autograd._profiler_enabled())

    train(beside=beside, loader=False)
    assert seen and not any(seen)
    records = found()
    assert records.notes == (step_traces.TOO_LONG,) and records.kept == ()
    assert len(records.recorded) == 2  # the one asked for, and one that the budget pays for


def test_of_many_ranks_the_first_ones_record(recording, monkeypatch):
    monkeypatch.setenv("RANK", "8")
    monkeypatch.setenv("WORLD_SIZE", "16")
    found = recording(1)
    train()
    records = found()
    assert records.notes == (step_traces.OTHER_RANKS,) and not records.recorded


def test_a_script_that_ends_before_training_is_warm_says_so(recording):
    found = recording(2)
    train(steps=FIRST_STEP - 1)
    records = found()
    assert records.kept == () and records.notes == (step_traces.TOO_SHORT,)


def test_a_process_that_takes_no_step_leaves_no_file(recording, tmp_path):
    recording(2).session.finish()
    assert read_step_traces(tmp_path) == ()


@pytest.mark.parametrize(
    ("asked", "steps"),
    [(None, 0), ("", 0), ("3", 3), ("-1", 0), ("many", 0), ("²", 0), ("99999", 20), ("9" * 30, 0)],
)
def test_what_the_environment_asks_for(asked, steps):
    assert hooks.kineto_steps(asked) == steps
