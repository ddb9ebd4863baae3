"""What a script does between two explicit steps is in the verdict, by the real hooks."""

import time

import torch
from torch import nn

import traceml
from factories import make_rank, make_run
from traceml.diagnose.engine import diagnose
from traceml.facts.gather import gather
from traceml.model.finding import Kind
from traceml.store.records import RunRecords

MAKING_S = 0.02


def slow_batches(steps):
    for _ in range(steps):
        time.sleep(MAKING_S)
        yield torch.randn(8, 4)


def test_a_generator_outside_trace_step_is_the_verdict(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in slow_batches(15):
        with traceml.trace_step(model):
            model(batch).mean().backward()
            optimizer.step()
    rank = make_rank(traced.complete())
    verdict = diagnose(gather(RunRecords(make_run().manifest, (rank,)))).primary
    assert verdict.kind is Kind.WAIT_HEAVY
    assert verdict.is_between_steps
    assert verdict.lost_s_per_step >= 14 / 15 * MAKING_S  # before the first step it is no step's
    assert "between steps, outside trace_step" in verdict.claim
