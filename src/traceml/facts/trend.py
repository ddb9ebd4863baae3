"""Distinguishes memory that keeps growing (a leak) from memory that merely varies.

Readings are grouped into blocks, and only the floor (a low quantile) of each block counts: peaks of
evaluation, checkpoints and uncollected garbage lie above it. The floors are compared in several
ways, because each test alone is fooled by something: a step-wise rise that has ended, a warm-up
that levels off, a sawtooth longer than a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_READINGS = 8  # fewer are too few blocks to have a head, a middle and a tail
BLOCKS = 12  # the first is left out: allocators and compilers settle in it
FLOOR = 0.25  # of a block's readings lie at or below its floor: peaks are rarer than the rest
GOES_ON = 0.75  # of the whole growth's speed, lately: 1 in a leak, 2/3 at most in a logarithm
STILL = 0.4  # of that speed within the last third: 1 in a leak, 0 where a stair has ended
CLEAR = 4.0  # times what the floors scatter around the growth
MIN_RISING = 3  # blocks: one or two steps up are an allocator's, not a leak's
RISING = 0.02  # of the whole rise: a block that rises by less stands still
STEADY = 0.75  # of the blocks since the onset rise in a leak that is beyond doubt
STEADY_READINGS = 12  # … which needs a reading in every block
BENT = 0.7  # of a straight line's scatter: an onset has to fit clearly better than none


class Growth(Enum):
    """How certain it is that memory keeps growing."""

    NONE = "none"
    LIKELY = "likely"
    STEADY = "steady"


@dataclass(frozen=True, slots=True)
class Trend:
    """How the floor of some memory changed from the first third of its readings to the last."""

    growth: Growth
    readings: int
    first_step: int
    last_step: int
    onset_step: int
    """The step at which the growth began; the first step where it always grew."""
    start_bytes: float
    end_bytes: float
    rise_bytes: float
    per_step_bytes: float
    """Growth per step since the onset."""
    per_s_bytes: float


def find_trend(numbers: Ints, times_s: Floats, sizes: Ints) -> Trend | None:
    """Returns the trend of readings in order; `None` where there are too few.

    `numbers` are the steps at which they were taken, each at most once: a leak grows with the
    steps, however long they take. Only differences count, so a constant offset changes nothing.
    """
    if len(sizes) < MIN_READINGS:
        return None
    lowest = int(sizes.min())
    if lowest == int(sizes.max()):  # as on the GPU from one step to the next
        first, last, level = int(numbers[0]), int(numbers[-1]), float(lowest)
        return Trend(Growth.NONE, len(sizes), first, last, first, level, level, 0.0, 0.0, 0.0)
    floors, places = _floors(sizes - lowest, numbers)
    third = len(floors) // 3
    head, tail = float(floors[:third].mean()), float(floors[-third:].mean())
    steps = int(numbers[-1] - numbers[0])
    if floors[-third:].min() > floors[:third].max():
        onset, per_step_bytes, scatter = _hinge(floors, places)
        growth = _growth(floors, places, onset, scatter, len(sizes))
    else:  # as nearly always
        onset, per_step_bytes, growth = 0, (tail - head) / max(steps, 1), Growth.NONE
    steps_per_s = steps / max(float(times_s[-1] - times_s[0]), 1e-9)
    return Trend(
        growth=growth,
        readings=len(sizes),
        first_step=int(numbers[0]),
        last_step=int(numbers[-1]),
        onset_step=int(places[onset]) if onset else int(numbers[0]),
        start_bytes=lowest + head,
        end_bytes=lowest + tail,
        rise_bytes=tail - head,
        per_step_bytes=per_step_bytes,
        per_s_bytes=per_step_bytes * steps_per_s,
    )


def _floors(sizes: Ints, numbers: Ints) -> tuple[Floats, Floats]:
    """Returns the floor of each block of readings but the first, and the step that has it in a
    leak."""
    blocks, places, firsts = _blocks(len(sizes))
    padded = np.append(sizes, np.iinfo(np.int64).max)
    ordered = np.partition(padded[blocks], (int(places.min()), int(places.max())), axis=1)
    floors = ordered[np.arange(len(blocks)), places].astype(np.float64)
    return floors, numbers[firsts + places].astype(np.float64)  # in order already


@lru_cache(maxsize=8)
def _blocks(readings: int) -> tuple[Ints, Ints, Ints]:
    """Returns all blocks but the first: their readings, the floor's position among them, the first
    reading.

    Blocks are about equally long; a shorter one is padded with the reading after its last.
    """
    edges = np.linspace(0, readings, min(BLOCKS, readings) + 1).astype(np.int64)[1:]
    lengths = np.diff(edges)
    within = np.arange(lengths.max())
    blocks = np.where(within < lengths[:, None], edges[:-1, None] + within, readings)
    return blocks, (FLOOR * (lengths - 1)).astype(np.int64), edges[:-1]


def _hinge(floors: Floats, places: Floats) -> tuple[int, float, float]:
    """Fits a line that is constant up to one block and rises linearly from there.

    Returns that block, the slope, and how far the floors scatter around the line. Allocators grow
    in jumps, and some bend always fits those a little better: it has to fit clearly better.
    """
    fits = [_bent_line(floors, places, onset) for onset in range(len(floors) - len(floors) // 3)]
    straight, best = fits[0], min(fits, key=lambda fit: fit[2])
    return best if best[2] < BENT * straight[2] else straight


def _bent_line(floors: Floats, places: Floats, onset: int) -> tuple[int, float, float]:
    bent = np.maximum(places - places[onset], 0.0)
    bent -= bent.mean()
    slope = float(bent @ floors) / float(bent @ bent)
    rest = floors - floors.mean() - slope * bent
    return onset, slope, float(np.sqrt(rest @ rest / (len(floors) - 2)))


def _growth(floors: Floats, places: Floats, onset: int, scatter: float, readings: int) -> Growth:
    """Returns how certain the growth is, for floors whose last third lies above the first."""
    third = len(floors) // 3
    head, middle, tail = floors[:third], floors[-2 * third : -third], floors[-third:]
    where = places[:third].mean(), places[-2 * third : -third].mean(), places[-third:].mean()
    rise = tail.mean() - head.mean()
    speed = rise / (where[2] - where[0])
    lately = (tail.mean() - middle.mean()) / (where[2] - where[1])
    rising = np.diff(floors) > RISING * rise
    is_likely = (
        rise >= CLEAR * scatter
        and lately >= GOES_ON * speed
        and (tail[-1] - tail[0]) / (places[-1] - places[-third]) >= STILL * lately
        and rising.sum() >= MIN_RISING
    )
    if not is_likely:
        return Growth.NONE
    steady = readings >= STEADY_READINGS and rising[onset:].mean() >= STEADY
    return Growth.STEADY if steady else Growth.LIKELY
