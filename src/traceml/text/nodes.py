"""The machines of a run over several as a table of text, and the words that pages share with it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from traceml.model.printable import one_line, shorten_middle
from traceml.model.quantities import count, duration, milliseconds, percent
from traceml.summaries.own_time import own_time_spread
from traceml.summaries.record import NodeSummary, SectionSummary, Summary

MAX_NODES = 8
MAX_NOTES = 4
WIDTH = 80
NAME, RANKS = 13, 11

WAYS = {"head": "head", "shared": "shared folder", "http": "sent", "copied": "copied"}
"""How the records of a node came, in words."""

_COLUMNS = {
    "own": ("own_time_ms", 8),
    "comm.": ("communication_ms", 8),
    "CPU": ("cpu_percent", 6),
    "RAM": ("ram_percent", 6),
    "GPU": ("gpu_util_percent", 6),
}
"""Title, key and width."""


def slowest_first(nodes: Sequence[NodeSummary]) -> list[NodeSummary]:
    """Returns the nodes by the own time of their ranks; those without a time come last."""
    return sorted(nodes, key=lambda node: -(node.metrics.get("own_time_ms") or 0.0))


def rank_range(ranks: Sequence[int]) -> str:
    """Returns ranks in few characters: `8–15`, `0, 2, 4`, `12 ranks`."""
    if not ranks:
        return "none"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}–{ranks[-1]}"
    if len(ranks) > 4:
        return count(len(ranks), "rank")
    return ", ".join(map(str, ranks))


def clock_words(node: NodeSummary) -> str:
    """Returns by how much a node's clock is ahead of the head's, and how certain that is; `±100 µs`
    where they are not told apart."""
    if node.way == "head":
        return "head"
    offset_s, uncertainty_s = node.clock_offset_s, node.clock_uncertainty_s
    if offset_s is None or uncertainty_s is None:
        return "not measured"
    if abs(offset_s) <= uncertainty_s:
        return f"±{duration(uncertainty_s)}"
    sign = "−" if offset_s < 0 else "+"
    return f"{sign}{duration(abs(offset_s))} ±{duration(uncertainty_s)}"


def node_lines(summary: Summary) -> list[str]:
    """Returns the table of nodes, and what is missing of them; empty for a run on one machine."""
    if not summary.nodes:
        return []
    shown = {
        title: place
        for title, place in _COLUMNS.items()
        if any(node.metrics.get(place[0]) is not None for node in summary.nodes)
    }
    many = len(summary.nodes) > MAX_NODES
    said = [f"the slowest {MAX_NODES} of {count(len(summary.nodes))}"] if many else []
    if any(key.endswith("_ms") for key, _ in shown.values()):
        said.append("in ms")
    title = f" ({', '.join(said)})" if said else ""
    heads = "".join(f"{title:>{width}}" for title, (_, width) in shown.items())
    lines = [f"  Nodes{title}", f"  {'node':<{NAME}}{'ranks':>{RANKS}}{heads}  clock"]
    for node in slowest_first(summary.nodes)[:MAX_NODES]:
        name = shorten_middle(one_line(node.name), NAME - 1)
        cells = "".join(_cell(node.metrics.get(key), key, width) for key, width in shown.values())
        ranks = f"{rank_range(node.ranks):>{RANKS}}"
        lines.append(f"  {name:<{NAME}}{ranks}{cells}  {clock_words(node)}")
    return lines + _missing(summary.nodes)


def _cell(value: float | None, key: str, width: int) -> str:
    words = (
        milliseconds(value).removesuffix(" ms")
        if key.endswith("_ms")
        else percent(None if value is None else value / 100)
    )
    return f"{words:>{width}}"


def _missing(nodes: Sequence[NodeSummary]) -> list[str]:
    """Returns what is missing, node by node; of many the first ones and how many more."""
    lacking = [node for node in nodes if node.missing]
    lines = [
        f"  {shorten_middle(one_line(node.name), NAME - 1)} lacks {', '.join(node.missing)}"
        for node in lacking[:MAX_NOTES]
    ]
    if len(lacking) > MAX_NOTES:
        lines.append(f"  … and {count(len(lacking) - MAX_NOTES, 'node')} more lack something")
    return lines


def rank_distribution(section: SectionSummary) -> list[str]:
    """Returns how the own time of many ranks is distributed; the slowest are in the table above."""
    found = own_time_spread(section.groups.rows)
    if found is None:
        return []
    times = {
        f"fastest (rank {one_line(found.best_rank, 6)})": found.best_ms,
        **found.quantiles_ms,
    }
    parts = [f"{name} {milliseconds(value).removesuffix(' ms')}" for name, value in times.items()]
    words = f"own time in ms: {', '.join(parts)}"
    return textwrap.wrap(words, WIDTH, initial_indent="  ", subsequent_indent=" " * 4)
