"""Sessions with the deep profile."""

from __future__ import annotations

import pytest

from traceml.store.layer_records import read_layers
from traceml.trace.deep import bursts


@pytest.fixture
def begin_deep(traced, monkeypatch):
    """Begins the deep profile of a session; returns what tells, when it is called, what the profile
    wrote.

    Bursts follow each other whatever they cost: how long a busy machine takes for a step decides in
    no test how many are looked at.
    """
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 1e9)

    def begin():
        traced.session.begin_deep_profile()
        return layers

    def layers():
        traced.finish()
        (found,) = read_layers(traced.folder)
        return found

    return begin


@pytest.fixture
def deep(begin_deep):
    """A session with the deep profile; what it wrote, when it is called."""
    return begin_deep()
