"""Every job plain and traced, one after the other; `make gpu` prints the same as a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.jobs.catalog import JOBS, Job
from benchmarks.jobs.run import judge, run_plain, run_traced


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_training_is_the_same_and_the_verdict_right(job: Job, tmp_path: Path) -> None:
    (plain,) = run_plain([job])
    traced = run_traced(job, tmp_path / "traced")
    fixed = None if job.fixed is None else run_traced(job, tmp_path / "fixed", job.fixed)
    assert judge(job, plain, traced, fixed).complaints == ()
