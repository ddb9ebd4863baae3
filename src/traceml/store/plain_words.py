"""Plain words in the filter box: `straggler slow` finds the runs in which both occur."""

from __future__ import annotations

import re

from traceml.store.query_language import QueryError, parse_filter, quoted

SEARCHED_FACTS = ("name", "status", "verdict", "why", "diagnosis", "user", "host", "note")
"""The facts that words are looked for in; tags besides."""

_SIGNS = re.compile(r"[<>=!~()\"']")
"""What occurs in every comparison with a value."""
_OPERATORS = re.compile(r"\s(?:is|in|contains|matches)\s", re.IGNORECASE)


def filter_of(text: str) -> str:
    """Returns what people typed as a filter of the query language.

    Words without a comparison become one: each has to occur in a run's name, status, diagnosis,
    user, host, note or tags. Anything else is a filter already, right or wrong.
    """
    if not text.strip() or _is_filter(text):
        return text
    return " and ".join(f"({_occurs(word)})" for word in text.split())


def _is_filter(text: str) -> bool:
    if _SIGNS.search(text):
        return True
    if not _OPERATORS.search(f" {text} "):
        return False
    try:  # "stuck in input" is no filter
        parse_filter(text)
    except QueryError:
        return False
    return True


def _occurs(word: str) -> str:
    wanted = quoted(word)
    facts = [f"facts.{name} contains {wanted}" for name in SEARCHED_FACTS]
    return " or ".join([*facts, f"facts.tags matches {quoted(f'*{_literal(word)}*')}"])


def _literal(word: str) -> str:
    """Returns a pattern that matches the word itself."""
    return re.sub(r"([*?\[])", r"[\1]", word)
