"""Selects runs by what they were run with: `params.lr=0.1,meta.world_size=8`.

That is a short form of a filter (`store/query_language.py`) that needs no quotes in a shell; any
other word with a sign of comparison is such a filter itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from traceml.compare.lineage import options_in
from traceml.model.errors import UsageError
from traceml.summaries.record import RunLabels, Summary

PLACES = ("params", "meta", "lineage")
"""Where a key is looked up; a key without one of these prefixes is looked up in all, in this
order."""

Conditions = Mapping[str, str]


_COMPARISON = re.compile(r"[=<>]|\s(in|is|not|contains|matches)\s", re.IGNORECASE)
_LONG = re.compile(r"[<>!()\"']|==|=[^,]*=")
"""What the short form does not have; quotes are for a shell."""
_FACTS = {"run_name": "name", "nodes_observed": "nodes", "gpus_observed": "gpus"}
"""Keys of a summary's `meta`, where the fact of a run has another name."""


def is_expression(word: str) -> bool:
    """Returns whether a word that names no run can be a filter, or the short form of one."""
    return _COMPARISON.search(word) is not None


def is_short(word: str) -> bool:
    """Returns whether a word is the short form: `key=value[,key=value]`."""
    return "=" in word and _LONG.search(word) is None


def as_filter(word: str) -> str:
    """Returns the filter that a short form means; raises UsageError where it is none.

    Of a key of the summary's `meta` or `lineage`, the last part is the fact that it means.
    """
    return " and ".join(f"{_name(key)} = {_value(value)}" for key, value in parse(word).items())


def _name(key: str) -> str:
    place, _, rest = key.partition(".")
    if place == "params" and rest:
        return f"params.{_quoted(rest)}"
    if place in PLACES and rest:
        last = rest.rpartition(".")[2]
        return f"facts.{_quoted(_FACTS.get(last, last))}"
    return _quoted(key)


def _value(text: str) -> str:
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        return text if math.isfinite(float(text)) else _quoted(text)
    except ValueError:
        return _quoted(text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def parse(word: str) -> dict[str, str]:
    """Returns the wanted values by key."""
    wanted: dict[str, str] = {}
    for part in word.split(","):
        key, separator, value = (text.strip() for text in part.partition("="))
        if not key or not separator:
            raise UsageError(
                f"{word!r} is not a group of runs: {part!r} is not of the form key=value; "
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
