"""The tree of calls of each phase has every sample once, in the phase that it was taken in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from factories import STARTED_UNIX_S, make_run, map_steps
from traceml.facts import host_time as host_times
from traceml.facts.host_time import MIN_LOOKS, NO_HOST_TIME, HostPhase, HostTime, host_time
from traceml.model.sample import CodeLine, StackBurst, StackFrame, StackSample
from traceml.store.records import RunRecords

MAIN = StackFrame("main", "train.py", 40, True)
LOADER = StackFrame("__next__", "torch/utils/data/dataloader.py", 700)
COLLATE = StackFrame("collate", "train.py", 9, True)
FORWARD = StackFrame("linear", "torch/nn/modules/linear.py", 125)
VALIDATE = StackFrame("validate", "train.py", 20, True)
Looked = tuple[float, str, Sequence[StackFrame], CodeLine | None]


def burst_of(*looked: Looked, pid: int = 1000, is_of_worker: bool = False) -> StackBurst:
    """A burst that looked at these seconds, phases and stacks, the outermost call first."""
    frames: dict[StackFrame, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    samples = []
    for at_s, phase, stack, caller in looked:
        places = tuple(frames.setdefault(frame, len(frames)) for frame in stack)
        place = stacks.setdefault(places, len(stacks))
        at_unix_s = STARTED_UNIX_S + at_s
        samples.append(StackSample(at_unix_s, 1, phase, caller=caller, stack=place))
    return StackBurst(
        rank=0,
        pid=pid,
        way="py-spy",
        looks=len(samples) + 1,
        torn=1,
        samples=tuple(samples),
        frames=tuple(frames),
        stacks=tuple(stacks),
        lasted_s=2.0,
        cpu_s=0.02,
        is_of_worker=is_of_worker,
    )


def looked(
    number: int, phase: str, *stack: StackFrame, first_s: float = 1.0, called: int | None = None
) -> list[Looked]:
    """So many looks at one stack; a phase was called from that line of the first call."""
    caller = None if called is None else CodeLine(stack[0].function, stack[0].file, called)
    return [(first_s + 0.01 * each, phase, stack, caller) for each in range(number)]


def seen(run: RunRecords, *bursts: StackBurst) -> HostTime:
    return host_time(bursts, run.ranks, warmup=0)


def tree(phase: HostPhase) -> list[tuple[str, int, int, int]]:
    return [(call.function, call.parent, call.looks, call.own) for call in phase.calls]


def test_calls_are_counted_with_what_they_called() -> None:
    other = replace(COLLATE, line=12)
    found = seen(
        make_run(),
        burst_of(
            *looked(20, "input", MAIN, LOADER, COLLATE),
            *looked(5, "input", MAIN, LOADER, other),
            *looked(15, "input", MAIN, LOADER),
            *looked(40, "forward", MAIN, FORWARD),
        ),
    )
    assert (found.looks, found.outside, found.torn, found.way) == (80, 0, 1, "py-spy")
    assert found.rate_hz == pytest.approx(40.5)
    assert found.core_share == pytest.approx(0.01)
    waiting = found.phases["input"]
    assert tree(waiting) == [("main", -1, 40, 0), ("__next__", 0, 40, 15), ("collate", 1, 25, 25)]
    assert waiting.calls[2].line == 9  # of both, the more frequent one
    assert list(found.phases) == ["input", "forward"]


def test_places_are_the_users_innermost_functions_with_an_interval() -> None:
    samples = [*looked(60, "input", MAIN, LOADER, COLLATE), *looked(20, "input", MAIN, LOADER)]
    first, second = seen(make_run(), burst_of(*samples)).phases["input"].places
    assert (first.function, first.looks, first.share) == ("collate", 60, 0.75)
    # Wider than Wilson's interval of 60 of 80, because successive samples are not independent.
    assert 0.0 <= first.low < 0.645 and 0.832 < first.high <= 1.0
    assert (first.called_by, first.inside) == ("main", None)
    assert (second.function, second.called_by) == ("main", None)
    assert second.inside == "__next__ (torch/utils/data/dataloader.py)"


def test_lines_of_the_loop_are_told_apart_and_those_of_other_functions_are_not() -> None:
    loop = [replace(MAIN, line=line) for line in (40, 41)]
    samples = [
        *looked(20, "forward", loop[0], FORWARD, called=40),
        *looked(12, "residual", loop[0]),
        *looked(12, "residual", loop[1], COLLATE),
        *looked(12, "residual", loop[1], replace(COLLATE, line=30)),
    ]
    rest = seen(make_run(), burst_of(*samples)).phases["residual"]
    assert [(call.function, call.line, call.looks) for call in rest.calls] == [
        ("main", 40, 12),
        ("main", 41, 24),
        ("collate", 9, 24),
    ]


def evaluated_run() -> RunRecords:
    """Twenty steps of 0.5 s; the tenth holds 0.2 s of evaluation."""

    def evaluate(steps: Any, _: int) -> None:
        steps["evaluation_ns"][9] = 200_000_000
        steps["body_ns"] = steps["wall_ns"] - steps["input_ns"] - steps["evaluation_ns"]

    return map_steps(make_run(steps=20, noise=0, between_ms=463.0), evaluate)


def test_what_follows_an_evaluation_is_between_steps() -> None:
    """The tenth step's record: 0.2 s of evaluation, 0.263 s of something else, and the step."""
    run = make_run(steps=20, noise=0, between_ms=463.0)
    run = map_steps(run, lambda steps, rank: steps["evaluation_ns"].__setitem__(9, 200_000_000))
    draw = replace(MAIN, line=60)
    samples = [
        *looked(40, "forward", MAIN, FORWARD, called=40, first_s=1.0),
        *looked(10, "residual", replace(MAIN, line=50), VALIDATE, first_s=4.55),
        *looked(12, "residual", draw, COLLATE, first_s=4.72),
    ]
    found = seen(run, burst_of(*samples)).phases
    assert found["evaluation"].looks == 10
    assert found["between"].looks == 12
    assert found["between"].places[0].function == "collate"


def test_a_step_with_an_evaluation_has_the_calls_that_no_other_step_has() -> None:
    plain = [
        *looked(40, "forward", MAIN, FORWARD, called=40, first_s=1.0),
        *looked(20, "forward", MAIN, FORWARD, called=40, first_s=4.8),
        *looked(20, "forward", replace(MAIN, line=50), VALIDATE, FORWARD, first_s=4.6),
    ]
    evaluation = [
        (at_s, phase, stack, CodeLine("validate", "train.py", 20) if VALIDATE in stack else caller)
        for at_s, phase, stack, caller in plain
    ]
    found = seen(evaluated_run(), burst_of(*evaluation))
    assert found.phases["forward"].looks == 60
    assert tree(found.phases["evaluation"])[1] == ("validate", 0, 20, 0)


def test_a_sample_at_the_edge_of_a_step_does_not_hide_an_evaluation() -> None:
    """The moments of samples are not exact: some of an evaluation lie in the step before."""
    late = replace(MAIN, line=50)
    samples = [
        *looked(40, "forward", MAIN, FORWARD, called=40, first_s=1.0),
        *looked(3, "residual", late, VALIDATE, first_s=4.45),
        *looked(17, "residual", late, VALIDATE, COLLATE, first_s=4.51),
    ]
    found = seen(evaluated_run(), burst_of(*samples))
    assert (found.phases["forward"].looks, found.phases["evaluation"].looks) == (40, 20)


def test_an_evaluation_with_the_same_calls_is_told_by_its_moment() -> None:
    samples = [
        *looked(40, "forward", MAIN, FORWARD, called=40, first_s=1.0),
        *looked(15, "forward", MAIN, FORWARD, called=40, first_s=4.51),
        *looked(15, "forward", MAIN, FORWARD, called=40, first_s=4.75),
    ]
    found = seen(evaluated_run(), burst_of(*samples))
    assert (found.phases["forward"].looks, found.phases["evaluation"].looks) == (55, 15)


def test_a_long_evaluation_does_not_take_the_calls_that_training_shares_with_it() -> None:
    """Most samples are of the evaluation, so that most of the script's own first line are, too."""
    script = StackFrame("<module>", "train.py", 99, True)
    train, validate = replace(MAIN, line=40), replace(MAIN, line=50)
    caller = CodeLine(MAIN.function, MAIN.file, 40)
    training = [
        *looked(25, "forward", script, train, FORWARD, first_s=1.0),
        *looked(25, "backward", script, replace(train, line=41), first_s=2.0),
    ]
    evaluation = [
        each
        for _ in range(10)
        for each in looked(18, "residual", script, validate, VALIDATE, FORWARD, first_s=4.51)
    ]
    named = [(at_s, phase, stack, caller) for at_s, phase, stack, _ in (*training, *evaluation)]
    found = seen(evaluated_run(), burst_of(*named))
    looks = {phase: each.looks for phase, each in found.phases.items()}
    assert looks == {"forward": 25, "backward": 25, "evaluation": 180}


def test_a_backward_pass_is_no_evaluation_whatever_its_moment_says() -> None:
    samples = [
        *looked(40, "forward", MAIN, FORWARD, called=40, first_s=1.0),
        *looked(15, "forward", MAIN, FORWARD, called=40, first_s=4.51),
        *looked(15, "backward", MAIN, called=41, first_s=4.51),
    ]
    found = seen(evaluated_run(), burst_of(*samples))
    assert (found.phases["backward"].looks, found.phases["evaluation"].looks) == (15, 15)


def test_workers_and_other_threads_are_no_part_of_the_training_thread() -> None:
    found = seen(
        make_run(),
        burst_of(*looked(40, "forward", MAIN, FORWARD), *looked(15, "threads", COLLATE)),
        burst_of(*looked(30, "workers", LOADER, COLLATE), is_of_worker=True),
    )
    assert (found.looks, found.phases["workers"].looks, found.phases["threads"].looks) == (
        40,
        30,
        15,
    )
    assert found.phases["workers"].places[0].function == "collate"


@pytest.mark.parametrize(
    ("run", "at_s"),
    [
        pytest.param(make_run(), -5.0, id="before the first step"),
        pytest.param(make_run(), 600.0, id="after the last"),
        pytest.param(replace(make_run(), ranks=()), 1.0, id="of a process that took no step"),
    ],
)
def test_looks_outside_of_steps_are_counted_as_such(run: RunRecords, at_s: float) -> None:
    found = seen(run, burst_of(*looked(20, "residual", MAIN, first_s=at_s)))
    assert (found.looks, found.outside, found.phases) == (0, 20, {})


def test_shares_are_of_all_samples_and_not_of_the_frequent_phases_alone() -> None:
    rare = looked(MIN_LOOKS - 1, "input", MAIN)
    found = seen(make_run(), burst_of(*looked(27, "forward", MAIN), *rare))
    assert set(found.phases) == {"forward"}
    assert (found.looks, found.outside) == (27 + len(rare), 0)


def test_too_few_looks_say_nothing() -> None:
    assert seen(make_run(), burst_of(*looked(MIN_LOOKS - 1, "forward", MAIN))).phases == {}
    assert seen(make_run()) is NO_HOST_TIME


def test_trees_stay_small_and_rare_calls_stay_with_their_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_times, "MAX_FRAMES", 10)
    many = [
        each
        for number in range(50)
        for each in looked(2, "forward", MAIN, StackFrame(f"f{number}", "model.py", 1, True))
    ]
    often = looked(30, "forward", MAIN, FORWARD)
    (phase,) = seen(make_run(), burst_of(*many, *often)).phases.values()
    assert tree(phase) == [("main", -1, 130, 100), ("linear", 0, 30, 30)]
