"""Plain words in place of a filter: `straggler slow` finds the runs in which both occur."""

from __future__ import annotations

from traceml.store.query_language import QueryError, parse_filter, quoted

SEARCHED_FACTS = ("name", "status", "verdict", "tags", "note")


def filter_of(text: str) -> str:
    """Returns what people typed as a filter: the filter itself, or, where it is only words, one for
    runs that have each of them in their name, status, verdict, tags or note."""
    words = text.split()
    try:
        if not words or parse_filter(text):
            return text
    except QueryError:
        if not all(word.replace("-", "").replace("_", "").isalnum() for word in words):
            return text  # a filter that is wrong, and says so where it is used
    return " and ".join(f"({_occurs(word)})" for word in words)


def _occurs(word: str) -> str:
    return " or ".join(f"facts.{name} contains {quoted(word)}" for name in SEARCHED_FACTS)
