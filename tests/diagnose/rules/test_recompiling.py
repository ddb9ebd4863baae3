"""Compiling again and again is named; compiling at the start is not."""

import pytest

from factories import make_run, map_steps, spend
from traceml.diagnose.rules import recompiling
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords


def compiled_in(steps: slice, each_ms: float = 500.0) -> RunRecords:
    def change(records, rank):
        records["compile_ns"] = 0
        records["compile_ns"][steps] = round(each_ms * 1e6)
        for field in ("body_ns", "wall_ns"):
            records[field] += records["compile_ns"]

    return map_steps(make_run(), change)


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(compiled_in(slice(100, 102)), Severity.WARNING, id="twice in a run"),
        pytest.param(compiled_in(slice(0, None, 10)), Severity.CRITICAL, id="every tenth step"),
        pytest.param(
            spend(make_run(gpu=True, rest_ms=0.5), "compile", 500, every=20, hidden=True),
            Severity.CRITICAL,
            id="inside a phase of the GPU",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = recompiling.check(gather(run))
    assert finding is not None
    assert finding.kind is recompiling.KIND
    assert finding.severity is severity
    assert "dynamic=True" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(compiled_in(slice(0, 3), 2000), id="while warming up"),
        pytest.param(compiled_in(slice(100, 101), 2000), id="once more, for the last batch"),
        pytest.param(compiled_in(slice(100, 104), 50), id="a short while"),
        pytest.param(make_run(), id="not measured"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert recompiling.check(gather(run)) is None


def test_the_steps_that_compiled_are_counted() -> None:
    finding = recompiling.check(gather(compiled_in(slice(100, 104))))
    assert finding is not None
    assert "4 of 200 steps" in finding.claim
    assert "500.0 ms" in finding.claim
