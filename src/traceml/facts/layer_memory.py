"""What the layers of the model hold and keep for backward: who takes the memory, and how much
less of it there could be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceml.model.layer_names import names_of_groups, repeated_name
from traceml.store.layer_records import HELD, LayerRecords

LASTING = ("parameters", "buffers", "gradients", "optimizer")
"""What stays from step to step, by the names of `HELD`; `saved` goes with the batch."""
FULL = 0.92
"""Of the device: what a batch may fill and still leave the allocator room to move."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """A layer, or all layers of one class whose names differ only in numbers: `blocks.*.attn`. The
    class is part of the name where another group would have the same one."""

    name: str
    layers: int
    held_bytes: Mapping[str, int]
    """By the names of `HELD`, of all of them together, each without the layers below it."""

    @property
    def total_bytes(self) -> int:
        """All that they hold and keep for backward."""
        return sum(self.held_bytes.get(name, 0) for name in (*LASTING, "saved"))

    def with_saved(self, times: float) -> LayerGroup:
        """Returns the group with `times` as much memory kept for backward."""
        held = dict(self.held_bytes)
        if "saved" in held:
            held["saved"] = round(times * held["saved"])
        return replace(self, held_bytes=held)


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """Blocks of the model that repeat, and what activation checkpointing of each would save."""

    name: str
    """`blocks.*`."""
    layers: int
    saved_bytes: int
    """What all of them keep for backward, with the layers below them."""

    @property
    def less_bytes(self) -> int:
        """How much less is kept when each is computed again in backward: all but one of them."""
        return self.saved_bytes - math.ceil(self.saved_bytes / self.layers)


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The memory of the rank whose layers hold the most."""

    groups: tuple[LayerGroup, ...]
    """The largest first; containers that hold nothing themselves are left out."""
    lasting_bytes: int
    """Parameters, buffers, gradients and optimizer state of all layers."""
    saved_bytes: int | None
    """What one step keeps for backward in all layers; `None` where that was not counted, be it of a
    single layer, such as a checkpointed one."""
    block: RepeatedBlock | None = None
    """The repeated block that keeps the most for backward; `None` where none repeats."""
    input_elements: int | None = None
    """Of the first tensor that the model was called with, in the step whose `saved_bytes` these
    are."""

    def with_saved(self, times: float) -> LayerMemory:
        """Returns the memory of a batch `times` as large: what is kept for backward grows with it.
        0 is for an evaluation, which keeps nothing."""
        groups = [group.with_saved(times) for group in self.groups]
        block = self.block
        if block is not None:
            block = replace(block, saved_bytes=round(times * block.saved_bytes))
        return replace(
            self,
            groups=_largest_first(groups),
            saved_bytes=None if self.saved_bytes is None else round(times * self.saved_bytes),
            block=block if times else None,
        )

    def fitting_batch(self, samples: int, total_bytes: int, peak_bytes: int | None) -> int | None:
        """Returns the largest batch that fits into a device, where activations grow with it.

        A step of `samples` samples had this peak, or the activations that were counted.
        """
        if samples < 1:
            return None
        above = 0 if peak_bytes is None else peak_bytes - self.lasting_bytes
        growing = max(self.saved_bytes or 0, above)
        room = FULL * total_bytes - self.lasting_bytes
        if growing <= 0 or room <= 0:
            return None
        return math.floor(samples * room / growing)


def layer_memory(records: Sequence[LayerRecords]) -> LayerMemory | None:
    """Returns what layers hold; `None` where that was not looked at."""
    known = [
        last if "parameters" in (last := each.at_end).held_bytes else each
        for each in records
        if "parameters" in {*each.at_end.held_bytes, *each.held_bytes}
    ]
    if not known:
        return None
    return _of_rank(max(known, key=_all_bytes))


def _all_bytes(records: LayerRecords) -> int:
    held = records.held_bytes
    return sum(int(np.nansum(held[name])) for name in (*LASTING, "saved") if name in held)


def _of_rank(records: LayerRecords) -> LayerMemory:
    held = {name: values for name, values in records.held_bytes.items() if name in HELD}
    groups: dict[tuple[str, str | None], LayerGroup] = {}
    for place, (name, kind) in enumerate(zip(records.names, records.kinds, strict=True)):
        own = {
            key: int(values[place])
            for key, values in held.items()
            if key not in ("peak", "reached") and not np.isnan(values[place])
        }
        group = repeated_name(name), kind
        before = groups.get(group)
        if before is None:
            groups[group] = LayerGroup(name, 1, own)
        else:
            both = own.keys() & before.held_bytes.keys()
            own = {key: size + before.held_bytes[key] for key, size in own.items() if key in both}
            groups[group] = LayerGroup(name, before.layers + 1, own)
    names = names_of_groups(groups)
    named = [
        each if each.layers == 1 else replace(each, name=names[group])
        for group, each in groups.items()
    ]
    saved = held.get("saved")
    is_counted = saved is not None and not np.isnan(saved).any()
    return LayerMemory(
        groups=_largest_first(named),
        lasting_bytes=sum(int(values.sum()) for key, values in held.items() if key in LASTING),
        saved_bytes=int(saved.sum()) if saved is not None and is_counted else None,
        block=None if saved is None else _repeated_block(records.names, saved.tolist()),
        input_elements=records.input_elements,
    )


def _largest_first(groups: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    holding = [group for group in groups if group.total_bytes]
    return tuple(sorted(holding, key=lambda group: -group.total_bytes))


def _repeated_block(names: Sequence[str], saved: Sequence[float]) -> RepeatedBlock | None:
    """Returns the outermost layers with layers below them that differ in one number alone, and keep
    the most for backward; those of which that was not counted are left out."""
    sums: dict[str, float] = {}
    for name, count in zip(names, saved, strict=True):
        parts = name.split(".")
        for depth in range(1, len(parts)):
            if parts[depth - 1].isdigit():
                outer = ".".join(parts[:depth])
                sums[outer] = sums.get(outer, 0) + count
                break  # what lies in a block within a block is the outer one's
    own = dict(zip(names, saved, strict=True))
    blocks: dict[str, list[float]] = {}
    for outer, count in sums.items():
        blocks.setdefault(repeated_name(outer), []).append(count + own.get(outer, 0))
    found = [
        RepeatedBlock(name, len(counts), int(sum(counts)))
        for name, counts in blocks.items()
        if len(counts) > 1 and sum(counts) > 0  # NaN is not
    ]
    return max(found, key=lambda each: each.saved_bytes, default=None)
