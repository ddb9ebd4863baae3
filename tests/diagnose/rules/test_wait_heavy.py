"""Wait heavy fires on time nobody can explain, and not on the loop's own overhead."""

from dataclasses import replace

import pytest

from factories import make_rank, make_run, map_steps, spend, stall, work_between
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import wait_heavy
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.rank import Region
from traceml.store.records import RunRecords

TINY = {"input_ms": 0.1, "forward_ms": 0.5, "backward_ms": 0.8, "optimizer_ms": 0.3, "noise": 0}


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(make_run(rest_ms=4.1), Severity.WARNING, id="just above the line"),
        pytest.param(make_run(rest_ms=9.3), Severity.CRITICAL, id="just critical"),
        pytest.param(make_run(rest_ms=40, gpu=True), Severity.CRITICAL, id="on the GPU's clock"),
        pytest.param(make_run(rest_ms=2.5, **TINY), Severity.WARNING, id="much of a short step"),
        pytest.param(
            make_run(rest_ms=40, input_ms=None),
            Severity.WARNING,
            id="a loop that may make its batches itself",
        ),
        pytest.param(
            spend(make_run(rest_ms=40, input_ms=None), "gc", 40),
            Severity.CRITICAL,
            id="without fetches, for a known reason",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = wait_heavy.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.WAIT_HEAVY, Phase.RESIDUAL)
    assert finding.severity is severity


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(rest_ms=3.9), id="just below the line"),
        pytest.param(make_run(rest_ms=0.9, **TINY), id="the loop's own overhead in a tiny step"),
        pytest.param(
            make_run(rest_ms=8, input_ms=None), id="a little, in a loop that makes its batches"
        ),
        pytest.param(make_run(h2d_ms=40), id="copies explain it"),
        pytest.param(make_run(communication_ms=40), id="communication explains it"),
        pytest.param(make_run(rest_ms=40, forward_ms=None), id="forward not measured"),
        pytest.param(make_run(rest_ms=40, backward_ms=None), id="backward not measured"),
        pytest.param(make_run(rest_ms=40, optimizer_ms=None), id="updates by hand"),
        pytest.param(make_run(input_ms=50), id="input explains it"),
        pytest.param(work_between(make_run(), "evaluation", 50), id="evaluation between the steps"),
        pytest.param(make_run(between_ms=8), id="a little between the steps"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert wait_heavy.check(gather(run)) is None


def test_a_named_region_is_looked_at_first() -> None:
    steps = make_run(rest_ms=40, noise=0).ranks[0].steps
    rank = make_rank(steps, regions=[Region("metrics", 200, 7.2, 0.1, None)])
    run = make_run()
    finding = wait_heavy.check(gather(type(run)(run.manifest, (rank,))))
    assert finding is not None
    assert "'metrics' is 90% of it, 10% is unexplained" in finding.claim
    assert "'metrics'" in finding.action
    assert "36.0 ms" in finding.action


@pytest.mark.parametrize(
    "region",
    [
        pytest.param(Region("validate", 3, 7.2, 2.4, None), id="longer than any step"),
        pytest.param(Region("validation", 200, 7.2, 0.1, None), id="a library's validation"),
    ],
)
def test_a_region_outside_the_steps_does_not_explain_them(region: Region) -> None:
    finding = found(with_region(make_run(rest_ms=40, noise=0), region))
    assert region.name not in finding.claim + finding.action


def found(run: RunRecords) -> Finding:
    finding = wait_heavy.check(gather(run))
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    ("run", "words", "action"),
    [
        pytest.param(
            spend(make_run(noise=0), "gc", 9), "garbage collection is 90%", "gc.freeze", id="gc"
        ),
        pytest.param(
            spend(make_run(noise=0), "logging", 9), "logging is 90%", "less often", id="logging"
        ),
        pytest.param(
            spend(make_run(noise=0), "compile", 9), "compiling is 90%", "dynamic", id="compiling"
        ),
        pytest.param(
            spend(make_run(gpu=True, noise=0), "sync", 9),
            "waiting for the device is 90%",
            ".item()",
            id="waiting for the device",
        ),
    ],
)
def test_the_largest_known_part_is_named_and_treated(
    run: RunRecords, words: str, action: str
) -> None:
    finding = found(run)
    assert words in finding.claim
    assert "10% is unexplained" in finding.claim
    assert action in finding.action


def test_of_several_parts_the_largest_is_named() -> None:
    run = spend(spend(make_run(noise=0), "gc", 4), "logging", 15)
    assert "logging is 75% of it, 5.0% is unexplained" in found(run).claim


def test_what_nothing_explains_is_said_to_be_unexplained() -> None:
    assert "100% of it is unexplained" in found(make_run(rest_ms=40)).claim
    small = found(spend(make_run(rest_ms=40, noise=0), "gc", 10))
    assert "80% of it is unexplained" in small.claim
    assert "gc.freeze" not in small.action


def test_a_loop_without_fetches_says_that_making_batches_is_in_it() -> None:
    finding = found(make_run(rest_ms=40, input_ms=None))
    assert "includes making batches" in finding.claim
    assert "DataLoader" in finding.action


def test_on_the_gpus_clock_it_is_the_gpu_that_idles() -> None:
    assert "GPU was idle" in found(make_run(rest_ms=40, gpu=True)).claim


def with_region(run: RunRecords, region: Region) -> RunRecords:
    return replace(run, ranks=tuple(replace(rank, regions=(region,)) for rank in run.ranks))


@pytest.mark.parametrize("input_ms", [None, 0.05], ids=["no fetches seen", "with fetches"])
def test_a_named_region_in_most_of_a_short_step_is_not_balanced(input_ms: float | None) -> None:
    short = make_run(
        input_ms=input_ms, forward_ms=0.2, backward_ms=0.3, optimizer_ms=0.1, rest_ms=2.6, noise=0
    )
    run = with_region(short, Region("augment", 200, 0.44, 0.1, None))
    verdict = diagnose(gather(run)).primary
    assert (verdict.kind, verdict.severity) == (Kind.WAIT_HEAVY, Severity.WARNING)
    assert "81%" in verdict.claim or "80%" in verdict.claim
    assert "'augment' is 85% of it" in verdict.claim
    assert "'augment'" in verdict.action


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        pytest.param({"rest_ms": 0.9}, Kind.WAIT_HEAVY, id="the rest"),
        pytest.param({"input_ms": 0.9, "rest_ms": 0.1}, Kind.INPUT_BOUND, id="input"),
        pytest.param({"h2d_ms": 0.9, "rest_ms": 0.1}, Kind.H2D_BOUND, id="copies"),
    ],
)
def test_the_largest_part_of_a_tiny_step_is_a_remark_and_not_balanced(
    parts: dict[str, float], kind: Kind
) -> None:
    tiny = {"input_ms": 0.05, "forward_ms": 0.1, "backward_ms": 0.1, "optimizer_ms": 0.1}
    found = diagnose(gather(make_run(**{**tiny, **parts}, noise=0))).sections[Section.STEP_TIME]
    assert [(f.kind, f.severity) for f in found] == [(kind, Severity.INFO)]


def compiled_once(compiling_ms: float, more_ms: float = 0.0) -> RunRecords:
    def change(records, rank):
        records["compile_ns"] = 0
        records["compile_ns"][100] = round(compiling_ms * 1e6)
        for field in ("body_ns", "wall_ns"):
            records[field][100] += round((compiling_ms + more_ms) * 1e6)

    return map_steps(make_run(rest_ms=0.1), change)


def test_one_step_that_compiled_is_told_by_what_it_did_and_is_a_remark() -> None:
    finding = found(compiled_once(8_000))
    assert finding.severity is Severity.INFO
    assert "8.00 s of it in compiling" in finding.claim
    assert "act only if that happens again" in finding.action


def test_one_long_step_of_which_a_part_is_known_claims_no_more_than_that() -> None:
    finding = found(compiled_once(4_000, more_ms=4_000))
    assert "outside data, copies and the model's work, 50% of that in compiling" in finding.claim


def test_time_between_explicit_steps_is_said_to_pass_there() -> None:
    run = make_run(input_ms=None, between_ms=60, noise=0)
    verdict = diagnose(gather(run)).primary
    assert (verdict.kind, verdict.severity) == (Kind.WAIT_HEAVY, Severity.WARNING)
    assert verdict.phase is None
    assert "62% of the wall time (60.0 ms of 96.0 ms per step) passes between steps" in (
        verdict.claim
    )
    assert verdict.lost_s_per_step == pytest.approx(0.06)
    assert "DataLoader" in verdict.action


def test_evaluation_between_steps_is_not_counted_with_it() -> None:
    run = work_between(make_run(between_ms=20, noise=0), "evaluation", 30)
    assert "20.0 ms of 87.0 ms" in found(run).claim


def test_between_and_inside_are_both_told_the_larger_first() -> None:
    more_outside = found(make_run(between_ms=60, rest_ms=20, noise=0))
    assert more_outside.is_between_steps
    assert "Besides: 36% of a mean step (20.0 ms of 56.0 ms)" in more_outside.claim
    more_inside = found(make_run(between_ms=50, rest_ms=60, noise=0))
    assert more_inside.phase is Phase.RESIDUAL
    assert "Besides: 34% of the wall time" in more_inside.claim


def test_one_long_stall_is_no_share_of_a_mean_step() -> None:
    run = stall(make_run(rest_ms=1, noise=0), "rest", 70, 100)
    finding = found(run)
    assert finding.severity is Severity.WARNING
    assert finding.claim == (
        "One step (number 100) took 1 min 10 s, 1 min 10 s of it outside data, copies and the "
        "model's work; without it a mean step takes 37.0 ms."
    )
    assert finding.is_one_off
    assert "%" not in finding.claim


def test_a_short_stall_is_only_a_remark() -> None:
    assert found(stall(make_run(noise=0), "rest", 2, 100)).severity is Severity.INFO


def test_a_stall_beside_a_rest_in_every_step_leaves_that_as_it_is() -> None:
    finding = found(stall(make_run(rest_ms=20, noise=0), "rest", 70, 100))
    assert not finding.is_one_off
    assert "of a mean step" in finding.claim


def test_a_rest_that_is_explained_needs_no_word_about_what_is_not() -> None:
    run = spend(make_run(rest_ms=0.02, noise=0), "logging", 10)
    finding = found(run)
    assert "logging is 100% of it." in finding.claim
    assert "unexplained" not in finding.claim
