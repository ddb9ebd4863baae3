"""What the step machine asks of the world: a place for its steps, and the GPU's own clock."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

Span = tuple[int, Any, Any, "int | None"]
"""A phase between two marks on the GPU's timeline, and the phase it lies inside, if any."""


class Bounds(NamedTuple):
    """A step on the GPU's timeline."""

    first: Any
    start: Any
    """Where the body begins: the same as `first` unless the step is explicit."""
    end: Any
    spans_before: int
    """How many of the step's spans lie before its body."""
    fetches: bool
    """Whether a step without a fetch is one that waited for none."""


class Sink(Protocol):
    """Where finished steps go: the ring in production."""

    def write_step(self, *values: float) -> int:
        """Append a step; all fields of the layout but the sequence."""


class Timeline(Protocol):
    """The GPU's own clock; see `trace.gpu`."""

    def mark(self) -> Any:
        """A moment on the GPU's timeline; `None` when none is taken now."""

    def mark_boundary(self) -> Any:
        """The same where a step may end."""

    def is_timing(self) -> bool:
        """Whether every phase of the step that is running is marked."""

    def record_now(self) -> Any:
        """The same in any step, for what the user asked to time."""

    def is_on_its_stream(self) -> bool:
        """Whether work that is queued now lies on the timeline that the marks are on."""

    def queue_is_dry(self, mark: Any) -> bool | None:
        """Whether the GPU has passed this mark already."""

    def measure_later(self, number: int, step: Bounds, spans: list[Span]) -> None:
        """Fill in the GPU times of a written step when the GPU has got there."""

    def look_at_memory(self) -> None:
        """Read how much memory is in use, if it is time to."""

    def memory(self) -> tuple[int, int]:
        """The most bytes allocated and reserved seen since last asked, or not measured."""
