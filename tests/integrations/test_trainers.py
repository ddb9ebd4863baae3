"""Trainers that own the training loop, in jobs as people publish them: Lightning, transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.jobs.catalog import Job
from benchmarks.jobs.run import differences, run_plain, run_traced


@pytest.mark.parametrize(
    ("package", "script"),
    [("pytorch_lightning", "lightning_images"), ("transformers", "hf_trainer")],
)
def test_a_job_trains_the_same_plain_and_traced(package: str, script: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    job = Job(script, script, ("--tiny",), ())
    traced = run_traced(job, tmp_path)
    assert list(differences(run_plain(job), traced)) == []
