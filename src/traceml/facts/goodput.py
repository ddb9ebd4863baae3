"""Goodput: the share of a run's wall time in productive steps, and what the rest of it went to.

The wall time of the run is divided among its attempts, from the start of each to the start of the
next. In each the ranks' times are averaged. So every second is accounted for once, and the parts
sum to the wall time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.attempts import Attempt
from traceml.model.run_time import RunPart
from traceml.store.attempt_groups import has_records, hosts_without_clock, span_unix_s
from traceml.store.records import RankRecords, RunRecords
from traceml.store.step_columns import StepColumns, columns_of
from traceml.store.step_records import is_incomplete

SECONDS_PER_HOUR = 3600.0
_FIELDS = ("wall", "input", "body", "evaluation", "checkpoint", "compile")

PartTimes = dict[RunPart, float]


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where the wall time of a run went."""

    wall_s: float
    parts_s: Mapping[RunPart, float]
    """Every part; they sum to the wall time."""
    is_complete: bool = True
    """Whether all steps were recorded; else nobody knows the share."""
    gpu_hours: float | None = None
    """The wall time times the GPUs that the ranks trained on; `None` without GPUs."""
    productive_gpu_hours: float | None = None

    @property
    def share(self) -> float | None:
        """The share of the wall time in productive steps, 0–1; `None` where it is not known.

        As that of every other part: an attempt on more GPUs counts as one on fewer. What the GPUs
        were used for says `productive_gpu_hours`.
        """
        return self.share_of(RunPart.STEPS) if self.is_complete and self.wall_s > 0 else None

    def share_of(self, part: RunPart) -> float:
        """Returns a part's share of the wall time, 0–1."""
        return self.parts_s[part] / self.wall_s if self.wall_s > 0 else 0.0


def goodput_of(records: RunRecords, attempts: Sequence[Attempt]) -> Goodput | None:
    """Returns the goodput of a run; `None` where it took no step."""
    if not any(attempt.steps for attempt in attempts):
        return None
    in_all = _zeros()
    most_gpus = max(map(_gpus, attempts))
    gpu_s = productive_gpu_s = 0.0
    unmeasured = hosts_without_clock(records)
    for attempt in attempts:
        parts = _of_attempt(attempt, attempts, unmeasured, is_over=records.ending is not None)
        for part, spent_s in parts.items():
            in_all[part] += spent_s
        # An attempt that ended before its first step did not say where it would have trained.
        gpus = _gpus(attempt) if attempt.processes else most_gpus
        gpu_s += gpus * (attempt.until_unix_s - attempt.began_unix_s)
        productive_gpu_s += gpus * parts[RunPart.STEPS]
    return Goodput(
        wall_s=sum(in_all.values()),
        parts_s=in_all,
        is_complete=not any(map(_stopped_recording, records.ranks)),
        gpu_hours=gpu_s / SECONDS_PER_HOUR if most_gpus else None,
        productive_gpu_hours=productive_gpu_s / SECONDS_PER_HOUR if most_gpus else None,
    )


def _zeros() -> PartTimes:
    return dict.fromkeys(RunPart, 0.0)


def _gpus(attempt: Attempt) -> int:
    ranks = [each.rank for each in attempt.processes if each.rank.is_on_gpu]
    return len({(rank.hostname, rank.device_uuid or rank.device) for rank in ranks})


def _of_attempt(
    attempt: Attempt, attempts: Sequence[Attempt], unmeasured: Collection[str], is_over: bool
) -> PartTimes:
    """Returns what the time of one attempt went to, as the mean of its ranks; those of machines
    whose clocks were not measured count where there are no others."""
    window_s = attempt.until_unix_s - attempt.began_unix_s
    before = RunPart.RESTARTS if attempt.is_restart else RunPart.START_UP
    after = _part_after(attempt, attempts, is_over)
    processes = [each for each in attempt.processes if has_records(each)]
    known = [each for each in processes if each.rank.hostname not in unmeasured]
    found = [_of_process(each, attempt, before, after) for each in known or processes]
    if not found:
        return _zeros() | {after if after is RunPart.RESTARTS else before: window_s}
    return _fitted(_mean(found), window_s)


def _part_after(attempt: Attempt, attempts: Sequence[Attempt], is_over: bool) -> RunPart:
    """Returns the part to which the time after an attempt's last step belongs."""
    if attempt.failure is not None and attempt.failure.has_hung:
        return RunPart.HANG
    if attempt.number < len(attempts):
        is_restarted = attempts[attempt.number].is_restart
        return RunPart.RESTARTS if is_restarted else RunPart.START_UP
    return RunPart.SHUT_DOWN if is_over else RunPart.REST


def _of_process(
    process: RankRecords, attempt: Attempt, before: RunPart, after: RunPart
) -> PartTimes:
    """Returns what the time of one process went to, from the start of its attempt to the end."""
    first_s, last_s = span_unix_s(process)
    found = _recorded(process, attempt.redone_steps or 0, after)
    found[RunPart.REST] += max(0.0, last_s - first_s - sum(found.values()))
    found[before] += max(0.0, first_s - attempt.began_unix_s)
    ended = RunPart.REST if _stopped_recording(process) else after
    found[ended] += max(0.0, attempt.until_unix_s - last_s)
    return found


def _stopped_recording(process: RankRecords) -> bool:
    """Returns whether a process took steps that were not recorded, on request or because tracing
    failed; at its regular end every process stops recording."""
    health = process.health
    return health.limit_reached or (health.recording_ended and not health.ended)


def _recorded(process: RankRecords, redone_steps: int, after: RunPart) -> PartTimes:
    """Returns what the recorded time of a process went to.

    What an incomplete record after the last complete step holds, besides evaluation and saving, is
    part of how the attempt ended.
    """
    columns = columns_of(process.steps)
    incomplete = is_incomplete(columns)
    complete = columns[np.flatnonzero(~incomplete)] if incomplete.any() else columns
    found = _divided(_sums_s(complete))
    if len(process.blocks):
        found = _added(found, _folded(process))
    if incomplete.any():
        last = int(np.flatnonzero(~incomplete)[-1]) if len(complete) else -1
        places = np.flatnonzero(incomplete)
        found = _added(found, _unfinished(columns[places[places < last]], RunPart.REST))
        found = _added(found, _unfinished(columns[places[places > last]], after))
    if redone_steps:
        redone_s = _redone_s(process, complete, redone_steps)
        found[RunPart.STEPS] -= redone_s
        found[RunPart.REDONE] += redone_s
    return found


def _sums_s(steps: StepColumns) -> dict[str, float]:
    """Returns the sum of each field that the account needs; what was not measured counts as
    nothing."""
    sums = {}
    for name in _FIELDS:
        values = steps.broadcastable(f"{name}_ns")
        if isinstance(values, int):
            sums[name] = float(max(values, 0) * len(steps)) * 1e-9
            continue
        is_measured = not len(values) or values.min() >= 0  # as nearly always
        sums[name] = float((values if is_measured else np.maximum(values, 0)).sum()) * 1e-9
    return sums


def _folded(process: RankRecords) -> PartTimes:
    """Returns what the old steps went to that are merged into blocks."""
    blocks = process.blocks
    found = _divided({name: float(blocks[f"{name}_ns_sum"].sum()) * 1e-9 for name in _FIELDS})
    found[RunPart.REST] = float(blocks["incomplete_wall_ns"].sum()) * 1e-9
    return found


def _divided(sums: Mapping[str, float]) -> PartTimes:
    """Returns what complete steps went to, from the sums of their fields."""
    compiling = min(sums["compile"], sums["body"])
    step = sums["input"] + sums["body"]
    beside = sums["evaluation"] + sums["checkpoint"]
    return _zeros() | {
        RunPart.STEPS: step - compiling,
        RunPart.COMPILATION: compiling,
        RunPart.EVALUATION: sums["evaluation"],
        RunPart.CHECKPOINTS: sums["checkpoint"],
        RunPart.BETWEEN: max(0.0, sums["wall"] - step - beside),
    }


def _unfinished(records: StepColumns, part: RunPart) -> PartTimes:
    """Returns what incomplete records went to: besides evaluation and saving, to this part."""
    sums = _sums_s(records)
    beside = sums["evaluation"] + sums["checkpoint"]
    return _zeros() | {
        RunPart.EVALUATION: sums["evaluation"],
        RunPart.CHECKPOINTS: sums["checkpoint"],
        part: max(0.0, sums["wall"] - beside),
    }


def _redone_s(process: RankRecords, complete: StepColumns, steps: int) -> float:
    """Returns the time of the last steps of a process; of those in blocks, the mean of them."""
    single = min(steps, len(complete))
    found_s = _divided(_sums_s(complete[len(complete) - single :]))[RunPart.STEPS]
    folded = int(process.blocks["complete_steps"].sum())
    if steps > single and folded:
        share = min(1.0, (steps - single) / folded)
        found_s += share * _folded(process)[RunPart.STEPS]
    return found_s


def _added(one: PartTimes, other: PartTimes) -> PartTimes:
    return {part: one[part] + other[part] for part in RunPart}


def _mean(found: Sequence[PartTimes]) -> PartTimes:
    return {part: sum(each[part] for each in found) / len(found) for part in RunPart}


def _fitted(parts: PartTimes, window_s: float) -> PartTimes:
    """Returns the parts so that they sum to the time there was.

    They do by themselves unless a clock was set, or two attempts overlapped: time that is missing
    is rest, and of too much time each part is cut by the same share.
    """
    total_s = sum(parts.values())
    if total_s <= window_s:
        return parts | {RunPart.REST: parts[RunPart.REST] + window_s - total_s}
    return {part: spent_s * window_s / total_s for part, spent_s in parts.items()}
