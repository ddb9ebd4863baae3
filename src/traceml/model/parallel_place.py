"""Where a rank stands among the ranks that train one model together: its place in the mesh.

The training process loads this, so it is named tuples: a dataclass takes a millisecond to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PIPELINE = frozenset(("pp", "pipe", "pipeline", "stage"))
"""Names that people give to the dimension along which ranks hold different layers …"""
TENSOR = frozenset(("tp", "tensor", "model", "mp"))
"""… to the one along which they hold parts of each layer …"""
EXPERT = frozenset(("ep", "expert", "experts"))
"""… and to the one along which they hold different experts."""
SPLITS_MODEL = PIPELINE | TENSOR | EXPERT
"""Along these, ranks hold different parts of the model; along others, copies or shards of one."""
MAX_DIMENSIONS = 8


class MeshDimension(NamedTuple):
    """One dimension of the device mesh, and where on it a rank stands."""

    name: str
    coordinate: int
    """From 0."""
    size: int

    @property
    def label(self) -> str:
        """In words: `tp 1`."""
        return f"{self.name} {self.coordinate}"


class ParallelPlace(NamedTuple):
    """The place of one rank; empty where the ranks have no mesh, pipeline or groups."""

    dimensions: tuple[MeshDimension, ...] = ()
    """Those along which there is more than one rank, the outermost first."""
    stages: tuple[int, ...] = ()
    """The pipeline stages that the rank holds, from 0; several in an interleaved schedule."""
    model: tuple[int, ...] = ()
    """How many modules and parameters the models have that the rank trains; empty where unknown.

    Shards and slices of one model have as many of them, however large each is."""

    @property
    def pipeline(self) -> tuple[int, ...]:
        """The stages by which ranks are told apart; empty without a pipeline.

        Where no stage was seen, the dimension that is called like a pipeline tells.
        """
        return self.stages or self._coordinates(PIPELINE)

    @property
    def tensor_slice(self) -> tuple[int, ...]:
        """Which part of each layer the rank holds; empty where layers are not split."""
        return self._coordinates(TENSOR)

    @property
    def label(self) -> str:
        """In words: `dp 1, tp 0`; empty where nothing is known."""
        words = [dimension.label for dimension in self.dimensions]
        if self.stages and not self._coordinates(PIPELINE):
            numbers = " and ".join(str(stage) for stage in self.stages)
            words.append(f"stage{'s' if len(self.stages) > 1 else ''} {numbers}")
        return ", ".join(words)

    def _coordinates(self, names: frozenset[str]) -> tuple[int, ...]:
        return tuple(each.coordinate for each in self.dimensions if each.name.lower() in names)


NO_PLACE = ParallelPlace()


def peer_groups(places: Sequence[ParallelPlace]) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of ranks that do the same work, as positions in `places`.

    Ranks of one pipeline stage do: they hold the same layers, or equally large parts of them. Where
    no rank names its stage, as in a pipeline of the script's own, those do whose models have as
    many modules and parameters. Ranks that also hold the same parts are compared with each other
    alone where at least three do, because duties such as reading the data may be one part's alone.
    """
    stages = [place.pipeline for place in places]
    if not any(stages) and all(place.model for place in places):
        stages = [place.model for place in places]
    by_stage = _grouped(range(len(places)), stages)
    found: list[tuple[int, ...]] = []
    for group in by_stage:
        slices = _grouped(group, [places[row].tensor_slice for row in group])
        found += slices if min(map(len, slices)) >= MIN_PEERS else [group]
    return tuple(found)


def common_place(places: Sequence[ParallelPlace]) -> str:
    """Returns the coordinates that all these places share, in words: `tp 1`; empty where none."""
    if not places or any(place.pipeline != places[0].pipeline for place in places):
        stages: tuple[int, ...] = ()
    else:
        stages = places[0].stages
    shared = [
        each
        for each in (places[0].dimensions if places else ())
        if all(each in place.dimensions for place in places)
    ]
    return ParallelPlace(tuple(shared), stages).label


MIN_PEERS = 3
"""Of two ranks nobody can say which one is unusual."""


def _grouped(rows: Sequence[int], keys: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, key in zip(rows, keys, strict=True):
        groups.setdefault(key, []).append(row)
    return [tuple(group) for group in groups.values()]
