"""Makes runs that went wrong: `failed(report(...))`, `with_stall(...)`, `with_loss(...)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from factories import STARTED_UNIX_S, make_run
from traceml.model.failure import AgentSaw, Death, Doing, FailureReport, Stall, Standing
from traceml.model.record_layout import StepFlag
from traceml.model.run import Ending
from traceml.store.records import RunRecords

ENDED_UNIX_S = STARTED_UNIX_S + 60


def report(rank: int = 0, error: str = "ValueError", message: str = "bad", **more: Any) -> Any:
    """What a rank of `make_run` says of an exception at its end."""
    values = {
        "step": 201,
        "phase": "forward",
        "module": "block.1",
        "where": "train.py:7 in forward",
    }
    values |= {"unix_s": ENDED_UNIX_S, "pid": 1000 + rank, **more}
    return FailureReport(rank, error, message, **values)


def failed(
    *reports: FailureReport, status: int | None = 1, ranks: int = 1, **more: Any
) -> RunRecords:
    """A run that ended with this status, and what its ranks said."""
    run = make_run(ranks=ranks, **more)
    return replace(run, reports=reports, ending=Ending(ENDED_UNIX_S, exit_status=status))


def said_goodbye(run: RunRecords, *ranks: int) -> RunRecords:
    """The same run, in which these ranks ended by themselves."""
    return replace(
        run,
        ranks=tuple(
            replace(rank, health=replace(rank.health, ended=rank.rank.rank in ranks))
            for rank in run.ranks
        ),
    )


def unrecorded(run: RunRecords, *ranks: int) -> RunRecords:
    """The same run, in which the tracer of these ranks had stopped recording."""
    return replace(
        run,
        ranks=tuple(
            replace(rank, health=replace(rank.health, recording_ended=rank.rank.rank in ranks))
            for rank in run.ranks
        ),
    )


def with_deaths(run: RunRecords, *deaths: tuple[int, int | None]) -> RunRecords:
    """The same run, in which the agent saw these ranks end one after the other, with a status."""
    seen = tuple(
        Death(rank, 1000 + rank, ENDED_UNIX_S - 1 + 0.1 * place, status)
        for place, (rank, status) in enumerate(deaths)
    )
    return replace(run, seen=replace(run.seen, deaths=seen))


def with_lost_machine(run: RunRecords, before_end_s: float = 4.0) -> RunRecords:
    """The same run on several machines, the last of which was lost so long before the end."""
    *others, last = run.nodes
    heard_s = (ENDED_UNIX_S if run.ending is None else run.ending.unix_s) - before_end_s
    kept = tuple(replace(each, unix_s=heard_s) for each in last.samples[:1])
    lost = replace(last, samples=kept, ending=None, state=replace(last.state, is_finished=False))
    there = tuple(replace(each, ending=run.ending) for each in others)
    return replace(run, nodes=(*there, lost))


def standing(rank: int, doing: Doing, where: str = "train.py:9 in main", **more: Any) -> Standing:
    """Where a rank of `make_run` stood."""
    return Standing(rank, 1000 + rank, doing, steps=200, where=where, **more)


def with_stall(
    run: RunRecords, *ranks: Standing, resumed: bool = False, after_s: float = 30.0
) -> RunRecords:
    """The same run, whose ranks stood still for half a minute and then went on or not."""
    stall = Stall(
        since_unix_s=STARTED_UNIX_S + 10,
        seen_unix_s=STARTED_UNIX_S + 10 + after_s,
        usual_s=0.037,
        ranks=ranks,
        resumed_unix_s=STARTED_UNIX_S + 50 if resumed else None,
        stacks=tuple(f"stacks/rank-{each.rank}-{each.pid}.txt" for each in ranks),
    )
    return replace(run, seen=AgentSaw(deaths=run.seen.deaths, stalls=(stall,)))


def with_loss(
    values: Sequence[float],
    every: int = 1,
    micro_batches: int | Sequence[int] | None = None,
    lag: int = 0,
    **more: Any,
) -> RunRecords:
    """A run whose loss was looked at in every so many steps, and came so many records later."""
    run = make_run(steps=len(values) * every + lag, **more)
    ranks = []
    for rank in run.ranks:
        steps = rank.steps.copy()
        places = np.arange(len(values)) * every + lag
        steps["loss"][places] = np.asarray(values)
        steps["flags"][places] |= int(StepFlag.LOSS_SEEN)
        steps["loss_lag"][places] = lag
        if micro_batches is not None:
            steps["micro_batches"][: len(values) * every] = micro_batches
        ranks.append(replace(rank, steps=steps))
    return replace(run, ranks=tuple(ranks))
