"""What a rule claims about a run: the kind, how severe, the evidence, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from traceml.model.phase import Phase

Evidence = Mapping[str, "float | int | str | None"]


class Section(str, Enum):
    """The part of a summary that a finding belongs to."""

    STEP_TIME = "step_time"
    STEP_MEMORY = "step_memory"
    SYSTEM = "system"
    PROCESS = "process"


class Severity(str, Enum):
    """How much a finding matters; it alone decides colour and order."""

    INFO = "info"
    WARNING = "warn"
    CRITICAL = "crit"

    @property
    def weight(self) -> int:
        """Higher is worse."""
        return ("info", "warn", "crit").index(self.value)


class Kind(str, Enum):
    """The key by which programs know a finding."""

    NO_DATA = "NO_DATA"
    BALANCED = "BALANCED"
    INPUT_BOUND = "INPUT_BOUND"
    COMPUTE_BOUND = "COMPUTE_BOUND"
    WAIT_HEAVY = "WAIT_HEAVY"
    NORMAL = "NORMAL"

    @property
    def status(self) -> str:
        """The words for people."""
        return _STATUS.get(self, self.value.replace("_", " "))


_STATUS = {
    Kind.INPUT_BOUND: "INPUT-BOUND",
    Kind.COMPUTE_BOUND: "COMPUTE-BOUND",
    Kind.WAIT_HEAVY: "WAIT-HEAVY",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim about a run, with the numbers that support it."""

    kind: Kind
    section: Section
    severity: Severity
    claim: str
    action: str
    phase: Phase | None = None
    share: float | None = None
    skew: float | None = None
    ranks: tuple[int, ...] = ()
    lost_s_per_step: float | None = None
    evidence: Evidence = field(default_factory=dict)
