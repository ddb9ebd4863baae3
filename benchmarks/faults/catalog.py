"""Every scenario there is."""

from __future__ import annotations

from benchmarks.faults.failures import FAILURES
from benchmarks.faults.healthy import HEALTHY_SCENARIOS
from benchmarks.faults.many_ranks import MANY_RANKS
from benchmarks.faults.on_gpu import ON_GPU
from benchmarks.faults.one_rank import ONE_RANK
from benchmarks.faults.scenario import Scenario

SCENARIOS = (*HEALTHY_SCENARIOS, *ONE_RANK, *MANY_RANKS, *FAILURES, *ON_GPU)


def chosen(only: list[str], gpu: bool) -> list[Scenario]:
    """Those that have one of the words in their name, with a GPU or without."""
    return [
        each
        for each in SCENARIOS
        if each.gpu == gpu and (not only or any(word in each.name for word in only))
    ]
