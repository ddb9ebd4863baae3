"""Every job plain and traced, one after the other; `make gpu` prints the same as a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.jobs.catalog import JOBS, Job
from benchmarks.jobs.run import judge, run_plain, run_traced


@pytest.mark.parametrize("published", JOBS, ids=lambda job: job.name)
def test_training_is_the_same_and_the_verdict_right(published: Job, tmp_path: Path) -> None:
    (plain,) = run_plain([published])
    traced = run_traced(published, tmp_path / "traced")
    has_fix = published.fixed is not None
    fixed = run_traced(published, tmp_path / "fixed", published.fixed) if has_fix else None
    assert judge(published, plain, traced, fixed).complaints == ()
