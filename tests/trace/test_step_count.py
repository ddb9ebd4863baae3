"""How many steps there were, by running the step machine over the events once more."""

import torch
from torch import nn

from traceml.steps import saved_state
from traceml.steps.event_reader import EventReader
from traceml.trace.ring import STATE_BYTES
from traceml.trace.step_count import MANY_EVENTS


def train(steps):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_after_many_events_counting_goes_on_where_the_agent_has_saved_the_steps(
    traced, monkeypatch
):
    session = traced.session
    train(5)
    counted = session.count_steps()
    train(1_000)
    ring, saved = session.ring, session._count._begin(session.ring)
    saved.advance(everything=True)
    state = saved_state.Saved(saved.machine, saved.cursor, 0)
    assert saved_state.save(ring.mapping, ring.state_base, STATE_BYTES, state)
    train(10)

    read, advance = [], EventReader.advance

    def counting(reader, *arguments, **options):
        read.append(session.recorder.written - reader.cursor)
        return advance(reader, *arguments, **options)

    monkeypatch.setattr(EventReader, "advance", counting)
    assert session.count_steps() == counted + 1_010
    assert read[0] < MANY_EVENTS / 10
