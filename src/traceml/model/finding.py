"""What a rule claims about a run: the kind, how severe, the evidence, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from traceml.model.evidence import Evidence
from traceml.model.phase import Phase


class Section(str, Enum):
    """The part of a summary that a finding belongs to."""

    STEP_TIME = "step_time"
    STEP_MEMORY = "step_memory"
    SYSTEM = "system"
    PROCESS = "process"
    STABILITY = "stability"
    """Whether the run came to its end, and whether its loss stayed a number."""


class Severity(str, Enum):
    """How much a finding matters; it alone decides colour and order."""

    INFO = "info"
    WARNING = "warn"
    CRITICAL = "crit"

    @property
    def weight(self) -> int:
        """Higher is worse."""
        return ("info", "warn", "crit").index(self.value)


class Consequence(IntEnum):
    """What a finding means for the run; findings are read in this order, then by severity."""

    ENDED_IT = 0
    WILL_END_IT = 1
    SLOWS_IT = 2
    REMARK = 3


class Kind(str, Enum):
    """The key by which programs know a finding: public names, in the order of the reference page.

    Other rules, pages and readers of old summaries, who load no rule, refer to the listed ones. A
    new rule of which only its own file has to know the name says `Kind.declare("ITS_NAME")` there.
    """

    # Step time: where a mean step's time goes
    INPUT_BOUND = "INPUT_BOUND"
    H2D_BOUND = "H2D_BOUND"
    WAIT_HEAVY = "WAIT_HEAVY"
    COMM_BOUND = "COMM_BOUND"
    SLOW_LINK = "SLOW_LINK"
    HOST_BOUND = "HOST_BOUND"
    # Step time: one rank holds up the others
    STRAGGLER = "STRAGGLER"
    INPUT_STRAGGLER = "INPUT_STRAGGLER"
    COMPUTE_STRAGGLER = "COMPUTE_STRAGGLER"
    H2D_STRAGGLER = "H2D_STRAGGLER"
    WAIT_STRAGGLER = "WAIT_STRAGGLER"
    # Step time: compute, and why it takes its time, by the GPU's counters
    COMPUTE_BOUND = "COMPUTE_BOUND"
    TENSOR_CORES_IDLE = "TENSOR_CORES_IDLE"
    BANDWIDTH_BOUND = "BANDWIDTH_BOUND"
    SMALL_KERNELS = "SMALL_KERNELS"
    NEAR_GPU_LIMIT = "NEAR_GPU_LIMIT"
    # Step time: causes inside or between steps; they explain one of the above
    GC_PAUSES = "GC_PAUSES"
    LOGGING_HEAVY = "LOGGING_HEAVY"
    HOST_SYNC = "HOST_SYNC"
    RECOMPILING = "RECOMPILING"
    CPU_STARVED = "CPU_STARVED"
    GPU_THROTTLED = "GPU_THROTTLED"
    CHECKPOINT_HEAVY = "CHECKPOINT_HEAVY"
    EVALUATION_HEAVY = "EVALUATION_HEAVY"
    SLOWDOWN = "SLOWDOWN"
    # Step time: how much of the run was seen
    WARMUP = "WARMUP"
    INCOMPLETE_DATA = "INCOMPLETE_DATA"
    # Step memory
    HIGH_PRESSURE = "HIGH_PRESSURE"
    IMBALANCE = "IMBALANCE"
    CREEP_EARLY = "CREEP_EARLY"
    CREEP_CONFIRMED = "CREEP_CONFIRMED"
    FRAGMENTATION = "FRAGMENTATION"
    # System and process: the context
    HIGH_CPU = "HIGH_CPU"
    HIGH_RAM = "HIGH_RAM"
    SWAPPING = "SWAPPING"
    NO_GPU = "NO_GPU"
    LOW_GPU_UTILIZATION = "LOW_GPU_UTILIZATION"
    MODERATE_GPU_UTILIZATION = "MODERATE_GPU_UTILIZATION"
    UNEVEN_GPU_UTILIZATION = "UNEVEN_GPU_UTILIZATION"
    HIGH_GPU_MEMORY = "HIGH_GPU_MEMORY"
    HIGH_GPU_TEMPERATURE = "HIGH_GPU_TEMPERATURE"
    HIGH_GPU_POWER = "HIGH_GPU_POWER"
    GPU_MEMORY_IMBALANCE = "GPU_MEMORY_IMBALANCE"
    # Stability
    EXCEPTION = "EXCEPTION"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    KILLED = "KILLED"
    HANG = "HANG"
    NON_FINITE_LOSS = "NON_FINITE_LOSS"
    LOSS_SPIKE = "LOSS_SPIKE"
    STABLE = "STABLE"
    # Any section
    BALANCED = "BALANCED"
    NO_DATA = "NO_DATA"
    NORMAL = "NORMAL"

    @classmethod
    def declare(cls, name: str) -> Kind:
        """A kind that is not listed above; always the same object for the same name."""
        if name in cls.__members__:
            return cls[name]
        if name not in _DECLARED:
            kind = str.__new__(cls, name)
            kind._name_ = kind._value_ = name
            _DECLARED[name] = kind
        return _DECLARED[name]

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        """Lets `Kind("ITS_NAME")` find a kind once a rule has declared it."""
        return _DECLARED.get(value) if isinstance(value, str) else None

    def __reduce_ex__(self, _: object) -> tuple[type[Kind], tuple[str]]:
        return Kind, (self.value,)  # by value: some 3.11 look for an attribute of that name

    @property
    def status(self) -> str:
        """The words for people."""
        between = "-" if self.value.endswith("_BOUND") else " "
        return _STATUS.get(self, self.value.replace("_", between))


_DECLARED: dict[str, Kind] = {}
_STATUS = {
    Kind.WAIT_HEAVY: "WAIT-HEAVY",
    Kind.CREEP_EARLY: "MEMORY CREEP (EARLY)",
    Kind.CREEP_CONFIRMED: "MEMORY CREEP",
    Kind.NON_FINITE_LOSS: "NON-FINITE LOSS",
}


COMPUTE_CAUSES = frozenset(
    {
        Kind.TENSOR_CORES_IDLE,
        Kind.BANDWIDTH_BOUND,
        Kind.SMALL_KERNELS,
        Kind.NEAR_GPU_LIMIT,
    }
)
"""Why compute takes its time; they are told beside COMPUTE_BOUND though they only inform."""


_ENDS = frozenset({Kind.EXCEPTION, Kind.OUT_OF_MEMORY, Kind.KILLED, Kind.HANG})
_WILL_END = frozenset({Kind.NON_FINITE_LOSS, Kind.CREEP_CONFIRMED})
"""Where they are critical: the loss does not come back, and memory is full within a day."""


def consequence(kind: str | None, severity: str | None) -> Consequence:
    """What a finding of this kind and severity means for its run, by their keys.

    A run that was merely asked to end, and whatever else only informs, is a remark.
    """
    if severity not in (Severity.WARNING.value, Severity.CRITICAL.value):
        return Consequence.REMARK
    if kind in _ENDS:
        return Consequence.ENDED_IT
    is_critical = severity == Severity.CRITICAL.value
    return Consequence.WILL_END_IT if kind in _WILL_END and is_critical else Consequence.SLOWS_IT


class StepSpan(NamedTuple):
    """The steps that a finding is about, counted from 1 over the whole run."""

    first: int
    last: int | None = None
    """`None`: it holds on."""

    @classmethod
    def at(cls, step: int) -> StepSpan:
        """Of what happened in one step."""
        return cls(step, step)


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
    nodes: tuple[str, ...] = ()
    """The machines that it is about, by name, in a run over several; the worst first."""
    lost_s_per_step: float | None = None
    part_of: Kind | None = None
    """The finding that holds this one's lost time already: the two are not to be added up."""
    steps: StepSpan | None = None
    """Where in the run it is: since which step it holds, or in which it happened. `None`: it is
    about everything that was looked at, or nobody knows."""
    is_between_steps: bool = False
    """The time passes between steps, where no phase is: its share is one of the wall time."""
    is_one_off: bool = False
    """The time was lost in a few single steps: the next ones need not lose any."""
    evidence: Evidence = field(default_factory=Evidence)
