"""What a rule declares about itself: all that the rest of the program has to know of it.

A rule is one file in `rules/` with a `RULE` at its end; `catalogue.py` finds it there. Most fields
have a default that is right for a rule which only says what it sees. A cause says besides what it
explains, where its time lies, and how a step would be without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from traceml.facts.facts import Facts
from traceml.facts.job import Job
from traceml.model.finding import Finding, Kind, Section

HOST_DELAYS = (Kind.WAIT_HEAVY, Kind.HOST_BOUND, Kind.WAIT_STRAGGLER, Kind.STRAGGLER)
"""What something that the host does besides the model's work may explain."""
GPU_IDLE = (Kind.LOW_GPU_UTILIZATION, Kind.MODERATE_GPU_UTILIZATION)
"""What the machine shows where a step leaves the GPU without work, for whatever reason."""


class RuleRole(Enum):
    """What a rule's findings are for."""

    VERDICT = "verdict"
    """They say what is wrong, or where the time goes."""
    CAUSE = "cause"
    """They explain a verdict and stand directly behind it; where they merely inform they are no
    verdict, and something else has to be said of the section."""
    REMARK = "remark"
    """They explain nothing; where they merely inform they are no verdict either."""
    CONTEXT = "context"
    """They show on the machine what a finding about the step explains, and then only inform."""
    FALLBACK = "fallback"
    """They are said of a section in which there is no verdict."""


class Where(Enum):
    """Where the time that a finding loses lies in a step."""

    IN_ITS_PHASE = "in its phase"
    """In the finding's phase; anywhere in the step where it names none."""
    ON_THE_HOST = "on the host"
    """In the finding's phase; where it names none, in the rest of the step and then in compute."""
    BETWEEN_STEPS = "between steps"
    FOR_A_RANK = "for a rank"
    """Where the other ranks wait for a late one, then in the phase that makes it late."""
    ANYWHERE = "anywhere"
    """In the finding's phase first, and then wherever time is left."""


class Turn(IntEnum):
    """When a finding claims its time: what was measured in its place first, guesses last."""

    TRANSFER = 0
    LATE_RANK = 1
    PHASE = 2
    BETWEEN_STEPS = 3
    HOST_STOPPED = 4
    """For so long that no queue of a GPU hides it."""
    HOST_PAUSED = 5
    HOST_WAITED = 6
    """What it cost is inferred from the idle time that followed."""
    GPU_IDLE = 7
    SHARE_OF_ALL = 8
    """A share of the whole step, wherever that lies."""
    CHANGE = 9
    LAST = 10


class CodeScope(Enum):
    """Which of the training thread's own Python holds the time of a finding, and is named then."""

    NONE = "none"
    WHOLE_STEP = "whole step"
    REST = "rest of the step"
    FETCHES = "fetches"
    """Where no worker makes the batches."""
    LATE_PHASE = "late phase"
    """The phase that makes a rank late, on that rank."""
    WAITING_PHASE = "waiting phase"
    """The finding's phase, where the thread waits in it instead of computing."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would be different without a cause, and how much time that saves."""

    words: str
    """`{ranks}` stands for the ranks that the finding names."""
    saved_s: Callable[[Job, Finding], float | None]
    between: bool = False
    """The cause lies between the steps, so that it is wall time that shrinks."""
    frees_host: bool = False
    """Whether the host may then work ahead, so that the GPU no longer idles between its phases."""
    saves_at_least: bool = False
    """Whether the cure may well save more than can be measured."""


def lost(job: Job, finding: Finding) -> float | None:
    """Saves what the rule itself found to be lost."""
    return finding.lost_s_per_step


@dataclass(frozen=True, slots=True)
class RestPart:
    """One thing in the rest of the step that was measured or named."""

    words: str
    mean_s: float
    """Per step."""
    action: str


@dataclass(frozen=True, slots=True)
class Doc:
    """What the reference page says of a kind: its row in the table, and its section."""

    severities: str
    """As they stand in the summary: `info, warn`."""
    says: str
    text: str
    """Paragraphs that begin with `*Meaning.*`, `*Evidence.*`, `*Thresholds.*`, `*What to do.*`
    and, where it applies, `*Silent*`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything about one rule."""

    kind: Kind
    section: Section
    check: Callable[[Facts], Finding | None]
    """The finding, or `None` where there is nothing to say or too little was measured."""
    doc: Doc | None = None
    """`None` where another rule of the same kind, for another section, has it."""
    also: Mapping[Kind, Doc] = field(default_factory=dict)
    """Further kinds that the same check tells apart."""
    role: RuleRole = RuleRole.VERDICT
    explains: tuple[Kind, ...] = ()
    """Of several findings of these kinds it explains the one that is read first."""
    yields_to: tuple[Kind, ...] = ()
    """The stragglers behind which it stands where no other rank has this trouble."""
    usual_below: float = 0.0
    """The share below which it is bad luck that a healthy step may have: no verdict."""
    where: Where = Where.IN_ITS_PHASE
    turn: Turn = Turn.LAST
    what_if: Remedy | None = None
    """`None` where a finding only describes: nothing could be removed."""
    what_if_between: Remedy | None = None
    """The same for a finding that is about the time between steps."""
    measure: Callable[[Facts, Finding], float | None] | None = None
    """The share that it judges by, measured also where it finds nothing: a live finding is kept
    while its measure stays near the line. `None` where no share says how near that is."""
    part_of_rest: Callable[[Facts], RestPart | None] | None = None
    """What it measures inside the rest of the step, which WAIT_HEAVY then names."""

    code: CodeScope = CodeScope.NONE

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind that it finds."""
        return (self.kind, *self.also)

    def remedy_of(self, finding: Finding) -> Remedy | None:
        """What would be different without the cause of a finding."""
        between = self.what_if_between if finding.is_between_steps else None
        return between or self.what_if
