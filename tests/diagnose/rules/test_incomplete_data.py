"""What was analysed is said to be a part where it is one."""

from dataclasses import replace

import pytest

from factories import make_run
from traceml.diagnose.rules import incomplete_data
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords


def without_last_rank(run: RunRecords) -> RunRecords:
    return replace(run, ranks=run.ranks[:-1])


def cut_short(run: RunRecords, steps: int) -> RunRecords:
    last = replace(run.ranks[-1], steps=run.ranks[-1].steps[:steps])
    return replace(run, ranks=(*run.ranks[:-1], last))


def one_node_of_two(run: RunRecords) -> RunRecords:
    size = 2 * len(run.ranks)
    ranks = tuple(replace(r, rank=replace(r.rank, world_size=size)) for r in run.ranks)
    return replace(run, ranks=ranks)


@pytest.mark.parametrize(
    ("run", "severity", "missing"),
    [
        pytest.param(
            without_last_rank(make_run(ranks=4)), Severity.WARNING, (3,), id="a rank is missing"
        ),
        pytest.param(
            cut_short(make_run(ranks=2), 0), Severity.WARNING, (1,), id="a rank never stepped"
        ),
        pytest.param(
            cut_short(make_run(ranks=2), 90), Severity.WARNING, (), id="a rank ended early"
        ),
        pytest.param(
            one_node_of_two(make_run(ranks=2)), Severity.INFO, (2, 3), id="another node's ranks"
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity, missing: tuple[int, ...]) -> None:
    finding = incomplete_data.check(gather(run))
    assert finding is not None
    assert finding.kind is incomplete_data.KIND
    assert finding.severity is severity
    assert finding.ranks == missing


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="one rank"),
        pytest.param(make_run(ranks=4), id="all ranks"),
        pytest.param(cut_short(make_run(ranks=2), 110), id="most steps are shared"),
        pytest.param(make_run(steps=0), id="no steps, which is no data"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert incomplete_data.check(gather(run)) is None


def test_the_numbers_are_those_of_the_run() -> None:
    finding = incomplete_data.check(gather(cut_short(make_run(ranks=2), 90)))
    assert finding is not None
    assert "90 steps of 200 (45%)" in finding.claim
