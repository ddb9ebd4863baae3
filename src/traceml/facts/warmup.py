"""Tells the steps in which a run was still warming up from the rest."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

MAX_WARMUP_SHARE = 0.10  # a longer slow beginning is no warm-up: it is how the run was
CLEARLY_SLOWER = 1.5  # times the typical step: compilers and allocators cost multiples, not shares
SPREADS = 6.0  # … and outside what the later steps do by themselves
MIN_STEPS = 3  # with fewer, nothing says which step is the odd one


def warmup_steps(step_s: npt.NDArray[np.float64], earlier: int = 0, most: int | None = None) -> int:
    """How many of the leading steps are clearly slower than the typical step after them.

    Only an unbroken run of slow steps from the very first one counts, so that a stall which
    happens again and again stays in. Warm-up is where training begins: `most` counts from there,
    and `earlier` steps of it are not among these.
    """
    if len(step_s) < MIN_STEPS:
        return 0
    by_default = math.ceil(len(step_s) * MAX_WARMUP_SHARE)
    most = (by_default if most is None else min(most, len(step_s) // 2)) - earlier
    if most <= 0:
        return 0
    later = step_s[most:][np.isfinite(step_s[most:])]
    if not len(later):
        return 0
    typical = float(np.median(later))
    spread = 1.4826 * float(np.median(np.abs(later - typical)))
    slow = step_s[:most] > max(CLEARLY_SLOWER * typical, typical + SPREADS * spread)
    return most if slow.all() else int(np.argmin(slow))
