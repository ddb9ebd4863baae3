"""Student's t distribution: the uncertainty of a mean whose spread is known from few values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
MIN_DEGREES_OF_FREEDOM = 3.0
"""From here on the expansion is accurate to half a percent; below, scipy computes the exact
value."""

_TAIL = 1 - (1 - CONFIDENCE) / 2
_Z = NormalDist().inv_cdf(_TAIL)
_TERMS = (
    (_Z**3 + _Z) / 4,
    (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
    (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
    (79 * _Z**9 + 776 * _Z**7 + 1482 * _Z**5 - 1920 * _Z**3 - 945 * _Z) / 92160,
)
"""By power of one over the degrees of freedom (Abramowitz and Stegun 26.7.5)."""


@dataclass(frozen=True, slots=True)
class MeanError:
    """A mean's standard error, and its degrees of freedom."""

    size: float
    freedom: float


def together(errors: Sequence[MeanError]) -> MeanError:
    """Returns the error of a sum or difference of independent means (Welch–Satterthwaite)."""
    size = math.hypot(*(error.size for error in errors))
    if size == 0:
        return MeanError(0.0, sum(error.freedom for error in errors))
    # Shares, not fourth powers: those of an error of a billionth are zero.
    inverse_freedom = math.fsum((error.size / size) ** 4 / error.freedom for error in errors)
    return MeanError(size, 1 / inverse_freedom)


def reach(error: MeanError, confidence: float = CONFIDENCE) -> float:
    """Returns half the width of the confidence interval."""
    return quantile(error.freedom, confidence) * error.size


def quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Returns how many standard errors that is."""
    if freedom < MIN_DEGREES_OF_FREEDOM or confidence != CONFIDENCE:
        from scipy import special  # late: two summaries are compared without it

        return float(special.stdtrit(freedom, 1 - (1 - confidence) / 2))
    return _Z + sum(term / freedom ** (power + 1) for power, term in enumerate(_TERMS))


def chi_square(level: float, freedom: float) -> float:
    """Returns the quantile of the chi-square distribution."""
    if freedom < MIN_DEGREES_OF_FREEDOM:
        from scipy import special  # late: two summaries are compared without it

        return float(special.chdtri(freedom, 1 - level))
    # Wilson and Hilferty: its cube root is all but normal.
    share = 2 / (9 * freedom)
    return float(freedom * (1 - share + NormalDist().inv_cdf(level) * math.sqrt(share)) ** 3)


def two_sided_p(difference: float, error: MeanError) -> float:
    """Returns the two-sided p-value of a difference."""
    if error.size == 0:
        return 1.0 if difference == 0 else 0.0
    from scipy import special  # late: only groups of runs are tested

    return 2 * float(special.stdtr(error.freedom, -abs(difference / error.size)))
