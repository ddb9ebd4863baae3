"""What a script does between two steps is in the verdict, by the real hooks."""

import time
from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import traceml
from factories import make_rank, make_run
from traceml.diagnose.engine import diagnose
from traceml.diagnose.time_account import outside_steps_s
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section
from traceml.model.record_layout import NO_STEP
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


AFTERWARDS_S = 0.1
EPOCHS, BATCHES = 6, 4


def train(model, optimizer):
    for batch in DataLoader(torch.randn(8 * BATCHES, 4), batch_size=8):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()


def exhausting(model, loader):
    for batch in loader:
        model(batch)


def breaking_off(model, loader):
    for batch in islice(loader, BATCHES):
        model(batch)


def fetching_ahead(model, loader):
    """As Accelerate's loaders do."""
    batches = iter(loader)
    coming = next(batches)
    while coming is not None:
        batch, coming = coming, next(batches, None)
        model(batch)


@pytest.mark.parametrize("region", ["evaluation", "validation", "metrics"])
def test_metrics_are_evaluation_where_the_script_calls_them_so(traced, region):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(16 * BATCHES, 4), batch_size=8)
    in_region_ns = in_metrics_ns = 0
    for _ in range(3):
        train(model, optimizer)
        began_ns = time.perf_counter_ns()
        with torch.no_grad(), traceml.trace_time(region):
            exhausting(model.eval(), loader)
            computing_ns = time.perf_counter_ns()
            time.sleep(AFTERWARDS_S)
            in_metrics_ns += time.perf_counter_ns() - computing_ns
        in_region_ns += time.perf_counter_ns() - began_ns
        model.train()
    evaluated_ns = traced.finish()["evaluation_ns"].sum()
    if region == "metrics":  # it may be anything
        assert 0 < evaluated_ns <= in_region_ns - in_metrics_ns
    else:
        assert in_metrics_ns <= evaluated_ns <= in_region_ns


@pytest.mark.parametrize("evaluate", [exhausting, breaking_off, fetching_ahead])
def test_what_follows_an_evaluation_is_no_part_of_it(traced, evaluate):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(16 * BATCHES, 4), batch_size=8)
    evaluated_ns = 0
    for _ in range(EPOCHS):
        train(model, optimizer)
        began_ns = time.perf_counter_ns()
        with torch.no_grad():
            evaluate(model.eval(), loader)
        evaluated_ns += time.perf_counter_ns() - began_ns
        model.train()
        time.sleep(AFTERWARDS_S)  # a plot is drawn, a file is uploaded
    steps = traced.finish()
    assert 0 < steps["evaluation_ns"].sum() <= evaluated_ns
    whole = steps[(steps["flags"] & int(NO_STEP)) == 0]
    assert len(whole) == EPOCHS * BATCHES
    run = RunRecords(make_run().manifest, (make_rank(whole),))
    facts = gather(run)
    afterwards_s = (EPOCHS - 1) * AFTERWARDS_S / len(whole)
    assert outside_steps_s(facts.mean) >= afterwards_s
    told = diagnose(facts).sections[Section.STEP_TIME]
    (found,) = [each for each in told if each.kind is Kind.WAIT_HEAVY]
    assert found.is_between_steps
    assert "around an evaluation" in found.claim
    assert "trace_step" not in found.claim + found.action
