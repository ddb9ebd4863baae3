"""The catalogue of phases: the parts of a training step, and everything that is said of each.

The record layout, the means, the summary's keys, tables, figures, colours, the words that
`traceml compare --metric` takes and the reference pages derive from it: a phase that stands here is
on every one of them. `model/metric.py` is the catalogue of metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Phase(str, Enum):
    """A part of a step; the value is the key used in files."""

    INPUT = "input"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    RESIDUAL = "residual"


class Within(Enum):
    """Where in a step a phase lies: `step = input wait + body`."""

    BEFORE_BODY = "before the body: the input wait"
    BODY = "in the body, and no compute"
    COMPUTE = "in the body, a part of compute"
    REST = "what the others leave of the body; it is not measured itself"


@dataclass(frozen=True, slots=True)
class Colour:
    """One colour, as a light page and as a dark page shows it."""

    light: str
    dark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntry:
    """All that is known of a phase."""

    within: Within
    label: str
    """What it is called: in legends and tables, and in lower case in the tree of a step."""
    colour: Colour
    """People who see no red, no green or no blue can tell it from the others
    (`tests/figures/test_colours.py` measures it)."""
    doc: str
    """What it is, for the reference pages."""
    metric: str
    """Its mean in the summary."""
    short: str = ""
    """Its name in a sentence, and as a row of a comparison; by default the label."""
    column: str = ""
    """Its name over a narrow column of text; by default the short one."""
    is_always_a_column: bool = False
    """Whether the step table has its column even where nobody measured it: people know it there."""
    culprit: str = ""
    """What to look at where it grew; by default the short name."""
    since: int = 1
    """The version of the record layout that has its time on the host's clock …"""
    gpu_since: int = 1
    """… and on the GPU's."""

    def __post_init__(self) -> None:
        """Put the default names where none is given."""
        short = self.short or self.label.lower()
        for field, name in (
            ("short", short),
            ("column", self.column or short),
            ("culprit", self.culprit or short),
        ):
            object.__setattr__(self, field, name)


PHASES: Mapping[Phase, PhaseEntry] = MappingProxyType(
    {
        Phase.INPUT: PhaseEntry(
            within=Within.BEFORE_BODY,
            label="Input wait",
            short="input",
            is_always_a_column=True,
            culprit="the input path",
            colour=Colour("#f0581f", "#f86a26"),
            metric="input_wait_ms",
            doc="input wait: the loop waited for its next batch",
        ),
        Phase.H2D: PhaseEntry(
            within=Within.BODY,
            label="Copies to device",
            short="copies",
            culprit="the copies to the device",
            colour=Colour("#723602", "#eacc76"),
            metric="h2d_ms",
            doc="copies to the device, but for those on a CUDA stream beside the loop's",
        ),
        Phase.FORWARD: PhaseEntry(
            within=Within.COMPUTE,
            label="Forward",
            is_always_a_column=True,
            culprit="the forward pass",
            colour=Colour("#369bd9", "#50c4fe"),
            metric="forward_ms",
            doc="forward pass",
        ),
        Phase.BACKWARD: PhaseEntry(
            within=Within.COMPUTE,
            label="Backward",
            is_always_a_column=True,
            culprit="the backward pass",
            colour=Colour("#222f9c", "#4278e5"),
            metric="backward_ms",
            doc="backward pass",
        ),
        Phase.OPTIMIZER: PhaseEntry(
            within=Within.COMPUTE,
            label="Optimizer",
            column="optim.",
            is_always_a_column=True,
            culprit="the optimizer",
            colour=Colour("#37744a", "#8dc39a"),
            metric="optimizer_ms",
            doc="optimizer step",
        ),
        Phase.COMMUNICATION: PhaseEntry(
            within=Within.BODY,
            label="Communication",
            column="comm.",
            colour=Colour("#b01f89", "#d768be"),
            metric="communication_ms",
            doc="exposed communication: the rank waited for a collective and did nothing else; "
            "part of `residual_ms`",
            gpu_since=2,
        ),
        Phase.RESIDUAL: PhaseEntry(
            within=Within.REST,
            label="Rest",
            culprit="the time outside the named phases",
            colour=Colour("#939393", "#7c7c7c"),
            metric="residual_ms",
            doc="the rest, body − copies − compute; what people are shown as it is without "
            "communication",
        ),
    }
)
"""In the order in which a step goes through them, as it is drawn and written."""

MEASURED = tuple(phase for phase, entry in PHASES.items() if entry.within is not Within.REST)
"""The phases that hooks measure; the rest is what they leave."""
COMPUTE = tuple(phase for phase, entry in PHASES.items() if entry.within is Within.COMPUTE)
IN_BODY = (
    *COMPUTE,
    *(phase for phase, entry in PHASES.items() if entry.within is Within.BODY),
)
"""The measured phases of the body; each has its room before the next."""
IN_RESIDUAL_MS = tuple(phase for phase in IN_BODY if phase not in (Phase.H2D, *COMPUTE))
"""Phases whose time `residual_ms` holds as well: it is the body without copies and compute."""
PHASE_METRICS = {phase: PHASES[phase].metric for phase in MEASURED}
"""What a measured phase's mean is called in the step-time section."""

COMPUTE_PART = "compute"
"""The part that stands for the phases of compute where they cannot be told apart."""
BETWEEN = "between"
"""The part that lies between two steps …"""
IN_BETWEEN = ("evaluation", "checkpoint")
"""… and what is told apart of it."""
