"""Collects errors that must not stop the agent, until its loop reports them."""

from __future__ import annotations

from types import TracebackType


class ErrorLog:
    """A context manager that suppresses every error of its block. Each is counted; the first of
    each type is kept for a report."""

    def __init__(self) -> None:
        self.count = 0
        self._known: set[type[BaseException]] = set()
        self._unreported: list[BaseException] = []

    def __enter__(self) -> ErrorLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is not None:
            self.add(error)
        return True

    def add(self, error: BaseException) -> None:
        """Counts an error, and keeps it if it is the first of its type."""
        self.count += 1
        if type(error) not in self._known:
            self._known.add(type(error))
            self._unreported.append(error)

    def raise_next(self) -> None:
        """Raises the oldest error that was not reported yet; may be called from another thread."""
        if self._unreported:
            raise self._unreported.pop(0)
