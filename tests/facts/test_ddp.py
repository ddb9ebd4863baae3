"""What DDP measured itself is one record for the whole job."""

from dataclasses import replace

import pytest

from factories import make_run
from traceml.facts.gather import gather
from traceml.store.records import DdpStatistics, RunRecords


def run_with(*statistics: DdpStatistics | None) -> RunRecords:
    run = make_run(ranks=len(statistics), steps=10)
    known = zip(run.ranks, statistics, strict=True)
    return replace(run, ranks=tuple(replace(rank, ddp=each) for rank, each in known))


def statistics(overlap_s: float) -> DdpStatistics:
    return DdpStatistics(0.02, overlap_s, gradient_bytes=4096, buckets=2, has_hook=False)


def test_hidden_communication_is_the_mean_over_the_ranks_that_know() -> None:
    facts = gather(run_with(statistics(0.01), None, statistics(0.03)))
    assert facts.hidden_communication_s == pytest.approx(0.02)
    assert facts.ddp == replace(statistics(0.02), overlap_s=facts.hidden_communication_s)


def test_without_ddp_hidden_communication_is_unknown_and_not_zero() -> None:
    assert gather(run_with(None, None)).hidden_communication_s is None
