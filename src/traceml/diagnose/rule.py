"""What a rule declares about itself: everything that the rest of the program needs to know.

A rule is one file in `rules/` with a `RULE` at its end; `all_rules.py` finds it there. The
file's docstring is the rule's section in `docs/diagnoses.md`. The defaults fit a rule that only
reports what it sees. A cause also declares what it explains, where its time lies, and how a step
would be without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from traceml.facts.facts import Facts
from traceml.facts.job import Job
from traceml.model.finding import Finding, Kind, Section

HOST_DELAYS = (Kind.WAIT_HEAVY, Kind.HOST_BOUND, Kind.WAIT_STRAGGLER, Kind.STRAGGLER)
"""Kinds that an activity of the host may explain."""
GPU_IDLE = (Kind.LOW_GPU_UTILIZATION, Kind.MODERATE_GPU_UTILIZATION)
"""Kinds that an idle GPU shows on the machine, whatever the reason."""


class RuleRole(Enum):
    """What a rule's findings are for."""

    VERDICT = "verdict"
    """They say what is wrong, or where the time goes."""
    CAUSE = "cause"
    """They explain a verdict and stand directly behind it. As a remark they are no verdict: then
    something else leads the section."""
    REMARK = "remark"
    """They explain nothing. As a remark they are no verdict either."""
    CONTEXT = "context"
    """They show on the machine what a finding about the step explains; if it does, they are
    remarks."""
    FALLBACK = "fallback"
    """They are reported for a section without a verdict."""


class Where(Enum):
    """Where in a step the time lies that a finding claims."""

    IN_ITS_PHASE = "in its phase"
    """In the finding's phase; anywhere in the step if it names none."""
    ON_THE_HOST = "on the host"
    """In the finding's phase; if it names none, in the residual and then in compute."""
    BETWEEN_STEPS = "between steps"
    FOR_A_RANK = "for a rank"
    """Where the other ranks wait for a late one, then in the phase that makes it late."""
    ANYWHERE = "anywhere"
    """In the finding's phase first, then wherever time is left."""


class Turn(IntEnum):
    """The order in which findings claim their time: direct measurements first, guesses last."""

    TRANSFER = 0
    LATE_RANK = 1
    PHASE = 2
    BETWEEN_STEPS = 3
    HOST_STOPPED = 4
    """For longer than any queue of a GPU could hide."""
    HOST_PAUSED = 5
    HOST_WAITED = 6
    """Its cost is inferred from the idle time that followed."""
    GPU_IDLE = 7
    SHARE_OF_ALL = 8
    """A share of the whole step, wherever it lies."""
    CHANGE = 9
    LAST = 10


class CodeScope(Enum):
    """Which samples of the training thread's own Python explain a finding."""

    NONE = "none"
    WHOLE_STEP = "whole step"
    REST = "rest of the step"
    FETCHES = "fetches"
    """Loading batches, where no worker does."""
    LATE_PHASE = "late phase"
    """The phase that makes a rank late, on that rank."""
    WAITING_PHASE = "waiting phase"
    """The finding's phase, where the thread waits in it instead of computing."""


def _never(job: Job, finding: Finding) -> bool:
    """The host goes on as before."""
    return False


def _is_exact(finding: Finding) -> bool:
    """No more is saved than predicted."""
    return False


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would be different without a cause, and how much time that saves."""

    words: str
    """The change in words; `{ranks}` is replaced by the ranks that the finding names."""
    saved_s: Callable[[Job, Finding], float | None]
    between: bool = False
    """Whether the cause lies between the steps, so that wall time is saved instead of step time."""
    frees_host: Callable[[Job, Finding], bool] = _never
    """Says whether the host then works ahead, so that the GPU no longer idles between its
    phases."""
    saves_at_least: Callable[[Finding], bool] = _is_exact
    """Says whether the cure may well save more than can be measured."""


def lost(job: Job, finding: Finding) -> float | None:
    """Returns the time that the rule itself found to be lost."""
    return finding.lost_s_per_step


@dataclass(frozen=True, slots=True)
class RestPart:
    """One known part of the residual."""

    words: str
    mean_s: float
    """Seconds per step."""
    action: str


class Symptom(Enum):
    """What people see before they know a cause, in their words; the order of the reference page."""

    IDLE_GPU = "GPU utilisation is low, or the GPU is idle between kernels"
    SLOW_BUSY_GPU = "The GPU is busy all the time, and steps are still slow"
    SLOW_CPU = "Training on the CPU is slow"
    STUTTER = "Some steps take much longer than the others"
    SLOWER_LATER = "Training gets slower as it goes on"
    BAD_SCALING = "More GPUs or machines make it hardly faster; ranks wait for each other"
    LONG_BETWEEN_STEPS = "Steps are fast, and the run takes long all the same"
    MEMORY = "Memory runs out, grows, or is full"
    DIED = "The run failed or was killed"
    STOPPED = "The run makes no progress"
    LOSS = "The loss is NaN or infinite, or jumps"
    NO_VERDICT = "There is no verdict"


@dataclass(frozen=True, slots=True)
class Doc:
    """What the reference page says about a kind: its row in the table, and its section."""

    severities: str
    """As in the summary: `info, warn`."""
    says: str
    text: str | None
    """Paragraphs that begin with `*Meaning.*`, `*Evidence.*`, `*Thresholds.*`, `*What to do.*`
    and, where it applies, `*Silent*`: the docstring of the rule's file, below its first line."""
    symptoms: tuple[Symptom, ...] = ()
    """What somebody has seen who should read about it; empty where nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything about one rule."""

    kind: Kind
    section: Section
    check: Callable[[Facts], Finding | None]
    """Returns the finding; `None` where there is nothing to report or too little was measured."""
    doc: Doc | None = None
    """`None` where another rule of the same kind, for another section, has it."""
    also: Mapping[Kind, Doc] = field(default_factory=dict)
    """Further kinds that the same check may return."""
    role: RuleRole = RuleRole.VERDICT
    explains: tuple[Kind, ...] = ()
    """Kinds that it explains; of several such findings, the one that is read first."""
    yields_to: tuple[Kind, ...] = ()
    """Straggler kinds behind which it stands if no other rank has this problem."""
    usual_below: float = 0.0
    """A healthy step may lose up to this share; below it the finding is no verdict."""
    where: Where = Where.IN_ITS_PHASE
    turn: Turn = Turn.LAST
    what_if: Remedy | None = None
    """`None` where nothing could be removed, because the finding only describes."""
    what_if_between: Remedy | None = None
    """The same for a finding about the time between steps."""
    measure: Callable[[Facts, Finding], float | None] | None = None
    """Returns the share that the rule judges by, also where it finds nothing: a live finding is
    kept while its measure stays near the threshold. `None` where there is no such share."""
    part_of_rest: Callable[[Facts], RestPart | None] | None = None
    """Returns what the rule measures inside the residual, for WAIT_HEAVY to name."""

    code: CodeScope = CodeScope.NONE
    asks_each_node: bool = False
    """Whether it judges one machine, so that each machine of a run over several is judged by
    itself; rules of the system section always do."""

    is_worse_when_low: bool = False
    """Whether a lower share is the worse finding: of several machines, which one is named first."""

    @property
    def is_about_a_machine(self) -> bool:
        """Whether its findings name a machine in a run over several."""
        return self.asks_each_node or self.section is Section.SYSTEM

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind that the rule can find."""
        return (self.kind, *self.also)

    def remedy_of(self, finding: Finding) -> Remedy | None:
        """Returns what would be different without the cause of a finding."""
        between = self.what_if_between if finding.is_between_steps else None
        return between or self.what_if
