"""What people type into the filter box: words, or the query language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.store.plain_words import filter_of
from traceml.store.query_language import AllOf, AnyOf, parse_filter


@pytest.mark.parametrize(
    "text",
    [
        "lr > 0.001",
        'status = "finished" and lr > 1',
        "seed is missing",
        'tags contains "good"',
        "lr >",
        "(",
    ],
)
def test_a_comparison_is_left_as_it_is_right_or_wrong(text: str) -> None:
    assert filter_of(text) == text


def test_every_word_has_to_occur_somewhere() -> None:
    found = parse_filter(filter_of("straggler gpu-01"))
    assert isinstance(found, AllOf)
    assert len(found.parts) == 2
    assert all(isinstance(part, AnyOf) for part in found.parts)


@pytest.mark.parametrize("text", ["stuck in input", "what it is", "contains nothing of it"])
def test_a_sentence_with_a_word_of_the_language_is_words(text: str) -> None:
    assert isinstance(parse_filter(filter_of(text)), AllOf)


@pytest.mark.parametrize("text", ["", "   "])
def test_nothing_is_no_filter(text: str) -> None:
    assert not filter_of(text).strip()


@given(st.text(st.characters(exclude_characters="<>=!~()\"'", exclude_categories=["Cs"])))
def test_words_of_any_letters_can_be_read(text: str) -> None:
    if filter_of(text).strip() and len(filter_of(text)) < 5000:
        assert parse_filter(filter_of(text)) is not None
