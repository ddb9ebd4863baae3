"""Student's t without scipy agrees with scipy's."""

from __future__ import annotations

import math

import pytest
from scipy import special

from traceml.compare.students_t import (
    CONFIDENCE,
    MeanError,
    chi_square,
    quantile,
    reach,
    together,
    two_sided_p,
)


@pytest.mark.parametrize("freedom", [1, 2, 2.5, 3, 3.7, 5, 10, 63, 1e6])
def test_the_quantile_is_that_of_students_t(freedom: float) -> None:
    exact = float(special.stdtrit(freedom, 1 - (1 - CONFIDENCE) / 2))
    assert quantile(freedom) == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 100])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
def test_the_quantile_of_chi_square_is_scipys(level: float, freedom: float) -> None:
    assert chi_square(level, freedom) == pytest.approx(special.chdtri(freedom, 1 - level), rel=0.1)


def test_errors_add_up_as_welch_and_satterthwaite_have_it() -> None:
    found = together((MeanError(3.0, 4), MeanError(4.0, 9)))
    assert found.size == pytest.approx(5.0)
    assert found.freedom == pytest.approx((9 + 16) ** 2 / (81 / 4 + 256 / 9))


def test_an_error_that_is_too_small_to_square_is_one_all_the_same() -> None:
    found = together((MeanError(1e-160, 4), MeanError(1e-160, 4)))
    assert found.freedom == pytest.approx(8)
    assert reach(found) > 0


def test_no_spread_at_all_leaves_no_doubt() -> None:
    nothing = together((MeanError(0.0, 2), MeanError(0.0, 2)))
    assert (two_sided_p(0.0, nothing), two_sided_p(0.1, nothing)) == (1.0, 0.0)


def test_p_is_half_at_the_middle_and_falls_outward() -> None:
    error = MeanError(1.0, 4)
    assert two_sided_p(quantile(4), error) == pytest.approx(1 - CONFIDENCE, abs=1e-3)
    assert two_sided_p(0.0, error) == 1.0
    assert math.isclose(two_sided_p(-2.0, error), two_sided_p(2.0, error))
