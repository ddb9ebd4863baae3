"""Notices libraries that the script has loaded; loads none itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from traceml.trace.session import Session


class Arrivals:
    """Calls a function with a module, once, as soon as a step ends after the module was loaded."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._awaited: dict[str, Callable[[Any], None]] = {}
        self._loaded = 0
        self._look_again = session.guard(self._look)
        session.tracer.looks.append(self.look)

    def wait_for(self, module: str, do: Callable[[Any], None]) -> None:
        """Have something done with a module; at once, where it is loaded already."""
        found = sys.modules.get(module)
        if found is None:
            self._awaited[module] = do
        else:
            do(found)

    def look(self) -> None:
        """After each step: has anything been loaded since?"""
        if len(sys.modules) != self._loaded:
            self._look_again()

    def _look(self) -> None:
        self._loaded = len(sys.modules)
        for module in [module for module in self._awaited if module in sys.modules]:
            self._awaited.pop(module)(sys.modules[module])
