"""The record layout derives from the catalogue of phases; the bytes on disk stay what they were."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest

from traceml.model import record_layout
from traceml.model.phase import IN_BODY, Phase
from traceml.model.record_layout import Field, block_fields, packer, step_fields


def fingerprint(fields: Sequence[Field]) -> str:
    """Names, kinds and their order: any other is another format."""
    return sha256(" ".join(f"{name}:{kind}" for name, kind in fields).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("version", "fields", "size", "expected"),
    [
        (1, step_fields, 184, "96bc3bb6c8a8dd30"),
        (1, block_fields, 680, "f83bdf3883a1edc8"),
        (2, step_fields, 240, "6959430f75af9907"),
        (2, block_fields, 872, "6a3c535edbe1624e"),
        (3, step_fields, 260, "cd1c2e107a9fa40b"),
        (3, block_fields, 936, "87d07c257705bbc6"),
        (4, step_fields, 316, "fd99e734176d06d9"),
        (4, block_fields, 1160, "6873598561bd370f"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_no_written_version_ever_changes(version, fields, size, expected):
    found = fields(version)
    assert (packer(found).size, fingerprint(found)) == (size, expected), (
        f"files of version {version} would be read wrongly: what is new belongs to the next "
        "VERSION (`since` and `gpu_since` of a phase, `SINCE` of any other field)"
    )


def test_every_measured_phase_has_a_field_on_both_clocks():
    names = {name for name, _ in record_layout.STEP}
    for phase in (Phase.INPUT, *IN_BODY):
        assert {f"{phase.value}_ns", f"gpu_{phase.value}_ns"} <= names
        assert f"gpu_{phase.value}_ns" in record_layout.GPU_FIELDS


def test_no_field_comes_from_a_version_that_there_is_not():
    assert set(record_layout.SINCE.values()) <= set(range(1, record_layout.VERSION + 1))
    assert record_layout.SINCE.keys() <= {name for name, _ in record_layout.STEP}
