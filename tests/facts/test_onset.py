"""A slowdown lies in the phases that grew."""

import pytest

from factories import make_run, map_steps
from traceml.facts.gather import gather
from traceml.facts.series import growth_by_phase
from traceml.model.phase import Phase


def test_only_what_grew_has_grown() -> None:
    def slower_backward(steps, rank):
        for field in ("backward_ns", "body_ns", "wall_ns"):
            steps[field][100:] += 8_000_000

    parts = gather(map_steps(make_run(ranks=2, noise=0), slower_backward)).step_table
    assert parts is not None
    grown = growth_by_phase(parts, 101)
    assert grown.pop(Phase.BACKWARD) == pytest.approx(0.008)
    assert grown and all(abs(more_s) < 1e-9 for more_s in grown.values())


def test_a_phase_that_was_not_measured_has_no_growth() -> None:
    parts = gather(make_run(optimizer_ms=None)).step_table
    assert parts is not None
    assert Phase.OPTIMIZER not in growth_by_phase(parts, 101)
