"""The palette: every colour has a name, a form for light pages and one for dark ones.

Phases can be told apart by people who see no red, no green or no blue, and stand out from the
page's ground; `tests/figures/test_colours.py` measures both. Severity is never told by colour
alone: its word stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceml.model.phase import BETWEEN, COMPUTE_PART, Colour
from traceml.model.phase import PHASES as ENTRIES

GROUND = Colour("#ffffff", "#161b22")
"""The background of figures; on any other, contrasts differ from what the test measured."""

STEP = "step"
MEDIAN, WORST, LEAST = "median", "worst", "least"
A, B = "a", "b"
BETTER, WORSE = "better", "worse"

PHASES: dict[str, Colour] = {
    **{phase.value: entry.colour for phase, entry in ENTRIES.items()},
    BETWEEN: Colour("#172126", "#e8f2fc"),
}
"""The parts that a step's time, and the time beside it, is divided into."""

SERIES: dict[str, Colour] = {
    f"series-{number}": PHASES[phase]
    for number, phase in enumerate(
        (
            "forward",
            "input",
            "optimizer",
            "communication",
            "backward",
            "h2d",
            "residual",
            "between",
        ),
        start=1,
    )
}
"""For ranks, GPUs and whatever else there may be many of; after the last colour the first is used
again."""

TONES: dict[str, Colour] = {
    "good": Colour("#1a7346", "#56c98d"),
    "info": Colour("#1f5fbf", "#7ab7ff"),
    "warn": Colour("#8f5b00", "#e8b339"),
    "crit": Colour("#c0251b", "#ff8276"),
    "muted": Colour("#5b6572", "#9aa5b1"),
}
"""Dark enough, or light enough, to be the colour of words."""

PALETTE: dict[str, Colour] = {
    **PHASES,
    **SERIES,
    **TONES,
    COMPUTE_PART: Colour("#2a65bb", "#499ef2"),
    STEP: Colour("#5b6572", "#9aa5b1"),
    MEDIAN: Colour("#369bd9", "#50c4fe"),
    WORST: Colour("#b8321a", "#f86a26"),
    LEAST: Colour("#939393", "#7c7c7c"),
    A: Colour("#68717e", "#8b95a3"),
    B: Colour("#2447b8", "#6ea8ff"),
    BETTER: Colour("#2a65bb", "#57b0f5"),
    WORSE: Colour("#c4450f", "#f8823e"),
}
"""By the name of a colour, which a series or a bar carries."""

HEAT: tuple[str, ...] = (
    "#0b1f3f",
    "#123a6b",
    "#1f5690",
    "#3672a3",
    "#578ca6",
    "#7ea6a1",
    "#a9bd96",
    "#d3cf83",
    "#f4de71",
    "#fff3a6",
)
"""From low to high; each is lighter than the one before, for every kind of colour vision."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """Colours from low to high, for light pages and for dark ones."""

    light: tuple[str, ...]
    dark: tuple[str, ...]


RAMP = Ramp(
    light=("#1d2b6b", "#5a2f94", "#96318f", "#c23d6c", "#d55a3a", "#c98206"),
    dark=("#6f86ff", "#a98bff", "#dc8fee", "#ff9fbe", "#ffbd8f", "#ffe27a"),
)
"""For thin lines and dots: unlike those of `HEAT`, each stands out from the page's ground; each is
lighter than the one before, for every kind of colour vision."""


def series_colour(number: int) -> str:
    """Returns the name of the colour of a series, by its number from 0."""
    return f"series-{number % len(SERIES) + 1}"
