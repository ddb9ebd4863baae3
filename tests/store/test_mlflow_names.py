"""Names that MLflow takes, and that come back as they were."""

from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.store.mlflow_names import (
    MAX_NAME_CHARS,
    is_shortened,
    read_name,
    sent_name,
    shortened,
)

NAMES = st.text(max_size=40) | st.text("./_x0041: -aA\\", max_size=30)


def is_taken(name: str) -> bool:
    """MLflow's rules: these characters, and a path that is its own normal form."""
    normal = posixpath.normpath(name)
    is_path = normal == name and normal != "." and not normal.startswith(("..", "/"))
    return bool(re.fullmatch(r"[\w\-. :/]+", name)) and is_path


@given(NAMES)
def test_every_name_is_taken_and_comes_back(name: str) -> None:
    sent = sent_name(name)
    assert is_taken(sent) and len(sent) <= MAX_NAME_CHARS
    if not is_shortened(name) and name:
        assert read_name(sent) == name


@given(st.sets(NAMES, max_size=8))
def test_different_names_stay_different(names: set[str]) -> None:
    assert len({sent_name(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    "name", ["loss", "val/loss", "model.layers.0.lr", "a b", "x-1", "a:b", "größe", "损失"]
)
def test_ordinary_names_stay_as_they_are(name: str) -> None:
    assert sent_name(name) == read_name(name) == name


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("loss@1", "loss_x0040_1"),
        ("a//b", "a_x002F_/b"),
        ("_x0041_", "_x005F_x0041_"),
        ("", "_x0000_"),
    ],
)
def test_other_names_are_escaped(name: str, sent: str) -> None:
    assert sent_name(name) == sent


def test_long_names_end_in_a_hash_that_tells_them_apart() -> None:
    one, other = "n" * 300, "n" * 299 + "m"
    assert is_shortened(one) and not is_shortened("n" * MAX_NAME_CHARS)
    assert sent_name(one) != sent_name(other)
    assert len(sent_name(one)) == MAX_NAME_CHARS


def test_a_text_that_is_cut_says_so() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"
