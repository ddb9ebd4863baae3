"""The flat form holds numbers only, under keys that never collide."""

import pytest

from factories import GIB, make_run
from traceml.summaries.build import build, flat_numbers
from traceml.summaries.record import Summary


def test_only_measured_numbers_are_in_it() -> None:
    found = flat_numbers(build(make_run(), 0.0, "0"))
    assert found["traceml/step_time_ms"] == pytest.approx(37, rel=0.01)
    assert found["traceml/steps"] == 200
    assert found["traceml/peak_rss_bytes"] == GIB
    assert found["traceml/system/cpu_percent"] == 50
    assert found["traceml/process/cpu_percent"] == 100
    assert "traceml/h2d_ms" not in found
    assert all(isinstance(value, int | float) for value in found.values())


def test_an_empty_summary_is_an_empty_dictionary() -> None:
    assert flat_numbers(Summary()) == {}
