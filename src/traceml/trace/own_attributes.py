"""Looks at an object without asking it anything: no code of its class runs."""

from __future__ import annotations

from typing import Any

from traceml.trace.interruptions import is_interruption

_place_of_dictionary: Any = type.__dict__["__dictoffset__"].__get__
"""Asks the class itself, whatever a metaclass would answer; 0: its objects have no dictionary."""


def own_attributes(thing: Any) -> dict[str, Any]:
    """The object's own dictionary; empty where it has none, as a dead weak proxy has."""
    if not _place_of_dictionary(type(thing)):
        return {}  # `None`, say: that is the usual case, and raising costs a hundred times as much
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError as error:
        if is_interruption(error):
            raise
        return {}
    return found if type(found) is dict else {}
