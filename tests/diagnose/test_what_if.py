"""The prediction for a run without its fault is the run that was made without it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import count_gpus, idle_gpu, make_late, make_run, make_waiting, map_steps
from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rule import lost
from traceml.diagnose.what_if import WhatIf, predict
from traceml.facts.gather import gather
from traceml.facts.user_time import CodePlace, PhaseCode, UserTime
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.store.records import RunRecords


def what_ifs(run: RunRecords) -> dict[Kind, WhatIf]:
    facts = gather(run)
    found = predict(facts, diagnose(facts).sections[Section.STEP_TIME])
    return {what_if.finding.kind: what_if for what_if in found}


def predicted_s(run: RunRecords, kind: Kind) -> float:
    """Whether or not the rule would have fired."""
    finding = Finding(kind, Section.STEP_TIME, Severity.WARNING, "", "", ranks=(1,))
    (found,) = predict(gather(run), [finding])
    return found.predicted_s


def pausing(run: RunRecords, field: str, by_ms: float, every: int, *ranks: int) -> RunRecords:
    """The host stops for something in every so many steps."""
    late = make_late(run, *ranks, phase="rest", by_ms=by_ms, every=every)

    def change(steps, rank):
        steps[field] = 0
        if rank in ranks:
            steps[field][::every] = round(by_ms * 1e6)

    return map_steps(late, change)


def saving(run: RunRecords, by_ms: float, every: int) -> RunRecords:
    """Rank 0 saves between steps."""

    def change(steps, rank):
        steps["checkpoint_ns"] = 0
        if rank == 0:
            steps["checkpoint_ns"][::every] = round(by_ms * 1e6)
            steps["wall_ns"] += steps["checkpoint_ns"]

    return make_waiting(map_steps(run, change))


@pytest.mark.parametrize("gpu", [False, True], ids=["host's clock", "GPU's clock"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("kind", "fault", "without"),
    [
        pytest.param(Kind.INPUT_BOUND, {"input_ms": 80.0}, {"input_ms": 0.0}, id="input"),
        pytest.param(Kind.H2D_BOUND, {"h2d_ms": 30.0}, {"h2d_ms": 0.0}, id="copies"),
        pytest.param(Kind.WAIT_HEAVY, {"rest_ms": 30.0}, {"rest_ms": 0.5}, id="rest"),
        pytest.param(
            Kind.COMM_BOUND, {"communication_ms": 30.0}, {"communication_ms": 0.0}, id="transfer"
        ),
    ],
)
def test_a_fault_that_every_rank_has(
    kind: Kind, fault: dict[str, float], without: dict[str, float], ranks: int, gpu: bool
) -> None:
    slow, healthy = (
        make_waiting(make_run(ranks, gpu=gpu, noise=0.02, **parts)) for parts in (fault, without)
    )
    assert predicted_s(slow, kind) == pytest.approx(gather(healthy).mean.step_s, rel=0.02)


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer", "rest"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("every", [1, 10])
def test_a_fault_that_one_rank_has(phase: str, ranks: int, every: int) -> None:
    healthy = make_run(ranks, 400)
    slow = make_waiting(make_late(healthy, 1, phase=phase, by_ms=20 * every, every=every))
    what_if = next(iter(what_ifs(slow).values()))
    assert what_if.finding.ranks == (1,)
    assert what_if.predicted_s == pytest.approx(gather(make_waiting(healthy)).mean.step_s, rel=0.02)
    assert what_if.words == "if rank 1 kept up with the others"


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (Kind.GC_PAUSES, "gc_ns"),
        (Kind.LOGGING_HEAVY, "logging_ns"),
        (Kind.RECOMPILING, "compile_ns"),
    ],
)
@pytest.mark.parametrize("ranks", [(0,), (0, 1)], ids=["one rank", "both ranks"])
def test_pauses_of_the_host(kind: Kind, field: str, ranks: tuple[int, ...]) -> None:
    healthy = make_run(2)
    slow = make_waiting(pausing(healthy, field, 100, 10, *ranks))
    expected_s = gather(make_waiting(healthy)).mean.step_s
    assert predicted_s(slow, kind) == pytest.approx(expected_s, rel=0.02)


def test_checkpoints_shorten_the_wall_time_of_a_step() -> None:
    healthy = make_run(2)
    slow = saving(healthy, 500, 10)
    (found,) = predict(
        gather(slow),
        [Finding(Kind.CHECKPOINT_HEAVY, Section.STEP_TIME, Severity.INFO, "", "")],
    )
    assert found.step_s == pytest.approx(gather(slow).mean.wall_s)
    assert found.predicted_s == pytest.approx(gather(make_waiting(healthy)).mean.wall_s, rel=0.02)


def test_removing_one_ranks_share_uncovers_the_next() -> None:
    """Input 20 ms on rank 1 hides 15 ms of forward on rank 2."""
    late = make_late(make_run(3, noise=0), 1, phase="input", by_ms=20)
    run = make_waiting(make_late(late, 2, by_ms=15))
    assert predicted_s(run, Kind.INPUT_BOUND) == pytest.approx((37 + 15 - 1) / 1e3, rel=0.01)


def test_without_copies_the_rest_of_the_step_stays() -> None:
    run = make_run(h2d_ms=100, noise=0)
    assert predicted_s(run, Kind.H2D_BOUND) == pytest.approx(0.037)


def test_on_the_gpus_clock_a_pause_saves_what_the_gpu_waited() -> None:
    run = pausing(make_run(gpu=True, noise=0), "gc_ns", 100, 10, 0)
    lost = Finding(Kind.GC_PAUSES, Section.STEP_TIME, Severity.WARNING, "", "")
    (found,) = predict(gather(run), [replace(lost, lost_s_per_step=0.004)])
    assert found.saved_s == pytest.approx(0.004)


def test_what_only_describes_has_no_prediction() -> None:
    assert what_ifs(make_run()) == {}
    assert what_ifs(make_run(steps=0)) == {}
    assert not {Kind.COMPUTE_BOUND, Kind.BALANCED, Kind.NO_DATA, Kind.WARMUP} & set(REMEDIES)


def test_a_cause_that_was_not_measured_has_no_prediction() -> None:
    finding = Finding(Kind.COMM_BOUND, Section.STEP_TIME, Severity.WARNING, "", "")
    assert predict(gather(make_run(2)), [finding]) == ()
    assert predict(gather(make_run(input_ms=None)), [replace(finding, kind=Kind.INPUT_BOUND)]) == ()
    assert predict(gather(make_run()), [replace(finding, kind=Kind.CPU_STARVED)]) == ()


def test_the_words_give_both_times_and_the_factor() -> None:
    what_if = what_ifs(make_run(input_ms=540, noise=0))[Kind.INPUT_BOUND]
    assert what_if.summary == "576.0 ms → 36.0 ms per step (16.0×) without the input wait"
    slight = WhatIf(what_if.finding, "otherwise", 0.1, 0.08)
    assert slight.summary == "100.0 ms → 80.0 ms per step (1.25×) otherwise"
    bound = WhatIf(what_if.finding, "otherwise", 0.1, 0.08, is_upper_bound=True)
    assert bound.summary == "100.0 ms → 80.0 ms or less per step (1.25× or more) otherwise"
    assert WhatIf(what_if.finding, "otherwise", 0.1, 0.0).speedup is None


def test_the_order_is_that_of_the_findings() -> None:
    assert list(what_ifs(make_run(input_ms=30, rest_ms=12))) == [Kind.INPUT_BOUND, Kind.WAIT_HEAVY]
    assert list(what_ifs(make_run(input_ms=12, rest_ms=30))) == [Kind.WAIT_HEAVY, Kind.INPUT_BOUND]


parts = st.floats(0.0, 100.0)


def made(
    ranks: int, parts_ms: tuple[float, ...], late_ms: float, waits: bool, scale: float = 1.0
) -> RunRecords:
    names = ("input_ms", "h2d_ms", "forward_ms", "backward_ms", "rest_ms", "communication_ms")
    values = dict(zip(names, np.multiply(parts_ms, scale).tolist(), strict=True))
    run = make_run(ranks, 12, optimizer_ms=5 * scale, **values)
    late = make_late(run, ranks - 1, phase="input", by_ms=late_ms * scale, every=3)
    return make_waiting(late) if waits else late


REMEDIES = {rule.kind: rule.what_if for rule in all_rules().rules if rule.what_if is not None}
every_kind = [
    Finding(kind, Section.STEP_TIME, Severity.WARNING, "", "", ranks=(0,), lost_s_per_step=0.01)
    for kind in REMEDIES
]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.tuples(*[parts] * 6), parts, st.booleans())
def test_a_prediction_lies_between_nothing_and_the_step(
    ranks: int, parts_ms: tuple[float, ...], late_ms: float, waits: bool
) -> None:
    for found in predict(gather(made(ranks, parts_ms, late_ms, waits)), every_kind):
        assert 0 <= found.predicted_s <= found.step_s
        assert found.speedup is None or found.speedup >= 1
        assert found.saved_s == pytest.approx(found.step_s - found.predicted_s)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.tuples(*[parts] * 6), parts, st.booleans(), st.floats(1.0, 20.0))
def test_slower_by_a_factor_is_predicted_slower_by_it(
    ranks: int, parts_ms: tuple[float, ...], late_ms: float, waits: bool, factor: float
) -> None:
    """But for the half millisecond that any loop costs."""
    scaled = [
        {
            finding.kind: found.predicted_s
            for finding in every_kind
            if REMEDIES[finding.kind].saved_s is not lost
            for found in predict(
                gather(made(ranks, parts_ms, late_ms, waits, scale)),
                [replace(finding, lost_s_per_step=None)],
            )
        }
        for scale in (1.0, factor)
    ]
    for kind in scaled[0].keys() & scaled[1].keys():
        assert scaled[1][kind] == pytest.approx(factor * scaled[0][kind], rel=0.001, abs=0.01)


def queued(run: RunRecords, host_ms: float, **waits_ms: float) -> RunRecords:
    """The host needs so much itself in a step of the GPU's, and waits for the device besides."""

    def change(steps, rank):
        steps["input_ns"] = 500_000
        steps["body_ns"] = round((host_ms - 0.5 + sum(waits_ms.values())) * 1e6)
        for name, wait_ms in waits_ms.items():
            steps[f"{name}_ns"] = round(wait_ms * 1e6)

    return map_steps(run, change)


COPYING = make_run(gpu=True, noise=0, input_ms=0.8, h2d_ms=40, rest_ms=0.4)
READING = make_run(gpu=True, noise=0, input_ms=0.8, h2d_ms=0.5, rest_ms=12)


@pytest.mark.parametrize(
    ("run", "kind", "left_ms"),
    [
        pytest.param(
            queued(COPYING, 4, h2d=60), Kind.H2D_BOUND, 35, id="a GPU that is fed without a pause"
        ),
        pytest.param(
            queued(COPYING, 36, h2d=60), Kind.H2D_BOUND, 36, id="a host that needs longer"
        ),
        pytest.param(
            queued(COPYING, 4, h2d=50, sync=10), Kind.H2D_BOUND, 36.2, id="a host that waits anyway"
        ),
        pytest.param(
            queued(READING, 4, sync=40), Kind.WAIT_HEAVY, 35.5, id="reads that are left out"
        ),
        pytest.param(queued(READING, 36, sync=12), Kind.WAIT_HEAVY, 36, id="reads of a busy host"),
    ],
)
def test_a_host_that_no_longer_waits_for_the_gpu_works_ahead(
    run: RunRecords, kind: Kind, left_ms: float
) -> None:
    assert what_ifs(run)[kind].predicted_s == pytest.approx(left_ms / 1e3, rel=1e-3)


def test_a_host_works_ahead_whichever_line_of_the_script_had_waited() -> None:
    """The samples name the function that reads the values; what it does is waiting all the same."""
    line = CodePlace("read", "train.py", 7, 1.0, 0.9, 1.0, 100)
    code = PhaseCode(100, (line,))
    seen = UserTime(100, 100, 0, "py-spy", {"residual": code}, {0: {"residual": code}}, code)
    facts = replace(gather(queued(READING, 34, sync=11.5)), user_time=seen)
    found = predict(facts, diagnose(facts).sections[Section.STEP_TIME])
    (rest,) = [each for each in found if each.finding.kind is Kind.WAIT_HEAVY]
    assert rest.finding.evidence["main_part"] == line.name
    assert rest.predicted_s == pytest.approx(35.5e-3, rel=1e-3)


def test_without_waits_a_host_works_ahead() -> None:
    """Also where other code between the phases is the larger part of the rest."""
    finding = Finding(
        Kind.HOST_SYNC, Section.STEP_TIME, Severity.WARNING, "", "", lost_s_per_step=0.002
    )
    (found,) = predict(gather(queued(READING, 4, sync=40)), [finding])
    assert found.predicted_s == pytest.approx(35.5e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("busy_share", "left_ms"), [(34 / 76.2, 34.5), (30 / 76.2, 32.5), (0.9, 35.4), (None, 35.0)]
)
def test_working_ahead_hides_half_of_the_gaps_between_launches(
    busy_share: float | None, left_ms: float
) -> None:
    """Counters see 1 ms, 5 ms or nothing without a kernel in the 35 ms of the phases."""
    run = idle_gpu(queued(COPYING, 4, h2d=72), launching=0.3)
    if busy_share is not None:
        run = count_gpus(replace(run, samples=()), busy_share=busy_share)
    found = what_ifs(run)[Kind.H2D_BOUND]
    assert found.predicted_s == pytest.approx(left_ms / 1e3, rel=2e-3)


def test_a_host_that_is_busy_itself_works_no_more_ahead_without_its_own_code() -> None:
    """Nothing waits for the device: the gaps between launches stay."""
    run = idle_gpu(queued(READING, 47), launching=0.3)
    run = count_gpus(replace(run, samples=()), busy_share=30 / 48.3)
    found = what_ifs(run)[Kind.WAIT_HEAVY]
    assert found.finding.evidence["launching_ms"] == pytest.approx(5.0, rel=0.01)
    assert found.saved_s <= (found.finding.lost_s_per_step or 0.0) + 1e-9


def test_a_gpu_that_others_let_idle_is_not_fed_by_working_ahead() -> None:
    """What the input's own finding claims is not saved by another."""
    starved = queued(make_run(gpu=True, noise=0, input_ms=30, h2d_ms=40), 4, h2d=80)
    found = what_ifs(starved)
    assert found[Kind.H2D_BOUND].saved_s + found[Kind.INPUT_BOUND].saved_s <= 0.106 + 1e-9
    assert found[Kind.H2D_BOUND].saved_s == pytest.approx(0.041, rel=1e-3)  # with the rest
