"""Looks at an object without asking it anything: no code of its class runs."""

from __future__ import annotations

from typing import Any

from traceml.trace.interruptions import is_interruption


def own_attributes(thing: Any) -> dict[str, Any]:
    """The object's own dictionary; empty where it has none, as a dead weak proxy has."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError as error:
        if is_interruption(error):
            raise
        return {}
    return found if type(found) is dict else {}
