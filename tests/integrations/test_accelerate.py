"""Hugging Face Accelerate: its launcher, its accumulation, and a job as people publish it."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.jobs.catalog import Job
from benchmarks.jobs.run import differences, run_plain, run_traced

from processes import run_traceml
from published_scripts import Ran

pytest.importorskip("accelerate")

SCRIPTS = Path(__file__).with_name("scripts")


def test_what_its_launcher_starts_is_traced(tmp_path: Path) -> None:
    script = """\
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for batch in data:
    optimizer.zero_grad()
    accelerator.backward(model(batch).sum())
    optimizer.step()
"""
    command = ["run", "--", "accelerate", "launch", "--cpu", "--num_processes", "1", "train.py"]
    done = run_traceml(command, tmp_path, script)
    assert (done.status, done.steps) == (0, 6), done.stderr
    done.assert_nothing_is_left()


def test_accumulation_counts_its_own_steps(tmp_path: Path) -> None:
    """The wrapped `optimizer.step()` is called for every batch, and steps for every fourth."""
    ran = Ran.launched(SCRIPTS / "accelerate_accumulate.py", tmp_path)
    ran.assert_every_step_is_recorded()
    settings = ran.summary["settings"]
    assert (settings["batch_size"], settings["accumulation_steps"]) == (16, 4)


def test_its_phases_have_names_without_a_word_in_the_script(tmp_path: Path) -> None:
    script = """\
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for count in range(24):
    accelerator.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": 1.0}, step=count)
    if count % 12 == 11:
        accelerator.save_state("state")
"""
    done = run_traceml(["run", "--mode=summary", "train.py"], tmp_path, script)
    assert (done.status, done.steps) == (0, 24), done.stderr
    found = {region["name"]: region["calls"] for region in done.summary["regions"]}
    assert found == {"logging": 24, "checkpoint": 2}


def test_a_job_trains_the_same_plain_and_traced(tmp_path: Path) -> None:
    job = Job("accelerate", "accelerate_text", ("--tiny",), ())
    traced = run_traced(job, tmp_path)
    assert list(differences(run_plain(job), traced)) == []
