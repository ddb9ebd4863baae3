"""Colours can be told apart by people who see no red, no green or no blue, and from the page."""

from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import pytest

from traceml.figures.colours import GROUND, HEAT, PALETTE, PHASES, RAMP, SERIES, TONES
from traceml.model.phase import Colour

Vector = npt.NDArray[np.float64]

SEEN_BY = {
    "everybody": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
"""Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
MIN_DISTANCE = 20.0
"""In CIELAB; about 2 can just be seen side by side, 20 is another colour in a legend."""
FOR_AREAS, FOR_WORDS = 3.0, 4.5
"""Contrasts that the WCAG asks for: of graphics, and of text."""


def linear(colour: str) -> Vector:
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light: Vector) -> Vector:
    scaled = (TO_XYZ @ light) / TO_XYZ.sum(axis=1)
    f = np.where(scaled > 216 / 24389, np.cbrt(scaled), (24389 / 27 * scaled + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def seen(colour: str, by: str) -> Vector:
    return lab(np.clip(SEEN_BY[by] @ linear(colour), 0, 1))


def distance(one: str, other: str, by: str) -> float:
    return float(np.linalg.norm(seen(one, by) - seen(other, by)))


def contrast(one: str, other: str) -> float:
    lights = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def on(theme: str, colour: Colour) -> str:
    return colour.light if theme == "light" else colour.dark


@pytest.mark.parametrize("by", SEEN_BY)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_any_two_phases_can_be_told_apart(theme: str, by: str) -> None:
    for one, other in combinations(PHASES, 2):
        apart = distance(on(theme, PHASES[one]), on(theme, PHASES[other]), by)
        assert apart >= MIN_DISTANCE, (one, other, apart)


@pytest.mark.parametrize("by", SEEN_BY)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "pair", [("a", "b"), ("median", "worst"), ("worst", "least"), ("better", "worse")]
)
def test_what_stands_side_by_side_can_be_told_apart(
    theme: str, by: str, pair: tuple[str, str]
) -> None:
    one, other = (on(theme, PALETTE[name]) for name in pair)
    assert distance(one, other, by) >= MIN_DISTANCE


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PALETTE)
def test_every_colour_stands_out_from_the_page(theme: str, name: str) -> None:
    assert contrast(on(theme, PALETTE[name]), on(theme, GROUND)) >= FOR_AREAS


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tone", TONES)
def test_a_tone_can_be_the_colour_of_words(theme: str, tone: str) -> None:
    assert contrast(on(theme, TONES[tone]), on(theme, GROUND)) >= FOR_WORDS


@pytest.mark.parametrize("by", SEEN_BY)
def test_heat_grows_lighter_step_by_step(by: str) -> None:
    lights = [seen(colour, by)[0] for colour in HEAT]
    assert all(later - earlier >= 4 for earlier, later in pairwise(lights))


def test_there_are_as_many_series_as_phases_and_all_differ() -> None:
    assert len({(colour.light, colour.dark) for colour in SERIES.values()}) == len(SERIES)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_the_letter_of_a_side_can_be_read_on_its_badge(theme: str, side: str) -> None:
    assert contrast(on(theme, PALETTE[side]), on(theme, GROUND)) >= FOR_WORDS


@pytest.mark.parametrize("by", SEEN_BY)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_ramp_of_runs_gets_lighter_and_stands_out_from_the_page(theme: str, by: str) -> None:
    stops = getattr(RAMP, theme)
    for darker, lighter in pairwise(stops):
        assert seen(lighter, by)[0] > seen(darker, by)[0]
    assert min(contrast(stop, getattr(GROUND, theme)) for stop in stops) >= FOR_AREAS
