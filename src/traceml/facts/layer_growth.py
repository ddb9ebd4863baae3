"""Which modules hold more and more memory from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceml.store.layer_records import GrownLayer, LayerRecords

MIN_LOOKS = 2
"""After the first one: a table that a module makes once grows between the first two looks too."""


@dataclass(frozen=True, slots=True)
class LayerGrowth:
    """A module that still grew when it was last looked at, or whose outputs somebody keeps."""

    rank: int
    name: str
    kind: str
    attribute: str | None
    """The attribute that holds the tensors; `None` where parameters or buffers have grown, or
    layers were added."""
    added: int
    """How many layers were added below it."""
    since_step: int
    last_step: int
    more_bytes: int
    """How much more it held at the last look than at the first; of outputs, in one step."""
    is_output: bool = False
    """Whether it is its outputs that are kept, by the script or whoever got them."""

    @property
    def per_step_bytes(self) -> float:
        """How fast it has grown between the two looks."""
        steps = 1 if self.is_output else self.last_step - self.since_step
        return self.more_bytes / max(1, steps)


def layer_growth(
    records: Sequence[LayerRecords], ranks: Mapping[int, int]
) -> tuple[LayerGrowth, ...]:
    """Returns the modules that hold ever more, those that grow fastest first.

    A layer whose outputs are kept is left out where it is known to keep them itself.
    """
    found = []
    for record in records:
        rank = ranks.get(record.pid, 0)
        held = _of_rank(record, rank)
        names = {each.name for each in held}
        found += held
        found += [each for each in _of_outputs(record, rank) if each.name not in names]
    return tuple(sorted(found, key=lambda each: -each.per_step_bytes))


def _of_rank(records: LayerRecords, rank: int) -> list[LayerGrowth]:
    looks: dict[int, list[GrownLayer]] = {}
    for each in records.grown:
        looks.setdefault(each.step, []).append(each)
    if len(looks) < MIN_LOOKS:
        return []
    before, last = (_by_name(looks[step], rank) for step in sorted(looks)[-2:])
    return [
        each
        for name, each in last.items()
        if name in before and each.more_bytes > before[name].more_bytes
    ]


def _of_outputs(records: LayerRecords, rank: int) -> list[LayerGrowth]:
    """Returns the layers whose outputs outlived the last step that was followed; a line of zero
    bytes says that none did any more."""
    last = max((each.step for each in records.outlived), default=None)
    return [
        LayerGrowth(
            rank, each.name, each.kind, None, 0, each.since, each.step, each.left_bytes, True
        )
        for each in records.outlived
        if each.step == last and each.left_bytes
    ]


def _by_name(grown: Sequence[GrownLayer], rank: int) -> dict[str, LayerGrowth]:
    return {
        each.name: LayerGrowth(
            rank=rank,
            name=each.name,
            kind=each.kind,
            attribute=each.attribute,
            added=each.added,
            since_step=each.since,
            last_step=each.step,
            more_bytes=each.more_bytes,
        )
        for each in grown
    }
