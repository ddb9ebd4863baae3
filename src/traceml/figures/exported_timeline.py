"""A run on one time axis, as a viewer of traces draws it: ranks, phases, sensors and findings.

All times are on the clock of the machine that heads the run. Of a phase its length in each step is
known, and not when in the step it happened: phases are drawn one after another, in the order in
which a step goes through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.facts.attempts import run_end_unix_s
from traceml.figures.exported_tables import (
    RankLife,
    finding_rows,
    rank_lives,
    samples_by_node,
    start_unix_ns,
    step_losses,
)
from traceml.model.phase import IN_BETWEEN, MEASURED, PHASES
from traceml.store.perfetto_trace import EventTemplate, PerfettoWriter
from traceml.store.records import RunRecords
from traceml.store.step_columns import Steps
from traceml.store.step_records import is_incomplete, record_numbers
from traceml.summaries.record import Summary

Ints = npt.NDArray[np.int64]

_DRAWN = {
    **{phase.value: PHASES[phase].label for phase in MEASURED},
    "graph": "CUDA graph of several phases",
}
"""What is drawn inside a step, in its order: the field of its time, and its name."""
_GROUPS_FROM = 1 << 23
"""Numbers of groups of tracks that are no processes: no process has so high a number."""
_REUSED_FROM = 1 << 24
"""Of processes whose number an earlier one of the run had, as in containers."""
_ABOUT_STEPS = ("step_time", "step_memory")
"""Sections whose findings are about the steps as a whole where they name none."""
_UNFINISHED = "Time in no complete step"
_STEPS_ORDER, _GPU_ORDER, _COUNTER_ORDER = 1, 2, 3
_HOST_COUNTERS = {
    "cpu_share": ("CPU busy", "share"),
    "ram_used_bytes": ("RAM used", "bytes"),
    "disk_read_bytes_per_s": ("Disk read", "bytes/s"),
    "disk_write_bytes_per_s": ("Disk written", "bytes/s"),
    "network_received_bytes_per_s": ("Network received", "bytes/s"),
    "network_sent_bytes_per_s": ("Network sent", "bytes/s"),
}
_GPU_COUNTERS = {
    "utilisation": ("utilisation", "share"),
    "memory_used_bytes": ("memory used", "bytes"),
    "temperature_c": ("temperature", "°C"),
    "power_w": ("power", "W"),
    "sm_clock_mhz": ("SM clock", "MHz"),
}
_STEP_COUNTERS = {
    "allocated_bytes": "Memory allocated on the device",
    "reserved_bytes": "Memory reserved on the device",
    "rss_bytes": "Memory of the process",
}


def write_timeline(
    writer: PerfettoWriter, records: RunRecords, summary: Summary | None
) -> tuple[int, int]:
    """Writes a run's timeline; returns how many complete steps of the run, and findings, are on
    it. A step that several ranks took is one."""
    lives = rank_lives(records)
    began_ns = round(records.manifest.started_unix_s * 1e9)
    writer.begin(began_ns)
    findings = _write_findings(writer, records, summary, lives, began_ns)
    attempts, taken = len({life.attempt for life in lives}), set[int]()
    for order, life in enumerate(lives, 1):
        pid = life.records.rank.pid
        number = pid if 0 < pid < _GROUPS_FROM and pid not in taken else _REUSED_FROM + order
        taken.add(number)
        _write_rank(writer, life, order, number, attempts)
    _write_sensors(writer, records, len(lives) + 1)
    complete = [_numbers(life)[~is_incomplete(life.records.steps)] for life in lives]
    return len(np.unique(np.concatenate([np.zeros(0, np.int64), *complete]))), findings


# Steps


def _write_rank(
    writer: PerfettoWriter, life: RankLife, order: int, number: int, attempts: int
) -> None:
    rank, steps = life.records.rank, life.records.steps
    of_attempt = f", attempt {life.attempt}" if attempts > 1 else ""
    name = f"rank {rank.rank}{of_attempt} on {rank.hostname or 'this machine'}"
    group = writer.add_process(name, number, order)
    if not len(steps):
        return
    ends_ns = _write_steps(writer, group, life)
    if bool((steps["gpu_body_ns"] >= 0).any()):
        _write_gpu_steps(writer, group, life)
    for place, (field, label) in enumerate(_STEP_COUNTERS.items()):
        values = np.ma.masked_less(np.asarray(steps[field], np.int64), 0)
        _write_counter(writer, group, _COUNTER_ORDER + place, label, "bytes", ends_ns, values)
    losses = np.ma.masked_invalid(step_losses(steps))
    _write_counter(writer, group, _COUNTER_ORDER + 9, "Loss", "", ends_ns, losses)


def _write_steps(writer: PerfettoWriter, group: int, life: RankLife) -> Ints:
    """Writes the steps by the host's clock; returns when each ended.

    What lies between two steps (evaluation, checkpoints) comes before the step.
    """
    steps = life.records.steps
    starts, walls = start_unix_ns(life, steps), _length(steps, "wall_ns")
    incomplete = is_incomplete(steps)
    step_numbers = _numbers(life)
    begins, ends = _begins_and_ends(life, steps)
    track = writer.add_track("Steps", group, _STEPS_ORDER)
    layout = _Layout(writer, track, len(starts))
    at = starts
    for name in IN_BETWEEN:
        length = np.minimum(_length(steps, f"{name}_ns"), begins - at)
        layout.add_slice(name.capitalize(), at, length)
        at = at + length
    layout.begin_numbered("Step", begins, (walls > 0) & ~incomplete, step_numbers)
    layout.begin(_UNFINISHED, begins, (walls > 0) & incomplete)
    _add_phases(layout, steps, "", begins, ends, ~incomplete)
    layout.end(ends, walls > 0)
    layout.write()
    return ends


def _begins_and_ends(life: RankLife, steps: Steps) -> tuple[Ints, Ints]:
    """Returns when each step began and ended. What a record holds from before its step (evaluation,
    checkpoints) is no part of the step."""
    starts, walls = start_unix_ns(life, steps), _length(steps, "wall_ns")
    inside = _length(steps, "input_ns") + _length(steps, "body_ns")
    between = np.where(is_incomplete(steps), 0, np.maximum(walls - inside, 0))
    return starts + between, starts + walls


def _write_gpu_steps(writer: PerfettoWriter, group: int, life: RankLife) -> None:
    """Writes the complete steps that the GPU timed, each when its host began it or the GPU was
    ready."""
    steps = life.records.steps
    places = np.flatnonzero((steps["gpu_body_ns"] >= 0) & ~is_incomplete(steps))
    timed = steps[places]
    lengths = _length(timed, "gpu_input_ns") + _length(timed, "gpu_body_ns")
    ready = start_unix_ns(life, timed) + np.maximum(
        _length(timed, "wall_ns") - _length(timed, "input_ns") - _length(timed, "body_ns"), 0
    )
    before = np.cumsum(lengths) - lengths
    begins = np.maximum.accumulate(ready - before) + before  # never before the end of the last one
    track = writer.add_track("Steps by the GPU's clock", group, _GPU_ORDER)
    layout = _Layout(writer, track, len(timed))
    every = np.ones(len(timed), bool)
    layout.begin_numbered("Step", begins, lengths > 0, _numbers(life)[places])
    _add_phases(layout, timed, "gpu_", begins, begins + lengths, every)
    layout.end(begins + lengths, lengths > 0)
    layout.write()


def _add_phases(
    layout: _Layout, steps: Steps, prefix: str, at: Ints, ends: Ints, chosen: Any
) -> None:
    """Adds a step's phases, one after another; those that do not fit into it are cut at its end."""
    for name, label in _DRAWN.items():
        room = np.where(chosen, np.maximum(ends - at, 0), 0)
        length = np.minimum(_length(steps, f"{prefix}{name}_ns"), room)
        layout.add_slice(label, at, length)
        at = at + length


def _numbers(life: RankLife) -> Ints:
    """Returns the number of each record's step in the run, from 1."""
    return record_numbers(life.records) + (1 + life.former_steps)


def _length(steps: Steps, name: str) -> Ints:
    """Returns one field of the steps, zero where it was not measured: nothing is drawn then."""
    return np.maximum(np.asarray(steps[name], np.int64), 0)


class _Layout:
    """The events of a track, a row per step, in the order in which a step has them."""

    def __init__(self, writer: PerfettoWriter, track: int, rows: int) -> None:
        self._writer, self._track = writer, track
        self._numbers: Ints = np.zeros(rows, np.int64)
        self._templates: list[EventTemplate] = [writer.end_of(track)]
        self._times: list[Ints] = []
        self._kinds: list[npt.NDArray[np.intp]] = []

    def begin(self, word: str, at: Ints, chosen: Any) -> None:
        """Begins a slice of this name in some of the rows."""
        self._begin(self._writer.begin_of(self._track, word), at, chosen)

    def begin_numbered(self, word: str, at: Ints, chosen: Any, numbers: Ints) -> None:
        """Begins a slice in some of the rows that shows the number of its step."""
        self._numbers = numbers
        self._begin(self._writer.begin_of_numbered(self._track, word, "step"), at, chosen)

    def _begin(self, template: EventTemplate, at: Ints, chosen: Any) -> None:
        kind = len(self._templates)
        self._templates.append(template)
        self._add(np.where(chosen, kind, -1).astype(np.intp), at)

    def end(self, at: Ints, chosen: Any) -> None:
        """Ends the innermost slice in some of the rows."""
        self._add(np.where(chosen, 0, -1).astype(np.intp), at)

    def add_slice(self, word: str, at: Ints, length: Ints) -> None:
        """Adds a slice to the rows in which it has a length."""
        self.begin(word, at, length > 0)
        self.end(at + length, length > 0)

    def write(self) -> None:
        """Writes all events, step by step."""
        kinds = np.array(self._kinds).T.ravel()
        times = np.array(self._times).T.ravel()
        numbers = np.repeat(self._numbers.astype(np.float64), len(self._kinds))
        chosen = np.flatnonzero(kinds >= 0)
        self._writer.add_events(self._templates, kinds[chosen], times[chosen], numbers[chosen])

    def _add(self, kinds: npt.NDArray[np.intp], at: Ints) -> None:
        self._kinds.append(kinds)
        self._times.append(at)


# Counters


def _write_counter(
    writer: PerfettoWriter,
    group: int,
    order: int,
    label: str,
    unit: str,
    at_ns: Ints,
    values: Any,
) -> None:
    """Writes a counter's known values; without any there is no such track."""
    known = np.flatnonzero(~np.ma.getmaskarray(values))
    if not len(known):
        return
    template = writer.value_of_counter(writer.add_counter(label, group, order, unit))
    numbers = np.asarray(np.ma.getdata(values)[known], np.float64)
    writer.add_events([template], np.zeros(len(known), np.intp), at_ns[known], numbers)


def _write_sensors(writer: PerfettoWriter, records: RunRecords, order: int) -> None:
    """Writes the sensors of every machine, a group each."""
    by_node: dict[str, list[Any]] = {}
    for node, sample in samples_by_node(records):
        by_node.setdefault(node, []).append(sample)
    for place, (node, samples) in enumerate(by_node.items()):
        group = writer.add_process(f"machine {node}", _GROUPS_FROM + 1 + place, order + place)
        at_ns = np.array([round(sample.unix_s * 1e9) for sample in samples], np.int64)
        hosts = [sample.host for sample in samples]
        for row, (label, unit, values) in enumerate(_readings(hosts, _HOST_COUNTERS)):
            _write_counter(writer, group, row, label, unit, at_ns, values)
        for index in sorted({gpu.index for sample in samples for gpu in sample.gpus}):
            gpus = [_gpu_of(sample, index) for sample in samples]
            for row, (label, unit, values) in enumerate(_readings(gpus, _GPU_COUNTERS)):
                order_of = 100 * (1 + index) + row
                _write_counter(writer, group, order_of, f"GPU {index} {label}", unit, at_ns, values)


def _gpu_of(sample: Any, index: int) -> Any:
    return next((gpu for gpu in sample.gpus if gpu.index == index), None)


def _readings(
    sensors: Sequence[Any], counters: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, str, Any]]:
    for name, (label, unit) in counters.items():
        values = [getattr(sensor, name, None) for sensor in sensors]
        missing = [value is None for value in values]
        numbers = [0.0 if value is None else float(value) for value in values]
        yield label, unit, np.ma.masked_array(numbers, missing)


# Findings


def _write_findings(
    writer: PerfettoWriter,
    records: RunRecords,
    summary: Summary | None,
    lives: Sequence[RankLife],
    began_ns: int,
) -> int:
    """Writes each finding on a track of its own; returns how many findings there are.

    A finding lies over the steps that it is about. Without such steps it lies over all steps, if it
    is about steps, or else over the whole run. The place where the run failed is marked as well.
    """
    if summary is None:
        return 0
    group = writer.add_process("findings", _GROUPS_FROM, 0)
    end_ns = max(round(run_end_unix_s(records) * 1e9), began_ns)
    rows = list(finding_rows(summary))
    moments = _StepMoments(lives)
    for order, row in enumerate(rows):
        begin_ns, end_of_ns = moments.span(row["since_step"], row["until_step"])
        if row["since_step"] is None and row["section"] not in _ABOUT_STEPS:
            begin_ns = end_of_ns = None
        begin_ns = min(max(begin_ns or began_ns, began_ns), end_ns)
        end_of_ns = min(max(end_of_ns or end_ns, begin_ns), end_ns)
        status = row["status"] or row["kind"] or "finding"
        track = writer.add_track(f"{row['section']}: {status}", group, order)
        noted = ("kind", "severity", "summary", "action", "phase", "share", "ranks")
        notes = {name: row[name] for name in (*noted, "since_step", "until_step")}
        writer.add_slice(track, status, begin_ns, end_of_ns, notes)
    failure = summary.failure
    if failure is not None:
        at_ns = None if failure.step is None else moments.end_ns(failure.step)
        notes = {"summary": failure.summary, "rank": failure.rank, "where": failure.where}
        track = writer.add_track("failure", group, len(rows))
        writer.add_instant(track, failure.kind or "failed", at_ns or end_ns, notes)
    return len(rows)


class _StepMoments:
    """When the steps of a run were taken: from the first rank that began a step to the last rank
    that ended it.

    A step that was not completed has the number after the last complete one.
    """

    def __init__(self, lives: Iterable[RankLife]) -> None:
        self._of_ranks: list[tuple[Ints, Ints, Ints]] = []
        """The numbers of each process's steps, when they began, and when they ended."""
        for life in lives:
            if len(steps := life.records.steps):
                begins, ends = _begins_and_ends(life, steps)
                self._of_ranks.append((_numbers(life), begins, ends))

    def span(self, first: int | None, last: int | None) -> tuple[int | None, int | None]:
        """Returns when these steps were taken; all steps without a first one.

        The beginning is `None` where no single step of that number is kept, the end also where
        there is no last one.
        """
        if first is None:
            return self._first_ns(), self._last_ns()
        return self.begin_ns(first), None if last is None else self.end_ns(last)

    def begin_ns(self, step: int) -> int | None:
        """Returns when the first rank began a step, or could have begun it."""
        found = [begins[numbers == step] for numbers, begins, _ in self._of_ranks]
        began_ns = min((int(each[0]) for each in found if len(each)), default=None)
        is_after_all = all(int(numbers[-1]) < step for numbers, *_ in self._of_ranks)
        return self._last_ns() if began_ns is None and is_after_all else began_ns

    def end_ns(self, step: int) -> int | None:
        """Returns when the last rank ended a step, completed or not."""
        found = [ends[numbers == step] for numbers, _, ends in self._of_ranks]
        return max((int(each[-1]) for each in found if len(each)), default=None)

    def _first_ns(self) -> int | None:
        return min((int(begins[0]) for _, begins, _ in self._of_ranks), default=None)

    def _last_ns(self) -> int | None:
        return max((int(ends[-1]) for *_, ends in self._of_ranks), default=None)
