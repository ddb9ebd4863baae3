"""The rank lens: whose step the tiles, the tree and the stack of phases show.

Without a choice it is the mean over the ranks, and where a rule found a straggler the slow rank:
the mean is mostly that of the ranks which wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from traceml.facts.history import StepHistory
from traceml.figures.page import Lens
from traceml.figures.step_shares import straggling, typical_and_worst
from traceml.figures.words import cell, rank_words
from traceml.summaries.record import SectionSummary

MEAN, MEDIAN, WORST = "mean", "median", "worst"
RANK = "rank-"
CHOICE = re.compile(rf"{MEAN}|{MEDIAN}|{WORST}|{RANK}\d{{1,9}}")
"""What an address may ask for."""
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class RankLens:
    """One of the choices."""

    id: str
    rank: str | None
    """The rank's name in the summary; `None` for the mean over all ranks."""
    words: str
    """Whose step it is: "mean over 4 ranks", "rank 2"."""

    def metrics(self, section: SectionSummary) -> Mapping[str, float | None]:
        """Returns the means of a step through the lens."""
        if self.rank is None:
            return section.global_.average
        return section.groups.rows[self.rank].metrics

    def history(self, history: StepHistory) -> StepHistory:
        """Returns the steps through the lens; those of all ranks where the rank has none."""
        if self.rank is None or self.rank not in map(str, history.ranks):
            return history
        return only_rank(history, int(self.rank))


def choose_lens(section: SectionSummary | None, wanted: str | None) -> RankLens:
    """Returns the lens that is asked for; the usual one where nobody asks, or there is no such
    rank."""
    rows = {} if section is None else section.groups.rows
    if section is None or len(rows) < 2:
        return RankLens(MEAN, None, "")
    by_id = {lens.id: lens for lens in _all_lenses(section)}
    late = straggling(section)
    usual = f"{RANK}{late}" if late is not None else MEAN
    return by_id.get(wanted or usual) or by_id.get(usual) or by_id[MEAN]


def lens_choices(section: SectionSummary | None) -> tuple[Lens, ...]:
    """Returns what a reader can choose; nothing for one rank."""
    if section is None or len(section.groups.rows) < 2:
        return ()
    return tuple(Lens(lens.id, _label(lens)) for lens in _all_lenses(section)[:MAX_CHOICES])


def _label(lens: RankLens) -> str:
    if lens.id in (MEDIAN, WORST):
        return f"{lens.id.capitalize()} rank ({cell(lens.rank)})"
    return lens.words[0].upper() + lens.words[1:]


def _all_lenses(section: SectionSummary) -> list[RankLens]:
    rows = section.groups.rows
    found = [RankLens(MEAN, None, f"mean over {len(rows)} ranks")]
    chosen = typical_and_worst(section)
    if chosen is not None:
        found += [
            RankLens(name, rank, f"{name} rank, {cell(rank)}")
            for name, rank in zip((MEDIAN, WORST), chosen, strict=True)
        ]
    # A damaged summary may have other names: no address can ask for those.
    ranks = [name for name in rows if CHOICE.fullmatch(f"{RANK}{name}")]
    return found + [RankLens(f"{RANK}{name}", name, rank_words(name, rows[name])) for name in ranks]


def only_rank(history: StepHistory, rank: int) -> StepHistory:
    """Returns the history of one rank alone."""
    row = history.ranks.index(rank)
    tables: dict[str, Any] = {
        field.name: value[row : row + 1]
        for field in fields(history)
        if isinstance(value := getattr(history, field.name), np.ndarray) and value.ndim == 2
    }
    phases = {phase: table[row : row + 1] for phase, table in history.phase_s.items()}
    return replace(history, ranks=(rank,), phase_s=phases, **tables)
