"""Refuses filters that can never hold, because no run has a value of the type they ask for."""

from __future__ import annotations

from collections.abc import Iterator

from traceml.model.printable import printable, shorten
from traceml.model.run_values import ORDERINGS, RunValue, Wanted, number_of
from traceml.store.query_language import Condition, Negation, Quantity, QueryError, QueryNode
from traceml.store.query_names import column_key, written_key
from traceml.store.run_table import RunTable

_TEXT_TESTS = ("contains", "matches")


def refuse_wrong_types(node: QueryNode, table: RunTable) -> None:
    """Raises QueryError where a condition of a resolved filter orders or searches values that are
    all of another type; a column without values is no error."""
    for condition in _conditions(node):
        values = _values_of(condition, table)
        if values and not any(_may_hold(value, condition) for value in values):
            raise QueryError(condition.name.text, condition.name.at, _problem(condition, values[0]))


def _conditions(node: QueryNode) -> Iterator[Condition]:
    if isinstance(node, Condition):
        yield node
    elif isinstance(node, Negation):
        yield from _conditions(node.part)
    else:
        for part in node.parts:
            yield from _conditions(part)


def _values_of(condition: Condition, table: RunTable) -> list[RunValue]:
    """Returns the distinct values that a test of order or of texts is about, each of a list by
    itself; none for other tests."""
    if condition.test not in (*ORDERINGS, *_TEXT_TESTS):
        return []
    found: list[RunValue] = []
    for value in table.examples(column_key(condition)):
        found += value if isinstance(value, tuple) else [value]
    return found


def _may_hold(value: RunValue, condition: Condition) -> bool:
    """Returns whether a value is of a type that the test can be true of."""
    wanted = condition.wanted[0]
    if isinstance(value, bool | tuple) or isinstance(wanted, bool | Quantity):
        return False
    if condition.test in _TEXT_TESTS or (isinstance(value, str) and isinstance(wanted, str)):
        return isinstance(value, str)
    return number_of(value) is not None and number_of(wanted) is not None


def _problem(condition: Condition, example: RunValue) -> str:
    key = column_key(condition)
    held = "true and false" if isinstance(example, bool) else _held(example)
    asked = f"{condition.test} {_shown(condition.wanted[0])}"
    return f"{written_key(key)} holds {held}, so that {asked} is true of no run{_advice(example)}"


def _held(example: RunValue) -> str:
    kind = "texts" if isinstance(example, str) else "numbers"
    return f"{kind}, such as {_shown(example)}"


def _advice(example: RunValue) -> str:
    if isinstance(example, bool):
        return "; write = true or = false"
    if isinstance(example, str):
        return '; write a text in quotes: = "…", or contains "…"'
    return "; compare it with a number without quotes, such as < 50"


def _shown(value: RunValue | Wanted | Quantity) -> str:
    if isinstance(value, str):
        return f'"{shorten(printable(value), 40)}"'
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
