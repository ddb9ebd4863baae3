"""No GPU fires on training beside idle GPUs, not on a machine that has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_run
from system_facts import in_use, on_gpus, on_host
from traceml.diagnose.rules import no_gpu
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.sensors import HostFacts
from traceml.model.finding import Kind, Severity


def test_must_fire_beside_idle_gpus() -> None:
    finding = no_gpu.check(on_host(HostFacts(gpus=8), ranks=2))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.NO_GPU, Severity.WARNING)
    assert "8 GPUs" in finding.claim


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(on_host(HostFacts()), id="the machine has none"),
        pytest.param(on_gpus(in_use(0.9)), id="the run uses it"),
        pytest.param(
            replace(gather(make_run(steps=0)), host=HostFacts(samples=9, gpus=1)), id="no steps"
        ),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert no_gpu.check(facts) is None
