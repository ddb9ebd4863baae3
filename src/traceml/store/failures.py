"""What went wrong in a run, on disk: the ranks' own reports, and what the agent saw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from traceml.model.failure import (
    NOTHING_SEEN,
    STACKS_SUFFIX,
    AgentSaw,
    FailureReport,
    report_from,
)
from traceml.store.folder import write_atomically

SEEN = "agent_saw.json"
STACKS = "stacks"
"""A folder in the run's, for the stacks of ranks that stood still."""
MOST_STACK_BYTES = 1 << 20

_decoder = msgspec.json.Decoder(AgentSaw)


def write_seen(folder: Path, seen: AgentSaw) -> None:
    """Write down what the agent saw so far."""
    write_atomically(folder / SEEN, msgspec.json.encode(seen))


def read_seen(folder: Path) -> AgentSaw:
    """What the agent saw; nothing where nothing was wrong, or where it cannot be read."""
    try:
        return _decoder.decode((folder / SEEN).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return NOTHING_SEEN


def with_final_ranks(seen: AgentSaw, ranks: dict[int, int]) -> AgentSaw:
    """The same under the numbers that the ranks have in the end; a process is known by its pid."""
    return AgentSaw(
        deaths=tuple(replace(d, rank=ranks.get(d.pid, d.rank)) for d in seen.deaths),
        stalls=tuple(
            replace(
                stall,
                ranks=tuple(replace(s, rank=ranks.get(s.pid, s.rank)) for s in stall.ranks),
            )
            for stall in seen.stalls
        ),
    )


def reports(messages: Iterable[dict[str, Any]], ranks: dict[int, int]) -> tuple[FailureReport, ...]:
    """What the ranks reported, in order of time; a line that is none is passed over."""
    found = []
    for message in messages:
        if message.get("kind") != "failure":
            continue
        try:
            report = report_from(message)
        except TypeError:
            continue
        found.append(replace(report, rank=ranks.get(report.pid, report.rank)))
    return tuple(sorted(found, key=lambda report: report.unix_s))


def stacks_of(ring: Path) -> Path:
    """The file into which the rank of this ring writes its stacks."""
    return ring.with_suffix(STACKS_SUFFIX)


def keep_stacks(folder: Path, rank: int, pid: int, content: bytes) -> str:
    """Keep a rank's stacks with the run; returns the file's name in the run folder."""
    (folder / STACKS).mkdir(exist_ok=True)
    name = f"{STACKS}/rank-{rank}-{pid}.txt"
    write_atomically(folder / name, content[-MOST_STACK_BYTES:])
    return name


def remove_ring(ring: Path) -> None:
    """Give back a ring whose records are on disk, and what belongs to it."""
    ring.unlink(missing_ok=True)
    stacks_of(ring).unlink(missing_ok=True)
