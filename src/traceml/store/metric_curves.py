"""Reads the whole history of logged metrics from a run folder: when each value was logged."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from traceml.store import folder as folders
from traceml.store.logged import unix_ns
from traceml.store.metric_follower import Logged, MetricFollower, value_of
from traceml.store.node_folders import node_folders, read_node
from traceml.store.record_file import RankFiles

Curve = tuple[tuple[float, float], ...]
"""Seconds since the run began, and the value; in order of time."""


def read_curves(folder: Path, names: Collection[str]) -> dict[str, Curve]:
    """Returns the finite values of these metrics with their times, as far as they are on disk.

    Of a very long run a part of the values is kept. Raises what reading a manifest raises where the
    folder is no run.
    """
    start_s = folders.read_manifest(folder).started_unix_s
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for files in RankFiles.all_in(folder):
        for message in files.read_messages():
            values = message.get("values")
            if message.get("kind") != "metrics" or not isinstance(values, dict):
                continue
            at_s = unix_ns(message) * 1e-9 - start_s
            for name in found.keys() & values.keys():
                value = values[name]
                if isinstance(value, int | float) and math.isfinite(value):
                    found[name].append((max(0.0, at_s), float(value)))
    in_order = {name: sorted(curve, key=itemgetter(0)) for name, curve in found.items()}
    return {name: tuple(curve) for name, curve in in_order.items() if curve}


def read_logged(folder: Path, name: str) -> list[Logged]:
    """Returns one metric over its steps, restart by restart: of the lowest rank that logged it,
    by the names of the files. Empty where the folder has no such metric."""
    found: dict[int, list[Logged]] = {}
    for path in sorted(folder.glob("rank-*.messages")):
        log = MetricFollower(path)
        log.refresh()
        if name in log.metrics:
            found.setdefault(_rank_in(path.name), []).append(log.metrics[name])
    return found[min(found)] if found else []


def _rank_in(file_name: str) -> int:
    """Returns the rank in a file's name: `rank-<rank>-<pid>.messages`."""
    number = file_name.split("-")[1]
    return int(number) if number.isdigit() else 0


@dataclass(frozen=True, slots=True)
class LoggedValue:
    """One logged value of one metric."""

    name: str
    rank: int
    """As the process's file is called after it."""
    node: str
    step: int | None
    unix_s: float
    """On the head's clock."""
    value: float


def logged_values(folder: Path) -> Iterator[LoggedValue]:
    """Yields every logged value that is on disk, of all machines, process by process.

    Of a very long run a part of the values is kept. Raises what reading a manifest raises where the
    folder is no run.
    """
    yield from _values_in(folder, folders.read_manifest(folder).hostname, 0.0)
    for path in node_folders(folder):
        node = read_node(path)
        ahead_s = 0.0 if node is None else node.clock_offset_s or 0.0
        yield from _values_in(path, path.name if node is None else node.hostname, ahead_s)


def _values_in(folder: Path, node: str, ahead_s: float) -> Iterator[LoggedValue]:
    for files in RankFiles.all_in(folder):
        rank = _rank_in(files.stem)
        for message in files.read_messages():
            values = message.get("values")
            if message.get("kind") != "metrics" or not isinstance(values, dict):
                continue
            at_s = unix_ns(message) * 1e-9 - ahead_s
            step = message.get("step")
            number = step if isinstance(step, int) else None
            for name, value in values.items():
                found = value_of(value)
                if found is not None:
                    yield LoggedValue(str(name), rank, node, number, at_s, found)
