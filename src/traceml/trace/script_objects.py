"""The script's objects and libraries: looked at without running code of theirs or loading any."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from traceml.trace.interruptions import is_interruption

if TYPE_CHECKING:
    from traceml.trace.session import Session

_place_of_dictionary: Any = type.__dict__["__dictoffset__"].__get__
"""Asks the class itself, whatever a metaclass would answer; 0: its objects have no dictionary."""


def own_attributes(thing: Any) -> dict[str, Any]:
    """The object's own dictionary, without asking its class anything; empty where it has none, as a
    dead weak proxy has, or where it does not let itself be asked."""
    if not _place_of_dictionary(type(thing)):
        return {}  # `None`, say: that is the usual case, and raising costs a hundred times as much
    try:
        found = object.__getattribute__(thing, "__dict__")
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_interruption(error):
            raise
        return {}
    return found if type(found) is dict else {}


class Numbers:
    """Numbers from 1 by which events name objects: an `id()` is used again, a number is not.

    None of the objects is kept alive.
    """

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


class Arrivals:
    """Calls a function with a module, once, after that module was loaded: at the next step, batch
    or backward pass of the loop."""

    def __init__(self, session: Session) -> None:
        self._awaited: dict[str, Callable[[Any], None]] = {}
        session.look_for_modules = self._call_for_arrived

    def wait_for(self, module: str, do: Callable[[Any], None]) -> None:
        """Have something done with a module; at once, where it is loaded already."""
        found = sys.modules.get(module)
        if found is None:
            self._awaited[module] = do
        else:
            do(found)

    def _call_for_arrived(self) -> None:
        """Calls the functions whose modules have been loaded by now."""
        for module in [module for module in self._awaited if module in sys.modules]:
            self._awaited.pop(module)(sys.modules[module])
