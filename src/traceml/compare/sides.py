"""The two sides of a comparison: their runs, and which runs are paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traceml.compare.selection import argument_values
from traceml.compare.statistics import MIN_PAIRS
from traceml.summaries.record import Summary

PAIRING_PARAMS = ("seed", "random_seed", "fold")
"""Parameters by which runs of both sides are paired."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The runs of A and of B; if paired, in the same order."""

    a: tuple[Summary, ...]
    b: tuple[Summary, ...]
    paired_by: str | None = None

    @property
    def every_run(self) -> tuple[Summary, ...]:
        """The runs of both sides."""
        return (*self.a, *self.b)

    @property
    def several(self) -> bool:
        """Whether a side has several runs, so that the run is the unit."""
        return len(self.a) + len(self.b) > 2


def pair_up(a: Sequence[Summary], b: Sequence[Summary]) -> Sides:
    """Returns the two sides, paired where each run of A has a partner in B."""
    sides = Sides(tuple(a), tuple(b))
    if len(a) != len(b) or len(a) < MIN_PAIRS:
        return sides
    keys = [_pairing_values(run) for run in sides.every_run]
    names = set(keys[0])
    if not names or any(set(key) != names for key in keys):
        return sides
    order = [tuple(key[name] for name in sorted(names)) for key in keys]
    left = dict(zip(order[: len(a)], a, strict=True))
    right = dict(zip(order[len(a) :], b, strict=True))
    if len(left) < len(a) or left.keys() != right.keys():
        return sides
    partners = tuple(right[key] for key in left)
    return replace(sides, a=tuple(left.values()), b=partners, paired_by=" and ".join(sorted(names)))


def _pairing_values(run: Summary) -> dict[str, str]:
    """Returns seed and fold by the name they were logged under, such as `trainer.seed` or `seed`.

    For a run that logged neither, the command line is searched.
    """
    logged = {
        name: str(value)
        for name, value in run.params.items()
        if name.rpartition(".")[2].lower() in PAIRING_PARAMS and isinstance(value, int | str)
    }
    return logged or argument_values(run, PAIRING_PARAMS)
