"""A piece of evidence knows its unit and its words, and is a plain value to programs."""

from __future__ import annotations

import pytest

from traceml.model.evidence import (
    Evidence,
    EvidenceUnit,
    as_number,
    as_share,
    as_words,
    in_ms,
    label_of,
    unit_by_name,
)


def test_times_are_measured_in_seconds_and_told_in_milliseconds() -> None:
    assert in_ms("step_time_ms", 0.25).value == 250.0
    assert in_ms("step_time_ms", 0.25).unit is EvidenceUnit.MILLISECONDS


def test_what_was_not_measured_stays_so() -> None:
    assert in_ms("hidden_ms", None).value is None
    assert in_ms("hidden_ms", 0.0).value == 0.0


def test_to_programs_it_is_the_value_of_each_key() -> None:
    evidence = Evidence(as_number("workers", 4), as_words("main_part", None))
    assert dict(evidence) == {"workers": 4, "main_part": None}
    assert evidence == Evidence(as_number("workers", 4), as_words("main_part", None))
    assert evidence != Evidence(as_number("workers", 5), as_words("main_part", None))


def test_of_two_pieces_with_one_key_the_later_counts_in_the_place_of_the_first() -> None:
    evidence = Evidence(as_words("where", "a"), as_number("step", 1), as_words("where", "b"))
    assert list(evidence.items()) == [("where", "b"), ("step", 1)]
    assert [piece.key for piece in evidence.pieces] == ["where", "step"]


def test_a_rule_may_call_it_what_it_likes() -> None:
    assert in_ms("disk_ms", 0.1, label="time on the disk").label == "time on the disk"
    assert in_ms("disk_ms", 0.1).label == "disk"
    assert as_share("fp32_share", 0.1).label == "FP32 share"


def test_what_is_for_programs_alone_is_not_told() -> None:
    assert not as_words("diagnosis_clock", "cpu").is_told
    assert as_words("main_part", "logging").is_told


@pytest.mark.parametrize(
    ("key", "label", "unit"),
    [
        ("input_wait_ms", "input wait", EvidenceUnit.MILLISECONDS),
        ("swap_bytes_per_s", "swap", EvidenceUnit.BYTES_PER_SECOND),
        ("cpu_percent", "CPU", EvidenceUnit.PERCENT),
        ("median_pressure", "median pressure", EvidenceUnit.SHARE),
        ("steps", "steps", EvidenceUnit.NUMBER),
    ],
)
def test_a_key_of_another_package_is_all_that_is_known(
    key: str, label: str, unit: EvidenceUnit
) -> None:
    assert (label_of(key), unit_by_name(key)) == (label, unit)
