"""Which runs are good enough for the registry; the registry itself is in tests/integrations."""

from __future__ import annotations

from pathlib import Path

import pytest

from listed_runs import list_run, metric
from traceml.api.fetch_runs import FetchedRuns
from traceml.api.promote import judge
from traceml.compare.terms import Terms


@pytest.mark.parametrize(
    ("name", "baseline", "candidate", "is_worse"),
    [
        ("val/accuracy", 0.94, 0.75, True),  # one run per side shows no less than a quarter
        ("val/accuracy", 0.94, 0.60, True),
        ("val/accuracy", 0.94, 0.938, False),
        ("val/accuracy", 0.75, 0.94, False),
        ("val/loss", 0.30, 0.35, True),
        ("val/loss", 0.35, 0.30, False),
    ],
)
def test_a_run_that_is_worse_or_seems_so_is_known(
    tmp_path: Path, name: str, baseline: float, candidate: float, is_worse: bool
) -> None:
    list_run(tmp_path, "base", metrics={name: metric(baseline)})
    list_run(tmp_path, "new", metrics={name: metric(candidate)})
    with FetchedRuns() as fetched:
        judged = judge("new", "base", tmp_path, Terms(metric=name), fetched)
    assert judged.is_worse is is_worse
