"""Plays a recorded run again, second by second, as the agent would have seen it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from factories import map_steps
from traceml.diagnose.live_findings import LiveDiagnosis, LiveFinding, update
from traceml.facts.recent_window import RecentFacts, gather_recent
from traceml.model import record_layout
from traceml.model.finding import Section
from traceml.store.recent_steps import RecentSteps
from traceml.store.records import RankRecords, RunRecords
from traceml.store.rings import RingHead


class ReplayedRing:
    """A rank's ring at one moment of a replay; its last `late` steps are not final yet."""

    def __init__(self, rank: RankRecords, late: int = 0) -> None:
        self.path = Path(f"rank-{rank.rank.rank}-{rank.rank.pid}.ring")
        self._rank = rank
        self._late = late
        self._end_ns = rank.steps["start_ns"] + rank.steps["wall_ns"] + rank.rank.unix_ns
        self.unix_ns = 0

    def head(self) -> RingHead:
        counters: dict[str, Any] = {name: 0 for name, _ in record_layout.COUNTERS}
        workers = self._rank.loader_workers
        counters |= {"last_failure": b"", "loader_workers": 0 if workers is None else workers + 1}
        return RingHead(
            record_layout.VERSION, self._rank.rank, counters, self._rank.regions, 64, 64, 64
        )

    def written(self) -> int:
        return int(np.searchsorted(self._end_ns, self.unix_ns, side="right"))

    def steps_from(self, number: int, everything: bool) -> npt.NDArray[Any]:
        final = self.written() - (0 if everything else self._late)
        steps = self._rank.steps[: max(0, final)]
        return steps[steps["sequence"] > number]


@dataclass(frozen=True)
class Look:
    """What one look saw, and what was shown after it."""

    step: int
    """The last step that any rank had taken by then."""
    recent: RecentFacts
    shown: LiveDiagnosis

    def lead(self, section: Section = Section.STEP_TIME) -> LiveFinding | None:
        return self.shown.sections[section].lead if section in self.shown.sections else None


def replay(run: RunRecords, late: int = 0) -> Iterator[Look]:
    """Look at a run once a second from its first step to its last."""
    rings = [ReplayedRing(rank, late) for rank in run.ranks]
    buffer, shown = RecentSteps(run.manifest), LiveDiagnosis()
    began_ns = min(rank.rank.unix_ns for rank in run.ranks)
    ended_ns = max(int(ring._end_ns[-1]) for ring in rings)
    samples = list(run.samples)
    for unix_ns in range(began_ns, ended_ns + 10**9, 10**9):
        for ring in rings:
            ring.unix_ns = unix_ns
            if ring.written():
                buffer.follow(ring, is_last=False)  # type: ignore[arg-type]
        while samples and samples[0].unix_s * 1e9 <= unix_ns:
            buffer.add_sample(samples.pop(0))
        records = buffer.window()
        if records is None:
            continue
        recent = gather_recent(records)
        shown = update(shown, recent)
        yield Look(max(ring.written() for ring in rings), recent, shown)


def leads(looks: Sequence[Look], section: Section = Section.STEP_TIME) -> list[LiveFinding]:
    """What led a section, one entry per change of its kind or severity."""
    found: list[LiveFinding] = []
    for look in looks:
        lead = look.lead(section)
        if lead is None:
            continue
        label = (lead.finding.kind, lead.finding.severity)
        if not found or (found[-1].finding.kind, found[-1].finding.severity) != label:
            found.append(lead)
    return found


def with_part(
    run: RunRecords,
    name: str,
    part_ms: float | Sequence[float] | npt.NDArray[np.float64],
    steps: slice = slice(None),
    ranks: Sequence[int] | None = None,
) -> RunRecords:
    """The run with one part of some steps (counted from 0) taking another time."""

    def change(records: npt.NDArray[Any], rank: int) -> None:
        if ranks is not None and rank not in ranks:
            return
        before = np.maximum(records[f"{name}_ns"], 0)
        records[f"{name}_ns"][steps] = np.asarray(part_ms) * 1e6
        longer = records[f"{name}_ns"] - before
        records["wall_ns"] += longer
        if name != "input":
            records["body_ns"] += longer
        records["start_ns"] = np.cumsum(records["wall_ns"]) - records["wall_ns"]

    return map_steps(run, change)
