"""In a notebook, time in which no cell runs is no step's; with a real kernel."""

import time
from pathlib import Path

import nbclient
import nbformat

from traceml.model.layout import NO_STEP
from traceml.store.load import load_run

IDLE_S = 2.0
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


def idle(cell: object, cell_index: int) -> None:
    time.sleep(IDLE_S if cell_index else 0.0)


def test_idling_between_cells_is_in_no_step(tmp_path: Path) -> None:
    cells = [FIRST, "epoch()", HALF, "optimizer.step()", "epoch()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    began = time.monotonic()
    nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
        on_cell_start=idle,
    ).execute()
    took_s = time.monotonic() - began
    (rank,) = load_run(tmp_path / "logs" / "cells").ranks
    steps = rank.steps
    complete = steps[(steps["flags"] & int(NO_STEP)) == 0]
    assert len(complete) == 8 + 8 + 1 + 8
    assert complete["wall_ns"].max() < IDLE_S * 1e9
    assert steps["wall_ns"].sum() * 1e-9 < took_s - 4 * IDLE_S
    assert rank.health.failures == 0
    assert all(output.output_type != "stream" for cell in notebook.cells for output in cell.outputs)
