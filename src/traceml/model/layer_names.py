"""Names of a model's layers: dotted, and alike but for a number where layers repeat; and what is
counted of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container

PHASES = ("forward", "backward")
"""Those of a layer that are timed as a whole too; what is computed again lies in backward."""
SAME_SIZE = 1.1
"""Batches whose numbers of elements differ by no more than this factor are of one size."""
COUNTED = tuple(
    f"{phase}_{what}"
    for what in ("flops", "bytes")
    for phase in ("forward", "recompute", "backward")
)
"""What is counted by layer, as the file of layers names it. In files without `recompute`, what is
computed again for backward (activation checkpointing) is a part of `forward`."""
COMPILED_WHOLE, COMPILED_PARTLY, COMPILED_INSIDE = "whole", "partly", "inside"
"""How a layer is compiled, as the summary has it: measured as a whole; calls compiled functions,
which are part of its own time; lies inside a compiled layer, and is not seen by itself."""
MODEL = "(the model itself)"
"""How the layer with the empty name is shown."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def repeated_name(name: str) -> str:
    """Returns a name with a star for each number: `blocks.*.attn` of `blocks.7.attn`."""
    return _NUMBER.sub("*", name)


def names_of_groups(
    groups: Collection[tuple[str, str | None]],
) -> dict[tuple[str, str | None], str]:
    """Returns how to call all layers of one repeated name and one class, by both: `net.*`, with the
    class where there are such of several (`net.* (Linear)`)."""
    classes = Counter(name for name, _ in groups)
    return {
        (name, kind): f"{name} ({kind})" if classes[name] > 1 and kind else name
        for name, kind in groups
    }


def outer_name(name: str, known: Container[str]) -> str | None:
    """Returns the nearest known layer above a name; `None` where there is none."""
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return None
