"""Finds the columns that the names of a filter mean, and converts its units to theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice

from traceml.model.errors import near_names
from traceml.model.metric_direction import guess_direction
from traceml.model.metric_segments import split_segment
from traceml.model.printable import printable, shorten
from traceml.model.run_values import Wanted
from traceml.store.query_language import (
    SIZE_UNITS_BYTES,
    TIME_UNITS_S,
    AllOf,
    AnyOf,
    Condition,
    Negation,
    Quantity,
    QueryError,
    QueryName,
    QueryNode,
    parse_name,
    written_name,
)

STATISTICS = ("min", "max", "mean")
"""The columns of a metric besides its last value: `min.loss` beside `metrics.loss`."""
BEST = "best"
"""The smallest or the largest value, where the script or the metric's name says which is better."""
DIRECTION = "higher_is_better"
"""What the script said of a metric; a column that is not listed among a run's values."""
MOMENTS = ("started",)
"""Facts that are moments, as seconds since 1970; a filter has them as dates."""
TITLES = {"run": "name"}
"""Facts whose title in a list is another word than their name: both are understood."""
MAX_CHOICES = 5
MAX_TRIED_NAMES = 50_000
"""Comparing one takes some microseconds."""

_TIME_SUFFIXES_S = {"_us": 1e-6, "_ms": 1e-3, "_s": 1.0, "_min": 60.0, "_h": 3600.0}
_SIZE_SUFFIX = "_bytes"


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """The columns that there are, by their keys: `facts.status`, `params.lr`, `metrics.loss`,
    `min.loss`."""

    keys: Collection[str]
    facts: Collection[str]
    """The facts that a run can have, whether any run has them or not."""

    def resolve(self, name: QueryName, may_be_unknown: bool = False) -> str:
        """Returns the key that a name means.

        Raises QueryError where there is no such column, or more than one. With a prefix, a name
        that no run has may be allowed.
        """
        if name.section:
            found = list(self._in_section(name.section, name.name))
            if not found and (may_be_unknown or not self.keys):
                return f"{name.section}.{name.name}"
        else:
            found = [
                key
                for section in ("facts", "params", "metrics")
                for key in self._in_section(section, name.name)
            ]
            if not found and not self.keys:
                return f"params.{name.name}"
        if len(found) > 1:
            choices = ", ".join(written_key(key, is_full=True) for key in found)
            raise QueryError(name.text, name.at, f"{_shown(name)} may be {choices}; write one")
        if not found:
            raise QueryError(name.text, name.at, self._unknown(name))
        return found[0]

    def has(self, name: str) -> bool:
        """Returns whether a name means one column."""
        try:
            self.resolve(parse_name(name))
        except QueryError:
            return False
        return True

    def _in_section(self, section: str, name: str) -> Iterator[str]:
        key = f"{section}.{name}"
        if key in self.keys or (section == "facts" and name in self.facts):
            yield key
        elif section == "facts" and name in TITLES:
            yield f"facts.{TITLES[name]}"
        elif section == "metrics":
            yield from self._statistic(name)

    def _statistic(self, name: str) -> Iterator[str]:
        """Yields the column of `loss.min`, where no metric is called so."""
        metric, _, statistic = name.rpartition(".")
        if f"metrics.{metric}" not in self.keys:
            return
        if split_segment(metric) is not None and statistic != "last":
            return  # of segments the last values are kept alone
        is_known = statistic in STATISTICS or f"{statistic}.{metric}" in self.keys
        if is_known or (statistic == BEST and guess_direction(metric) is not None):
            yield f"{statistic}.{metric}"
        elif statistic == "last":
            yield f"metrics.{metric}"

    def _unknown(self, name: QueryName) -> str:
        metric, _, statistic = name.name.rpartition(".")
        is_metric = f"metrics.{metric}" in self.keys
        if is_metric and split_segment(metric) is not None and statistic in (*STATISTICS, BEST):
            return f"of a segment's values the last one alone can be asked for: {metric}"
        if statistic == BEST and is_metric:
            return (
                f"whether more of {metric!r} is better cannot be told from its name: write "
                f"{written_key(f'min.{metric}')} or {written_key(f'max.{metric}')}"
            )
        near = self._near(name)
        hint = f"did you mean {', '.join(near)}?" if near else self._what_there_is(name.section)
        return f"no run has {_shown(name)}; {hint}"

    def _what_there_is(self, section: str) -> str:
        """Returns some names that can be asked for: of metrics and parameters before facts, the
        shortest first, segments last."""
        keys = dict.fromkeys((*self.keys, *(f"facts.{fact}" for fact in self.facts)))
        wanted = (section,) if section else ("params", "metrics", "facts")
        named = [key for key in keys if key.partition(".")[0] in wanted]
        if not named:
            return f"no run has any {section}"
        named.sort(key=lambda key: (key.startswith("facts."), _is_segment(key), len(key), key))
        some = ", ".join(shorten(written_key(key), 60) for key in named[:MAX_CHOICES])
        more = f" and {len(named) - MAX_CHOICES:,} more" if len(named) > MAX_CHOICES else ""
        return f"there are {some}{more}; traceml runs --columns '*' --format csv shows all"

    def _near(self, name: QueryName) -> list[str]:
        """Returns names that are written much alike, or begin or end alike."""
        by_name: dict[str, list[str]] = {}
        names = chain((f"facts.{fact}" for fact in self.facts), self.keys)
        for key in islice(names, MAX_TRIED_NAMES):
            section, _, own = key.partition(".")
            if section in ("facts", "params", "metrics"):
                by_name.setdefault(own, []).append(key)
        found = near_names(name.name, by_name, MAX_CHOICES)
        keys = dict.fromkeys(key for own in found for key in by_name[own])
        return [written_key(key) for key in list(keys)[:MAX_CHOICES]]


def _is_segment(key: str) -> bool:
    return split_segment(key) is not None


def resolve_filter(node: QueryNode, known: KnownColumns) -> QueryNode:
    """Returns the filter with the keys of columns as its names and without units.

    A name's section and name then are those of a column's key.
    """
    if isinstance(node, Condition):
        return _resolved(node, known)
    if isinstance(node, Negation):
        is_missing = isinstance(node.part, Condition) and node.part.test == "present"
        if is_missing and isinstance(node.part, Condition):
            return Negation(_resolved(node.part, known, may_be_unknown=True))
        return Negation(resolve_filter(node.part, known))
    parts = tuple(resolve_filter(part, known) for part in node.parts)
    return AllOf(parts) if isinstance(node, AllOf) else AnyOf(parts)


def column_key(condition: Condition) -> str:
    """Returns the column of a condition that was resolved."""
    return f"{condition.name.section}.{condition.name.name}"


def written_key(key: str, is_full: bool = False) -> str:
    """Returns a column's key as a filter would have it; a fact has its prefix only if asked for."""
    section, _, name = key.partition(".")
    if section in (*STATISTICS, BEST, DIRECTION):
        return f"{written_name('metrics', name)}.{section}"
    written = written_name(section, name)
    return f"facts.{written}" if is_full and section == "facts" and "." not in written else written


def _resolved(condition: Condition, known: KnownColumns, may_be_unknown: bool = False) -> Condition:
    may_be_unknown = may_be_unknown or condition.test == "present"
    section, _, name = known.resolve(condition.name, may_be_unknown).partition(".")
    wanted = tuple(_in_units_of(section, name, each, condition.name) for each in condition.wanted)
    if section == "facts" and name in MOMENTS:
        wanted = tuple(_moment(each, condition.name) for each in wanted)
    return replace(
        condition,
        name=replace(condition.name, section=section, name=name),
        wanted=wanted,
    )


def _in_units_of(section: str, name: str, value: Wanted | Quantity, said: QueryName) -> Wanted:
    """Returns a number in the unit of its column, which the end of the column's name says."""
    if not isinstance(value, Quantity):
        return value
    if value.unit in TIME_UNITS_S:
        suffixes: Mapping[str, float] = _TIME_SUFFIXES_S
        base, kind = value.number * TIME_UNITS_S[value.unit], "time"
    else:
        suffixes = {_SIZE_SUFFIX: 1.0}
        base, kind = value.number * SIZE_UNITS_BYTES[value.unit], "size"
    # The longest first: `_ms` ends with an s, too.
    for suffix in sorted(suffixes, key=len, reverse=True):
        if name.endswith(suffix) and not name.endswith("_per_s"):
            return base / suffixes[suffix]
    raise QueryError(
        said.text,
        value.at,
        f"{written_key(f'{section}.{name}')} has no unit of {kind} at the end of its name "
        f"({', '.join(suffixes)}); write a number without a unit",
    )


def _moment(value: Wanted | Quantity, said: QueryName) -> Wanted:
    """Returns a date and time as seconds since 1970; without a time zone, the local one."""
    if not isinstance(value, str):
        return value  # type: ignore[return-value]
    try:
        return datetime.fromisoformat(value.strip().replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        raise QueryError(
            said.text, said.at, f'{value!r} is no date: write "2026-11-16" or "2026-11-16 14:30"'
        ) from None


def _shown(name: QueryName) -> str:
    written = f"{name.section}.{name.name}" if name.section else name.name
    return repr(shorten(printable(written), 80))
