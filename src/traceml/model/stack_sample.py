"""Where the training thread's Python stood when the agent looked, reduced to what is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of somebody's code."""

    function: str
    file: str
    """Relative to the folder that the script was started in, where it lies there."""
    line: int


@dataclass(frozen=True, slots=True)
class StackSample:
    """One look at the training thread, or several in a row that saw the same."""

    unix_s: float
    looks: int
    phase: str
    """A phase's key, by what is on the stack; `residual` where no phase is."""
    user: CodeLine | None = None
    """The user's innermost line inside the phase; in the rest, anywhere on the stack."""
    caller: CodeLine | None = None
    """The user's line that called the phase; none in the rest."""
    library: CodeLine | None = None
    """In the rest, the innermost line of an installed package that the user's line called."""


@dataclass(frozen=True, slots=True)
class StackBurst:
    """Looks at one rank's training thread, taken one after another."""

    rank: int
    pid: int
    way: str
    """`py-spy`, or `signal` where that may not attach."""
    looks: int
    torn: int
    """Looks that failed, or caught the stack while it changed; the thread is never paused."""
    samples: tuple[StackSample, ...] = ()
