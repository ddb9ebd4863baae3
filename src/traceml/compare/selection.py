"""Selects runs by what they were run with: `params.lr=0.1,meta.world_size=8`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from traceml.compare.lineage import options_in
from traceml.model.errors import UsageError
from traceml.summaries.record import RunLabels, Summary

PLACES = ("params", "meta", "lineage")
"""Where a key is looked up; a key without one of these prefixes is looked up in all, in this
order."""

Conditions = Mapping[str, str]


def is_expression(word: str) -> bool:
    """Returns whether a word that names no run can be such an expression."""
    return "=" in word


def parse(word: str) -> dict[str, str]:
    """Returns the wanted values by key."""
    wanted: dict[str, str] = {}
    for part in word.split(","):
        key, separator, value = (text.strip() for text in part.partition("="))
        if not key or not separator:
            raise UsageError(
                f"{word!r} is no group of runs: {part!r} is not of the form key=value; "
                "write for example params.lr=0.1,params.seed=3"
            )
        wanted[key] = value
    return wanted


def matches(labels: RunLabels, wanted: Conditions) -> bool:
    """Returns whether a run has all the wanted values."""
    return all(
        any(alike(found, value) for found in _found(labels, key)) for key, value in wanted.items()
    )


def argument_values(run: Summary, names: Collection[str]) -> dict[str, str]:
    """Returns the values of these options on a run's command line, by name.

    Dashes and prefixes are not part of a name: `--random-seed 3` is `random_seed`, and
    `trainer.fold=2` is `fold`.
    """
    command = None if run.lineage is None else run.lineage.command
    found: dict[str, str] = {}
    for option, value in options_in((command and command.arguments) or ()).items():
        name = option.lstrip("-").replace("-", "_").rpartition(".")[2].lower()
        if name in names and isinstance(value, str):
            found[name] = value
    return found


def _found(labels: RunLabels, key: str) -> list[Any]:
    place, _, rest = key.partition(".")
    if place in PLACES and rest:
        return _under(getattr(labels, place), rest)
    return [value for name in PLACES for value in _under(getattr(labels, name), key)]


def _under(tree: Any, key: str) -> list[Any]:
    """Returns the value of a dotted key, whether the dots are part of a name or separate nested
    keys."""
    if not isinstance(tree, Mapping):
        return []
    if key in tree:
        return [tree[key]]
    parts = key.split(".")
    return [
        value
        for cut in range(1, len(parts))
        if (name := ".".join(parts[:cut])) in tree
        for value in _under(tree[name], ".".join(parts[cut:]))
    ]


def alike(found: Any, wanted: str) -> bool:
    """Returns whether two values are equal, as text or as numbers: 0.1 equals 1e-1."""
    if isinstance(found, bool) or found is None:
        return str(found).lower() == wanted.lower() or (found is None and wanted == "null")
    if isinstance(found, int | float):
        try:
            return float(wanted) == found
        except ValueError:
            return False
    return str(found) == wanted
