"""A GPU at its power limit is a remark, not a fault."""

from __future__ import annotations

import pytest

from system_facts import always, on_gpus
from traceml.diagnose.rules import high_gpu_power
from traceml.facts.facts import Facts
from traceml.model.finding import Kind, Severity


def drawing(share: float) -> Facts:
    return on_gpus({"power_w": always(700 * share), "power_share": always(share)})


def test_must_fire_as_a_remark() -> None:
    finding = high_gpu_power.check(drawing(0.97))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.HIGH_GPU_POWER, Severity.INFO)
    assert "679 W" in finding.claim


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(drawing(0.94), id="just below the line"),
        pytest.param(on_gpus({"power_w": always(700)}), id="the limit is not known"),
        pytest.param(
            on_gpus({}, {"power_w": always(700), "power_share": always(1.0)}, ranks=1),
            id="a GPU of somebody else's, maybe",
        ),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert high_gpu_power.check(facts) is None
