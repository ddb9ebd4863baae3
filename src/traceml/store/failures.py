"""What went wrong in a run, on disk: the ranks' own reports, and what the agent observed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from traceml.model.environment import FAILURE_MARK, MARKS, SCRIPT_MARK
from traceml.model.failure import (
    NOTHING_SEEN,
    STACKS_SUFFIX,
    AgentSaw,
    FailureReport,
    report_from,
)
from traceml.model.rank import ScriptStart
from traceml.model.run_values import number_of
from traceml.store.folder import MAX_UNIX_S, write_atomically
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.regular_files import read_regular

SEEN = "agent_saw.json"
STACKS = "stacks"
"""A folder inside the run folder, for the stacks of ranks that made no progress."""
MAX_STACK_BYTES = 1 << 20
MAX_MARK_BYTES = 256
MAX_DIGITS = 10
"""Of a pid, a rank, or a count of restarts in a mark; anything longer is damage."""

_decoder = msgspec.json.Decoder(AgentSaw)


def write_seen(folder: Path, seen: AgentSaw) -> None:
    """Writes what the agent has observed so far."""
    write_atomically(folder / SEEN, msgspec.json.encode(seen))


def read_seen(folder: Path, machine: str = "") -> AgentSaw:
    """Returns what the agent of a machine observed; empty where nothing was wrong, or the file
    cannot be read."""
    try:
        seen = _decoder.decode(read_regular(folder / SEEN))
    except (OSError, *UNDECODABLE):
        return NOTHING_SEEN
    return replace(seen, deaths=tuple(replace(each, hostname=machine) for each in seen.deaths))


def with_final_ranks(seen: AgentSaw, ranks: dict[int, int]) -> AgentSaw:
    """Returns the observations with the ranks' final numbers; a process is identified by its
    pid."""
    return replace(
        seen,
        deaths=tuple(replace(d, rank=ranks.get(d.pid, d.rank)) for d in seen.deaths),
        stalls=tuple(
            replace(
                stall,
                ranks=tuple(replace(s, rank=ranks.get(s.pid, s.rank)) for s in stall.ranks),
            )
            for stall in seen.stalls
        ),
    )


def reports(
    messages: Iterable[dict[str, Any]], left: Iterable[FailureReport] = ()
) -> tuple[FailureReport, ...]:
    """Returns what the ranks of one node reported, as they were numbered then; invalid lines are
    skipped.

    `left` are the reports that interpreters left at their end; they count where the ring has none.
    """
    found = [
        report
        for message in messages
        if message.get("kind") == "failure" and (report := _report(message)) is not None
    ]
    said = {report.pid for report in found if not report.is_handled}
    found += [report for report in left if report.pid not in said]
    return tuple(found)


def in_order(reports: Iterable[FailureReport], ranks: dict[int, int]) -> tuple[FailureReport, ...]:
    """Returns reports in order of time, with the ranks' final numbers by process."""
    final = (_with_final_rank(report, ranks) for report in reports)
    return tuple(sorted(final, key=lambda report: report.unix_s))


def read_left_reports(folder: Path) -> tuple[FailureReport, ...]:
    """Returns the exceptions that ended interpreters, as those left them; damaged ones are
    skipped."""
    found = []
    for path in sorted((folder / MARKS).glob(f"{FAILURE_MARK}*.json")):
        try:
            report = _report(load_json(read_regular(path)))
        except (OSError, *UNDECODABLE):
            continue
        if report is not None:
            found.append(report)
    return tuple(found)


def script_pids(folder: Path, machine: str) -> list[int]:
    """Returns the pids of the scripts and ranks that were started on a machine, by their marks.

    An empty machine name selects all; a mark without a machine belongs to every machine.
    """
    found = (_of_mark(path) for path in (folder / MARKS).glob(f"{SCRIPT_MARK}*"))
    return sorted({pid for pid, of in found if pid is not None and _is_one(of, machine)})


def script_starts(folder: Path) -> tuple[ScriptStart, ...]:
    """Returns the scripts and ranks that were started, by their marks, in order of time.

    What a mark does not say, as those of earlier versions, is `None`.
    """
    found = []
    for path in (folder / MARKS).glob(f"{SCRIPT_MARK}*"):
        pid, machine = _of_mark(path)
        if pid is None:
            continue
        try:
            said = read_regular(path)[:MAX_MARK_BYTES].decode(errors="replace").split()
        except OSError:
            said = []
        rank, restart, unix_s = (said + ["-"] * 3)[:3]
        found.append(ScriptStart(pid, machine, _whole(rank), _whole(restart), _moment(unix_s)))
    return tuple(sorted(found, key=lambda start: (start.unix_s or 0.0, start.pid)))


def _of_mark(path: Path) -> tuple[int | None, str]:
    """Returns the pid and the machine that a mark is named after."""
    pid, _, machine = path.name.removeprefix(SCRIPT_MARK).partition("-")
    return _whole(pid), machine


def _moment(text: str) -> float | None:
    found = number_of(text)
    return found if found is not None and 0 < found < MAX_UNIX_S else None


def _whole(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    return int(text) if is_number else None


def _is_one(machine: str, other: str) -> bool:
    return machine == other or not machine or not other


def _report(message: Any) -> FailureReport | None:
    if not isinstance(message, dict):
        return None
    try:
        # Converted so that no field is of another kind than everybody who reads it expects.
        return msgspec.convert(asdict(report_from(message)), FailureReport)
    except (TypeError, AttributeError, *UNDECODABLE):
        return None


def _with_final_rank(report: FailureReport, ranks: dict[int, int]) -> FailureReport:
    """Returns the report with the final rank of its process, if that took steps."""
    is_rank = report.is_rank or report.pid in ranks
    return replace(report, rank=ranks.get(report.pid, report.rank), is_rank=is_rank)


def stacks_of(ring: Path) -> Path:
    """Returns the file into which the rank of this ring writes its stacks."""
    return ring.with_suffix(STACKS_SUFFIX)


def keep_stacks(folder: Path, rank: int, pid: int, content: bytes) -> str:
    """Stores a rank's stacks with the run; returns the file's name in the run folder."""
    (folder / STACKS).mkdir(exist_ok=True)
    name = f"{STACKS}/rank-{rank}-{pid}.txt"
    write_atomically(folder / name, content[-MAX_STACK_BYTES:])
    return name


def remove_ring(ring: Path) -> None:
    """Removes a ring whose records are on disk, and the files that belong to it."""
    ring.unlink(missing_ok=True)
    stacks_of(ring).unlink(missing_ok=True)
