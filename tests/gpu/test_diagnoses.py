"""Faults that only a GPU has are named, in real trainings of the fault bench."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # the benchmarks lie beside the package

from benchmarks.faults.catalog import SCENARIOS
from benchmarks.faults.judge import judge, top_finding
from benchmarks.faults.runner import run

pytestmark = pytest.mark.gpu

ON_GPU = (
    "gpu_host_bound",
    "gpu_compute_bound",
    "gpu_h2d_bound",
    "gpu_memory_kept_tensors",
)


@pytest.mark.parametrize("name", ON_GPU)
def test_a_fault_on_a_gpu_is_named_with_its_phase(name: str, tmp_path: Path) -> None:
    scenario = next(each for each in SCENARIOS if each.name == name)
    outcome = run(scenario, tmp_path / name)
    found = judge(scenario, outcome)
    assert found.right, f"{found.said} {found.problem}\n{outcome.output}"
    assert found.place_right is not False, top_finding(outcome.summary or {})
