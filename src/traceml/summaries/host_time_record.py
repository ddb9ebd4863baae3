"""Where the host's time goes, as `final_summary.json` has it."""

from __future__ import annotations

from msgspec import Struct


class HostCallSummary(Struct, frozen=True, gc=False):
    """A call on the sampled stacks of a phase."""

    function: str
    file: str = ""
    line: int = 0
    """The one at which it was seen most often."""
    is_users: bool = False
    """Whether it is the user's own code."""
    parent: int = -1
    """The call above it, as its place in the list; -1 for none."""
    looks: int = 0
    """Samples in it and in what it called …"""
    own_looks: int = 0
    """… and in itself alone, calls too rare for the list included."""


class HostPlaceSummary(Struct, frozen=True):
    """User code, and how much of a phase was spent in it and in what it called."""

    function: str
    file: str
    line: int
    looks: int
    share: float
    """Of the phase, 0–1, with its 95 % confidence interval."""
    share_low: float
    share_high: float
    inside: str | None = None
    """The function of a package in which most of that was; `None`: in the user's own code."""
    called_by: str | None = None
    """The user's function that called it most often; `None` for the outermost one."""


class HostPhaseSummary(Struct, frozen=True):
    """The sampled stacks of one phase."""

    looks: int
    share: float | None = None
    """Of the training threads' samples, 0–1; `None` for other threads and for workers."""
    per_step_ms: float | None = None
    """The phase's mean time on the host; `None` where it is no part of a step."""
    places: tuple[HostPlaceSummary, ...] = ()
    """The user's innermost functions on the stacks, the most frequent first."""
    calls: tuple[HostCallSummary, ...] = ()
    """The tree; a call comes after the one that made it."""
    independent_looks: float | None = None
    """How many independent samples `looks` are worth, since successive ones are often of one call;
    `None` in files of older versions."""


class HostTimeSummary(Struct, frozen=True):
    """The sampled Python stacks of training threads, by phase."""

    looks: int = 0
    """Samples of training threads that count in a phase …"""
    outside: int = 0
    """… and those that count in none: of warm-up, and before and after the steps."""
    torn: int = 0
    """Samples that failed, or caught the stack while it changed."""
    by: str | None = None
    """How they were taken: `py-spy`, or `signal` where that may not attach."""
    rate_hz: float | None = None
    """Samples per second while it was looked."""
    core_share: float | None = None
    """What looking cost meanwhile, of one core."""
    phases: dict[str, HostPhaseSummary] = {}
    """By phase; only those with enough samples."""
