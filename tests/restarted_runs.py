"""Makes runs whose ranks were started several times: `restarted(Start(45), Start(20))`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from factories import STARTED_UNIX_S, make_rank, make_steps
from traceml.model.failure import AgentSaw, Death, FailureReport
from traceml.model.rank import ScriptStart
from traceml.model.run import Ending, Manifest
from traceml.store.joined_ranks import number_attempts, one_per_rank
from traceml.store.records import RankRecords, Resumption, RunRecords, TracerHealth

STEP_S = 0.1
START_UP_S = 5.0
"""From the start of an attempt's processes to their first step."""
LAUNCH_S = 1.0
"""From the end of an attempt to the start of the next one's processes."""


@dataclass(frozen=True, slots=True)
class Start:
    """One attempt of `restarted`: its steps, what it loaded, and how it ended."""

    steps: int
    resumed: int | None = None
    """The step that the loaded optimizer had."""
    has_loaded: bool = False
    status: int | None = 1
    """Of rank 1, which ends first; 0: all ranks end well; `None`: nobody saw how it ended."""
    error: str | None = "ValueError"
    ranks: int = 2
    overlap_s: float = 0.0
    """By how much it began before the attempt before it had ended."""
    says_restart: bool = True
    lacks: tuple[int, ...] = ()
    """How many of the steps each rank did not complete, where that is not 0."""
    factors: tuple[float, ...] = (1.0,)
    """Times the usual step, in turn."""
    slow_rank: int | None = None
    """It takes 50 ms longer in its own work; the others wait for it."""

    @property
    def training_s(self) -> float:
        """How long its steps take."""
        return float(np.resize(self.factors, self.steps).sum()) * STEP_S

    def steps_of(self, rank: int) -> int:
        """How many steps a rank completed."""
        return max(0, self.steps - (self.lacks[rank] if rank < len(self.lacks) else 0))


def restarted(*starts: Start, status: int = 0, gpu: bool = False) -> RunRecords:
    """A run whose ranks were started so often; an attempt without steps ends in its start-up."""
    began_s, processes, deaths, reports, marks = 0.0, [], [], [], []
    for number, start in enumerate(starts):
        began_s -= start.overlap_s
        ended_s = began_s + START_UP_S + start.training_s
        for rank in range(start.ranks):
            pid = 1000 + 100 * number + rank
            restart = number if start.says_restart else None
            marks.append(ScriptStart(pid, "host-a", rank, restart, STARTED_UNIX_S + began_s))
            is_first = rank == min(1, start.ranks - 1)
            deaths.append(
                Death(rank, pid, STARTED_UNIX_S + ended_s + (0 if is_first else 0.1), start.status)
            )
            if start.status and start.error and is_first:
                said = FailureReport(rank, start.error, "bad", pid=pid, where="train.py:7 in main")
                step = start.steps + 1 if start.steps else None
                reports.append(replace(said, unix_s=STARTED_UNIX_S + ended_s, step=step))
            if start.steps:
                processes.append(_process(start, rank, pid, began_s, restart, gpu))
        began_s = ended_s + LAUNCH_S
    ranks, each = one_per_rank(processes)
    run = RunRecords(
        manifest=Manifest(run_name="made", started_unix_s=STARTED_UNIX_S, nodes=1),
        ranks=ranks,
        processes=each,
        starts=tuple(marks),
        reports=tuple(reports),
        seen=AgentSaw(deaths=tuple(sorted(deaths, key=lambda death: death.unix_s))),
        ending=Ending(STARTED_UNIX_S + began_s, exit_status=status),
    )
    return number_attempts(run)


def _process(
    start: Start, rank: int, pid: int, began_s: float, restart: int | None, gpu: bool
) -> RankRecords:
    late_ms = 0.0 if start.slow_rank is None else 50.0
    own_ms = late_ms if rank == start.slow_rank else 0.0
    parts: dict[str, float | None] = {"forward": STEP_S * 1e3 - 1.0 + own_ms}
    if late_ms:
        parts["communication"] = late_ms - own_ms
    factors = np.resize(start.factors, start.steps_of(rank))
    steps = make_steps(parts, factors, rest_ms=1.0, gpu=gpu)
    made = make_rank(steps, rank, start.ranks, gpu)
    first_ns = int((STARTED_UNIX_S + began_s + START_UP_S) * 1e9)
    process_ns = int((STARTED_UNIX_S + began_s) * 1e9)
    return replace(
        made,
        rank=replace(made.rank, pid=pid, unix_ns=first_ns, process_unix_ns=process_ns),
        resumption=Resumption(
            start.has_loaded or start.resumed is not None, start.resumed, restart
        ),
        health=TracerHealth(ended=start.status == 0, recording_ended=start.status == 0),
    )
