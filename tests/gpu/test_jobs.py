"""Every job plain and traced, one after the other; `make gpu` prints the same as a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.jobs.catalog import JOBS, Job
from benchmarks.jobs.run import run_and_judge, run_plain


@pytest.mark.parametrize("published", JOBS, ids=lambda job: job.name)
def test_training_is_the_same_and_the_verdict_right(published: Job, tmp_path: Path) -> None:
    judged = run_and_judge(published, run_plain(published), tmp_path)
    assert judged.complaints == ()
