"""Balanced says how long a step takes and which part is the largest."""

import pytest

from factories import make_run
from traceml.diagnose.rules import balanced
from traceml.facts.gather import gather
from traceml.model.finding import Severity


def test_must_fire_with_the_largest_part() -> None:
    finding = balanced.check(gather(make_run(noise=0)))
    assert (finding.kind, finding.severity) == (balanced.KIND, Severity.INFO)
    assert "37.0 ms" in finding.claim
    assert "backward is the largest part at 54%" in finding.claim
    assert finding.evidence["backward_share"] == pytest.approx(20 / 37)


def test_must_fire_without_any_phase_too() -> None:
    bare = make_run(input_ms=None, forward_ms=None, backward_ms=None, optimizer_ms=None)
    assert "largest" not in balanced.check(gather(bare)).claim


def test_communication_is_not_said_to_be_the_rest() -> None:
    finding = balanced.check(gather(make_run(2, communication_ms=25, noise=0)))
    assert "communication is the largest part at 40%" in finding.claim
    assert finding.evidence["residual_share"] == pytest.approx(1 / 62)
