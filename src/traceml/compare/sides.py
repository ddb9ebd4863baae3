"""The two sides of a comparison: which runs they hold, and which of them belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traceml.compare.selection import argument_values
from traceml.compare.statistics import MIN_PAIRS
from traceml.summaries.record import Summary

PAIRING_PARAMS = ("seed", "random_seed", "fold")
"""What makes runs of both sides alike except for what is compared."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The runs of A and of B; paired, they stand in the same order."""

    a: tuple[Summary, ...]
    b: tuple[Summary, ...]
    paired_by: str | None = None

    @property
    def every_run(self) -> tuple[Summary, ...]:
        """Those of both sides."""
        return (*self.a, *self.b)

    @property
    def several(self) -> bool:
        """Whether runs can be told from each other, so that the run is the unit."""
        return len(self.a) + len(self.b) > 2


def pair_up(a: Sequence[Summary], b: Sequence[Summary]) -> Sides:
    """The two sides, run beside run where each run of A has its partner in B."""
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
    """Seed and fold by the name they were logged under, `trainer.seed` as well as `seed`.

    A run that logged neither may have been given them on its command line.
    """
    logged = {
        name: str(value)
        for name, value in run.params.items()
        if name.rpartition(".")[2].lower() in PAIRING_PARAMS and isinstance(value, int | str)
    }
    return logged or argument_values(run, PAIRING_PARAMS)
