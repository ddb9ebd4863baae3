"""`traceml run --kineto`: traces of two ranks with loader workers, from the flag to the report."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

import traceml
from processes import PYTHON, TORCH_STEPS, Finished, run, run_traceml
from traceml.api.artifact_contents import find_logged_file
from traceml.model.errors import RunNotFound, UsageError

TRAINS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(3):
    for batch in DataLoader(torch.randn(40, 8), batch_size=2, num_workers=1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    options = ["--kineto", "2", "--profile=deep", "--nproc-per-node", "2", "--html-report"]
    return run_traceml(["run", *options, "train.py"], tmp_path_factory.mktemp("traces"), TRAINS)


def test_each_rank_keeps_its_traces_and_the_summary_lists_them(two_ranks: Finished) -> None:
    assert two_ranks.status == 0, two_ranks.stderr
    found = two_ranks.summary["kineto"]
    assert found["asked"] == 2 and found["recorded"] >= 4 and found["cost_ms"] > 0
    assert [each["rank"] for each in found["traces"]] == [0, 0, 1, 1]
    for each in found["traces"]:
        with gzip.open(two_ranks.folder / each["file"]) as file:
            trace = json.load(file)
        assert trace["traceml"] == {"rank": each["rank"], "step": each["step"]}
        assert trace["distributedInfo"]["world_size"] == 2
        assert any("gloo" in str(event.get("name")) for event in trace["traceEvents"])
    assert two_ranks.steps == 60 and two_ranks.summary["tracer"]["failures"] == 0
    assert found["median_ms"] <= found["slowest_ms"]


def test_text_and_report_say_where_they_are(two_ranks: Finished) -> None:
    text = (two_ranks.folder / "final_summary.txt").read_text()
    report = (two_ranks.folder / "report.html").read_text()
    assert "ui.perfetto.dev" in text and "ui.perfetto.dev" in report
    for each in two_ranks.summary["kineto"]["traces"]:
        assert each["file"] in text and each["file"] in report
    assert "USDT" not in two_ranks.stderr  # kineto's own messages


def test_a_trace_can_be_downloaded_and_nothing_else_of_the_folder(two_ranks: Finished) -> None:
    name = two_ranks.summary["kineto"]["traces"][0]["file"]
    assert find_logged_file(two_ranks.folder, name) == two_ranks.folder / name
    for other in ("final_summary.json", f"../{two_ranks.folder.name}/{name}"):
        with pytest.raises(RunNotFound):
            find_logged_file(two_ranks.folder, other)


def test_a_link_to_a_trace_that_was_replaced_says_so(two_ranks: Finished, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="a worse step takes the place"):
        find_logged_file(two_ranks.folder, "kineto-rank-0-step-3-pid-1.json.gz")
    copied = tmp_path / "run"
    shutil.copytree(two_ranks.folder, copied)
    name = two_ranks.summary["kineto"]["traces"][0]["file"]
    (copied / name).unlink()  # since the summary was read
    with pytest.raises(RunNotFound, match="a worse step takes the place"):
        find_logged_file(copied, name)


def test_init_records_steps_too(tmp_path: Path) -> None:
    script = "import traceml\ntraceml.init(kineto=1)\n" + TORCH_STEPS + "take_steps(20)\n"
    (tmp_path / "train.py").write_text(script)
    done = run([PYTHON, "train.py"], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    assert len(done.summary["kineto"]["traces"]) == 1


@pytest.mark.parametrize("steps", [0, 21, -1, True, "2", 1.5])
def test_init_refuses_what_is_no_number_of_steps(steps: object) -> None:
    with pytest.raises(UsageError, match="expected a whole number from 1 to 20"):
        traceml.init(kineto=steps)  # type: ignore[arg-type]
