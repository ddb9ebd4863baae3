"""Gives objects numbers by which events can name them: an `id()` is used again, a number is not."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Numbers:
    """The numbers of some objects, from 1; none of the objects is kept alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], int]] = {}
        """By identity, with a way to ask for the object: another may have its identity by now."""
        self._count = 0

    def forget(self) -> None:
        """Begin anew; what was given stays given."""
        self._known = {}

    def find(self, thing: Any) -> int | None:
        """The number of an object that has one."""
        known = self._known.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else None

    def of(self, thing: Any, reference: Callable[[], Any] | None = None) -> int:
        """The number of an object; a new one where it has none.

        `reference` says how to ask for an object that Python cannot refer to weakly.
        """
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        self._known = {key: each for key, each in self._known.items() if each[0]() is not None}
        self._count += 1
        self._known[id(thing)] = (reference or weakref.ref(thing), self._count)
        return self._count
