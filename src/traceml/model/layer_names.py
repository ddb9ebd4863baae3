"""Names of a model's layers: dotted, and alike but for a number where layers repeat."""

from __future__ import annotations

import re
from collections.abc import Container

MODEL = "(the model itself)"
"""How the layer with the empty name is shown."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def repeated_name(name: str) -> str:
    """Returns a name with a star for each number: `blocks.*.attn` of `blocks.7.attn`."""
    return _NUMBER.sub("*", name)


def outer_name(name: str, known: Container[str]) -> str | None:
    """Returns the nearest known layer above a name; `None` where there is none."""
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return None
