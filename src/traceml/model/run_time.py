"""What a run's wall time went to: the parts of goodput, and everything that is said of each.

Summary keys, the lines of text, the page's bar and the rows of comparisons derive from this list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class RunPart(str, Enum):
    """A part of a run's wall time; the value is the key used in files."""

    STEPS = "steps"
    START_UP = "start_up"
    COMPILATION = "compilation"
    EVALUATION = "evaluation"
    CHECKPOINTS = "checkpoints"
    BETWEEN = "between_steps"
    REDONE = "redone_steps"
    RESTARTS = "restarts"
    HANG = "hang"
    SHUT_DOWN = "shut_down"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class RunPartEntry:
    """All that is said of a part."""

    label: str
    doc: str


RUN_PARTS: Mapping[RunPart, RunPartEntry] = MappingProxyType(
    {
        RunPart.STEPS: RunPartEntry(
            "Training steps",
            "complete training steps (input wait + body, without compiling) that no restart undid: "
            "the productive part, whose share of the wall time is the goodput",
        ),
        RunPart.START_UP: RunPartEntry(
            "Start-up",
            "from the start of the run to its first step: imports, dataset, model",
        ),
        RunPart.COMPILATION: RunPartEntry("Compilation", "compiling in steps"),
        RunPart.EVALUATION: RunPartEntry("Evaluation", "evaluation between steps"),
        RunPart.CHECKPOINTS: RunPartEntry("Checkpoints", "saving between steps"),
        RunPart.BETWEEN: RunPartEntry(
            "Between steps",
            "between steps, neither evaluation nor saving",
        ),
        RunPart.REDONE: RunPartEntry(
            "Steps done again",
            "training steps whose result a restart lost: those after the checkpoint from which the "
            "next attempt went on",
        ),
        RunPart.RESTARTS: RunPartEntry(
            "Restarts",
            "from the last step of an attempt to the first step of the next",
        ),
        RunPart.HANG: RunPartEntry(
            "Hang",
            "from the last step to the end of an attempt that ended in a hang",
        ),
        RunPart.SHUT_DOWN: RunPartEntry(
            "After the last step",
            "from the last step to the end of the run, besides evaluation and saving: what the "
            "script still does, and its shut-down",
        ),
        RunPart.REST: RunPartEntry(
            "Rest",
            "what was not accounted for: aborted steps, steps that were not recorded, a notebook "
            "between two cells",
        ),
    }
)
"""In the order in which they are drawn and written."""
