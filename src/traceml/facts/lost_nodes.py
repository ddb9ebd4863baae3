"""The machines that a run lost with everything on them: none of their launchers, agents and ranks
reported how they ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from traceml.facts.rank_ends import last_step_unix_s, steps_taken
from traceml.model.node import NodeWay
from traceml.store.records import NodeRecords, RunRecords

MAX_TRAINED_ON_S = 10.0
"""How long the other ranks may take steps after a machine was last heard of: without it they cannot
go on, and its records arrive within seconds. If they trained longer, only its link was cut."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """One machine that was lost."""

    name: str
    ranks: tuple[int, ...]
    """The ranks that were lost with it."""
    pids: tuple[int, ...]
    steps: int
    """The last known step of these ranks."""
    last_heard_unix_s: float
    """When its agent, or a step of its ranks, was last recorded; on the head's clock."""


def lost_nodes(
    records: RunRecords, until_unix_s: float, silent_s: float, known_ends: Collection[int]
) -> tuple[LostNode, ...]:
    """Returns the machines that had not ended and were silent for the last `silent_s` before a
    moment, in the order in which they fell silent.

    `known_ends` are processes that reported, or were seen, to end badly: their machines are left
    out, because more is known of them. So are machines whose clock was not measured, and the head.
    """
    by_pid = {each.rank.pid: each for each in records.ranks}
    last_s = {pid: last_step_unix_s(each) for pid, each in by_pid.items()} if records.nodes else {}
    latest = sorted(last_s, key=lambda pid: -last_s[pid])
    found = []
    for node in records.nodes:
        ranks = [by_pid[pid] for pid in node.pids if pid in by_pid]
        silent = [each for each in ranks if not each.health.ended]
        if not silent or _has_ended(node) or any(each.rank.pid in known_ends for each in ranks):
            continue
        heard_s = max([_sampled_unix_s(node), *(last_s[each.rank.pid] for each in ranks)])
        others_s = next((last_s[pid] for pid in latest if pid not in node.pids), 0.0)
        if heard_s <= until_unix_s - silent_s and others_s <= heard_s + MAX_TRAINED_ON_S:
            found.append(
                LostNode(
                    node.state.name,
                    tuple(each.rank.rank for each in silent),
                    tuple(each.rank.pid for each in silent),
                    max(map(steps_taken, silent)),
                    heard_s,
                )
            )
    return tuple(sorted(found, key=lambda each: each.last_heard_unix_s))


def _has_ended(node: NodeRecords) -> bool:
    """Returns whether the machine's command was seen to end, or it is not known when the machine
    was last heard of."""
    is_ended = node.ending is not None and node.ending.exit_status is not None
    return is_ended or node.state.way is NodeWay.HEAD or node.state.clock_offset_s is None


def _sampled_unix_s(node: NodeRecords) -> float:
    return node.samples[-1].unix_s if node.samples else 0.0
