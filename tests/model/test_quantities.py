"""One formatter: each quantity in the unit and precision people expect."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.model.quantities import (
    count,
    duration,
    memory,
    milliseconds,
    operations,
    param_words,
    percent,
    rate,
    significant,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (8.4e-6, "8.4 µs"),
        (84e-6, "84 µs"),
        (0.0023, "2.3 ms"),
        (0.0438, "43.8 ms"),
        (0.5631, "563.1 ms"),
        (0.99999, "1.00 s"),
        (1.24, "1.24 s"),
        (12.4, "12.4 s"),
        (59.99, "1 min"),
        (200, "3 min 20 s"),
        (7265, "2 h 1 min"),
        (-0.0438, "-43.8 ms"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.0 ms"),
        (0.62, "0.62 ms"),
        (2.34, "2.3 ms"),
        (563.1, "563.1 ms"),
        (12345.6, "12,346 ms"),
    ],
)
def test_milliseconds_stay_milliseconds(ms: float, text: str) -> None:
    assert milliseconds(ms) == text


def test_a_signed_quantity_shows_its_sign_either_way() -> None:
    assert milliseconds(7.94, signed=True) == "+7.9 ms"
    assert milliseconds(-7.94, signed=True) == "-7.9 ms"
    assert percent(0.12, signed=True) == "+12%"


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0%"), (0.027, "2.7%"), (0.0999, "10%"), (0.86, "86%"), (1.2, "120%")]
)
def test_a_share_has_a_decimal_only_below_ten_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (2048, "2.0 KiB"), (341549056, "325.7 MiB"), (1 << 30, "1.00 GiB")],
)
def test_memory_is_in_binary_units(size: int, text: str) -> None:
    assert memory(size) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 FLOP"), (124.6e6, "125 MFLOP"), (3.471e12, "3.47 TFLOP"), (999.6e9, "1.00 TFLOP")],
)
def test_operations_are_in_decimal_units(number: float, text: str) -> None:
    assert operations(number) == text
    assert operations(number, "/s") == f"{text}/s"


def test_counts_and_rates_carry_their_noun() -> None:
    assert [count(1, "step"), count(1200, "step"), count(1200)] == [
        "1 step",
        "1,200 steps",
        "1,200",
    ]
    assert [rate(27.03, "steps"), rate(865.1, "samples")] == ["27.0 steps/s", "865 samples/s"]


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_not_measured_is_never_a_number(missing: float | None) -> None:
    written = (duration(missing), milliseconds(missing), percent(missing), memory(missing))
    assert set(written) | {rate(missing, "steps"), count(None), operations(missing)} == {"n/a"}


@given(st.floats(1e-7, 1e6), st.floats(1e-7, 1e6))
def test_a_longer_millisecond_figure_never_reads_shorter(one: float, other: float) -> None:
    def read(text: str) -> float:
        return float(text.removesuffix(" ms").replace(",", ""))

    low, high = sorted((one, other))
    assert read(milliseconds(low)) <= read(milliseconds(high)) + 0.06


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (6.13756, "6.138"),
        (0.000928, "0.000928"),
        (9.28e-5, "9.28e-5"),
        (-0.0, "0"),
        (-1.5, "-1.5"),
        (1234.56, "1,235"),
        (3.4e38, "3.4e38"),
        (math.nan, "NaN"),
        (math.inf, "infinite"),
        (-math.inf, "-infinite"),
        (None, "n/a"),
    ],
)
def test_a_number_without_a_unit_has_four_significant_digits(value, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3.0, "3"),
        (3, "3"),
        (0.1, "0.1"),
        (1e-05, "1e-5"),
        (1e308, "1e308"),
        (False, "false"),
        (None, "none"),
        ("", '""'),
        ("adam", "adam"),
    ],
)
def test_a_parameter_is_written_alike_everywhere(value: object, words: str) -> None:
    assert param_words(value) == words
