"""Notebooks with a real kernel: what is measured in their cells, and what `traceml.show` draws."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from processes import STEPS, run_traceml, wait_until
from traceml.model.record_layout import NO_STEP
from traceml.store.load import load_run

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

IDLE_S = 5.0
"""Between two cells: far longer than any step of theirs, also on a busy machine."""

FIRST = """
import traceml, torch
traceml.init(run_name="cells")
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)
def epoch():
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
epoch()
"""
HALF = "inputs = torch.ones(8, 4); model(inputs).square().mean().backward()"


def execute(folder: Path, cells: list[str], **options: Any) -> Any:
    """Run the cells of a new notebook in a folder; the notebook, with what they showed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook,
        timeout=180,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        **options,
    ).execute()
    return notebook


def idle(cell: object, cell_index: int) -> None:
    time.sleep(IDLE_S if cell_index else 0.0)


def test_idling_between_cells_is_in_no_step(tmp_path: Path) -> None:
    cells = [FIRST, "epoch()", HALF, "optimizer.step()", "epoch()"]
    began = time.monotonic()
    notebook = execute(tmp_path, cells, on_cell_start=idle)
    took_s = time.monotonic() - began
    folder = tmp_path / "logs" / "cells"
    wait_until((folder / "final_summary.json").exists, "the agent has closed the run")
    (rank,) = load_run(folder).ranks
    steps = rank.steps
    complete = steps[(steps["flags"] & int(NO_STEP)) == 0]
    assert len(complete) == 8 + 8 + 1 + 8
    assert complete["wall_ns"].max() < IDLE_S * 1e9
    assert steps["wall_ns"].sum() * 1e-9 < took_s - 4 * IDLE_S
    assert rank.health.failures == 0
    assert all(output.output_type != "stream" for cell in notebook.cells for output in cell.outputs)


def test_runs_are_drawn_live_and_finished(tmp_path: Path) -> None:
    script = STEPS + "take_steps(60)"
    for name in ("a", "b"):
        done = run_traceml(["run", "--run-name", name, "train.py"], tmp_path, script)
        assert done.status == 0, done.stderr
    cells = [
        "import traceml\ntraceml.init(run_name='cells')",
        STEPS + "take_steps(40)",
        "traceml.show()",
        "traceml.show(['a', 'b'])",
        "print(*[each.pid for each in __import__('psutil').Process().children()])",
    ]
    notebook = execute(tmp_path, cells)
    live, compared = (notebook.cells[place].outputs[0]["data"] for place in (2, 3))
    assert re.search(r'<iframe [^>]*src="http://127.0.0.1:\d+/runs/cells"', live["text/html"])
    assert "live at http://127.0.0.1:" in live["text/plain"]
    assert 'sandbox="allow-scripts"' in compared["text/html"]
    assert "A: a" in compared["text/plain"]
    (children,) = [output["text"] for output in notebook.cells[4].outputs]
    wait_until(
        lambda: not any(psutil.pid_exists(int(pid)) for pid in children.split()),
        "what the kernel started has ended with it",
    )
    assert (tmp_path / "logs/cells/final_summary.json").exists()
