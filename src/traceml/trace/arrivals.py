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
        session.look_for_modules = self._look

    def wait_for(self, module: str, do: Callable[[Any], None]) -> None:
        """Have something done with a module; at once, where it is loaded already."""
        found = sys.modules.get(module)
        if found is None:
            self._awaited[module] = do
        else:
            do(found)

    def _look(self) -> None:
        """After a step: something has been loaded since the one before."""
        self._session.looks.remove(self._look)
        for module in [module for module in self._awaited if module in sys.modules]:
            self._awaited.pop(module)(sys.modules[module])
