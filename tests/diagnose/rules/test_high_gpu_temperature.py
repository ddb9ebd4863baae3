"""High temperature warns below the limit and is critical where a GPU stays beyond it."""

from __future__ import annotations

import pytest

from system_facts import on_gpus, on_host
from traceml.diagnose.rules import high_gpu_temperature
from traceml.facts.facts import Facts
from traceml.facts.sensors import HostFacts, Level
from traceml.model.finding import Kind, Severity


def at(*levels: tuple[float, float], ranks: int | None = None) -> Facts:
    return on_gpus(*({"temperature_c": Level(mean, peak)} for mean, peak in levels), ranks=ranks)


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(at((60, 62), (85.5, 87)), Severity.WARNING, id="hot all along"),
        pytest.param(at((75, 78), (70, 91)), Severity.WARNING, id="touched the limit"),
        pytest.param(at((60, 62), (91, 93)), Severity.CRITICAL, id="beyond the limit all along"),
    ],
)
def test_must_fire(facts: Facts, severity: Severity) -> None:
    finding = high_gpu_temperature.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.HIGH_GPU_TEMPERATURE, severity)
    assert "GPU 1" in finding.claim


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(at((84, 89)), id="just below both lines"),
        pytest.param(on_gpus({}), id="not measured"),
        pytest.param(at((60, 62), (95, 97), ranks=1), id="a GPU of somebody else's, maybe"),
        pytest.param(on_host(HostFacts(gpus=1)), id="a run on the CPU"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert high_gpu_temperature.check(facts) is None
