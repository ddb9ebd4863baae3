"""Lists and queries the runs of a folder by the index of runs: `traceml.runs(filter=…)`."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, overload

from traceml import __version__
from traceml.api.run_files import RunFiles
from traceml.compare.parameter_groups import ALL_BUT, is_label
from traceml.compare.run_groups import RunGroup, group_runs, is_more_better
from traceml.figures.head import RunStanding
from traceml.figures.run_columns import FACTS, VERSION, run_values
from traceml.model.errors import UsageError
from traceml.model.metric_segments import metric_of, split_segment
from traceml.model.run_values import RunValue
from traceml.store.index_columns import DamagedIndex, Rows
from traceml.store.metric_follower import LiveMetrics
from traceml.store.query_language import QueryError, parse_filter, parse_name, split_names
from traceml.store.query_names import DIRECTION, MOMENTS, KnownColumns, resolve_filter, written_key
from traceml.store.query_types import refuse_wrong_types
from traceml.store.run_index import IndexedRun, Progress, RunIndex
from traceml.store.run_table import RunTable
from traceml.store.tags import read_tags
from traceml.summaries.live_record import with_metrics
from traceml.summaries.record import Summary

MAX_TRIED_METRICS = 50
REFRESH_TIMEOUT_S = 5.0
"""How long a server's answer waits for what is new in the folder."""
MAX_PROBLEMS = 20
"""Runs whose problem is a note; of more only the number is said."""


@dataclass(frozen=True, slots=True)
class RunQuery:
    """What to list."""

    filter: str | None = None
    sort: str | None = None
    """Keys with commas; `-KEY` or `KEY desc` for the largest first; `None`: the newest first."""
    limit: int | None = None
    """`None` and 0: all."""
    offset: int = 0
    """How many to leave out at the beginning."""


def runs(
    filter: str | None = None,  # noqa: A002 - the word that people would look for
    *,
    sort: str | None = None,
    limit: int | None = None,
    logs_dir: str | os.PathLike[str] = "logs",
    store: str | None = None,
) -> Runs:
    """Returns the runs under a logs folder that a filter lets through, the newest first.

    `filter` is an expression such as `lr > 0.001 and status = "finished"`, `sort` a key, or
    `-KEY` for the largest first, `limit` the number of runs (0 and `None`: all). The result is a
    list of records with `.to_pandas()` and `.to_polars()`; `.notes` says what could not be read.
    `store` names runs of another tool instead: `mlflow+http://HOST:PORT`, `tensorboard:DIR`.
    Raises UsageError where there is no such folder, or the store cannot be read.
    """
    if store is not None:
        from traceml.api.store_search import search_store  # late: it needs this module

        return search_store(store, RunQuery(filter, sort, limit))
    return RunSearch(existing_folder(Path(logs_dir))).search(RunQuery(filter, sort, limit))


def existing_folder(logs: Path) -> Path:
    """Returns the logs folder; raises UsageError where there is none."""
    if not logs.exists():
        raise UsageError(
            f"there is no folder {logs}: no run was kept there; pass the folder of the runs as "
            "--logs-dir (in Python: logs_dir=)"
        )
    return logs


class RunSearch:
    """The runs of one folder; may be used by several threads."""

    def __init__(
        self,
        logs: Path,
        progress: Progress | None = None,
        max_age_s: float | None = None,
        timeout_s: float = REFRESH_TIMEOUT_S,
    ) -> None:
        """With `max_age_s`, as a server has it, a search answers at once from what was last found
        in the folder, unless that is older. Then it waits until the folder was looked through, but
        no longer than `timeout_s`: after that it answers with what is known."""
        if logs.exists() and not logs.is_dir():
            raise UsageError(f"{logs} is no folder; pass the folder of the runs as --logs-dir")
        self._index = RunIndex(logs, RunReader(), f"{__version__}/{VERSION}")
        self._progress = progress
        self._max_age_s = max_age_s
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        """Held while the index is read or written; tables never change."""
        self._table: RunTable | None = None
        self._refreshed_s = -math.inf
        self._starting = threading.Lock()
        self._refreshing: threading.Thread | None = None

    def search(self, query: RunQuery, max_age_s: float | None = None) -> Runs:
        """Returns the runs that the query asks for; raises QueryError where it is wrong.

        `max_age_s` holds for this search, instead of the usual one.
        """
        try:
            return search_table(self._current_table(max_age_s), query)
        except DamagedIndex:
            with self._lock:
                self._index.rebuild()
            return search_table(self._refresh(), query)

    def _current_table(self, max_age_s: float | None) -> RunTable:
        table = self._table
        max_age_s = self._max_age_s if max_age_s is None else max_age_s
        if table is None or max_age_s is None:
            return self._refresh()
        if time.monotonic() - self._refreshed_s <= max_age_s:
            return table
        self._refresh_in_thread().join(self._timeout_s)
        return self._table or table

    def _refresh_in_thread(self) -> threading.Thread:
        """Returns the thread that looks through the folder; starts one where none does."""
        with self._starting:
            thread = self._refreshing
            if thread is None or not thread.is_alive():
                thread = threading.Thread(target=self._refresh, daemon=True)
                thread.start()
                self._refreshing = thread
            return thread

    def _refresh(self) -> RunTable:
        with self._lock:
            self._table = self._index.refresh(self._progress)
            self._refreshed_s = time.monotonic()
            return self._table


def search_table(table: RunTable, query: RunQuery) -> Runs:
    """Returns the runs of a table that a query asks for; raises QueryError where it is wrong."""
    known = KnownColumns(table.keys, FACTS)
    node = None
    if query.filter is not None and query.filter.strip():
        node = resolve_filter(parse_filter(query.filter), known)
        refuse_wrong_types(node, table)
    rows = table.select(node)
    for key, descending in reversed(list(_sort_keys(query.sort or "", known))):
        rows = table.sort(rows, key, descending)
    return Runs(table, rows, known, len(rows)).window(query.offset, query.limit)


def _sort_keys(text: str, known: KnownColumns) -> Iterator[tuple[str, bool]]:
    for part in split_names(text):
        name, descending = part, False
        words = part.rsplit(None, 1)
        if len(words) == 2 and words[1].lower() in ("asc", "desc"):
            name, descending = words[0], words[1].lower() == "desc"
        elif part.startswith("-"):
            name, descending = part[1:], True
        yield known.resolve(parse_name(name)), descending


class RunReader:
    """Reads runs for the index; of one in progress it reads what it logged as that grows."""

    def __init__(self) -> None:
        self._live: dict[Path, LiveMetrics] = {}

    def __call__(self, folder: Path) -> IndexedRun:
        """Reads a run folder."""
        files = RunFiles(folder)
        standing = RunStanding(
            manifest=files.manifest,
            state=files.state,
            exit_status=files.exit_status,
            now_unix_s=time.time(),
            output=None,
            notes=files.notes,
        )
        said = read_tags(folder)
        values = run_values(self._summary(folder, files), standing, said.tags, said.note)
        is_final = files.state != "live"
        if is_final:
            self._live.pop(folder, None)
        return IndexedRun(values, is_final)

    def _summary(self, folder: Path, files: RunFiles) -> Summary | None:
        """Returns a run's summary; one of the last steps gets the metrics of the whole run."""
        if files.summary is None or not files.is_recent:
            return files.summary
        metrics = self._live.setdefault(folder, LiveMetrics(folder)).refresh()
        return with_metrics(files.summary, metrics)


class RunRecord(Mapping[str, RunValue]):
    """One run: its facts, parameters and metrics by name (`run["params.lr"]`, `run["status"]`).

    A name without a prefix is found as in a filter. What the run does not have raises KeyError.
    """

    __slots__ = ("_place", "_runs")

    def __init__(self, runs: Runs, place: int) -> None:
        self._runs = runs
        self._place = place

    @property
    def name(self) -> str:
        """The run's name."""
        return self._runs.names[self._place]

    def __getitem__(self, name: str) -> RunValue:
        value = self._runs.column(self._runs.key_of(name))[self._place]
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        for key in self._runs.keys:
            if self._runs.column(key)[self._place] is not None:
                yield written_key(key)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"RunRecord({self.name!r}, status={self.get('status')!r})"


class Runs(Sequence[RunRecord]):
    """The runs that a query found; columns are read when they are needed."""

    def __init__(self, table: RunTable, rows: Rows, known: KnownColumns, total: int) -> None:
        self._table = table
        self._rows = rows
        self._known = known
        self._columns: dict[str, list[RunValue | None]] = {}
        self.total = total
        """How many runs there are without the limit."""

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> RunRecord: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[RunRecord]: ...

    def __getitem__(self, place: int | slice) -> RunRecord | Sequence[RunRecord]:
        if isinstance(place, slice):
            return [RunRecord(self, each) for each in range(len(self))[place]]
        return RunRecord(self, range(len(self))[place])

    def __repr__(self) -> str:
        return f"<{len(self)} of {self.total} runs>"

    def window(self, offset: int, limit: int | None) -> Runs:
        """Returns some of these runs, in their order; `None` and 0 are no limit."""
        if not offset and not limit:
            return self
        end = offset + limit if limit else None
        return Runs(self._table, self._rows[offset:end], self._known, self.total)

    def named(self, names: Sequence[str]) -> Runs:
        """Returns runs of the folder by their names, whether they are among these or not; a name
        that no run has is left out."""
        rows = self._table.rows_named(names)
        return Runs(self._table, rows, self._known, len(rows))

    @property
    def run_count(self) -> int:
        """How many runs there are in the folder."""
        return len(self._table)

    @property
    def table(self) -> RunTable:
        """What they were found in: the same object as long as nothing has changed."""
        return self._table

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What could not be read, and why: of all runs, then of those listed here."""
        problems = [str(each) for each in self.column("facts.problem") if each is not None]
        more = len(problems) - MAX_PROBLEMS
        shown = problems[:MAX_PROBLEMS]
        if more > 0:
            shown.append(f"{more:,} more; list them with the filter: problem is not missing")
        return (*self._table.notes, *shown)

    @cached_property
    def names(self) -> list[str]:
        """The names of the runs."""
        return self._table.names(self._rows)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of the columns that any of these runs has: facts, then parameters, then
        metrics, each with its extremes."""
        return tuple(key for key in self.candidate_keys if self.has(key))

    @cached_property
    def candidate_keys(self) -> list[str]:
        """The keys of the columns that these runs may have, without reading any."""
        found = {
            key for key in self._table.keys_of(self._rows) if not key.startswith(f"{DIRECTION}.")
        }
        facts = [f"facts.{name}" for name in FACTS if f"facts.{name}" in found]
        return [*facts, *sorted(found - set(facts), key=_key_order)]

    def has(self, key: str) -> bool:
        """Returns whether any of these runs has a value under a key."""
        try:
            return self._table.has(self._rows, key)
        except (DamagedIndex, OSError) as error:
            raise _changed_meanwhile(error) from error

    def examples(self, key: str) -> Iterator[RunValue]:
        """Yields values of every type that runs of the folder have under a key."""
        try:
            yield from self._table.examples(key)
        except (DamagedIndex, OSError) as error:
            raise _changed_meanwhile(error) from error

    def key_of(self, name: str) -> str:
        """Returns the key of the column that a name means; raises KeyError."""
        try:
            return self._known.resolve(parse_name(name))
        except QueryError as error:
            raise KeyError(error.problem) from None

    def column(self, key: str) -> list[RunValue | None]:
        """Returns what each run has under a key (as `keys` has them); `None` where it is
        missing."""
        if key not in self._columns:
            try:
                self._columns[key] = self._table.read(self._rows, key)
            except (DamagedIndex, OSError) as error:
                raise _changed_meanwhile(error) from error
        return self._columns[key]

    def choose_columns(self, words: str) -> list[str]:
        """Returns the keys of columns that words with commas name; `params.*` names several.

        Raises QueryError for a name that no run has.
        """
        found: dict[str, None] = {}
        for word in split_names(words):
            matching = self._matching(word) if "*" in word else []
            for key in matching or [self._known.resolve(parse_name(word))]:
                found[key] = None
        return list(found)

    def _matching(self, pattern: str) -> list[str]:
        wanted = pattern.casefold().replace("[", "[[]")  # `accuracy[*]` is about segments
        named = (
            key
            for key in self.candidate_keys
            if fnmatchcase(written_key(key).casefold(), wanted)
            or fnmatchcase(written_key(key).removeprefix("metrics.").casefold(), wanted)
        )
        return [key for key in named if self.has(key)]

    def varying(self, limit: int | None = None) -> list[str]:
        """Returns the keys of parameters in which these runs differ, all or some; those that only
        name a run are last."""
        keys = [key for key in self.candidate_keys if key.startswith("params.")]
        found = (key for key in sorted(keys, key=is_label) if self._varies(key))
        return list(islice(found, limit))

    def _varies(self, key: str) -> bool:
        codes = self._table.codes(self._rows, key)
        return bool((codes != codes[:1]).any())

    def main_metrics(self, limit: int) -> list[str]:
        """Returns the keys of metrics that say how good a run is, by what the scripts or their
        names say; of many the shortest names, and segments only where there is nothing else."""
        logged = [key for key in self.candidate_keys if key.startswith("metrics.")]
        known = [key for key in logged if split_segment(key) is None] or logged
        named = [
            key
            for key in known
            if _direction_key(key) in self._table.keys or is_more_better(key) is not None
        ]
        ordered = sorted(named or known, key=lambda key: (len(key), key))
        found = (key for key in ordered[:MAX_TRIED_METRICS] if self.has(key))
        return list(islice(found, limit))

    def group(
        self, by: str, columns: Sequence[str], sort: str | None = None, limit: int | None = None
    ) -> list[RunGroup]:
        """Returns the runs in groups by names with commas, or by all parameters but some.

        They are sorted by what they have in common, or by the means of other columns.
        """
        keys = self._group_keys(by)
        order = list(_sort_keys(sort or "", self._known))
        summed_up = dict.fromkeys((*columns, *(key for key, _ in order if key not in keys)))
        return group_runs(
            self._table.group_numbers(self._rows, keys).tolist(),
            {key: self.column(key) for key in keys},
            {key: self.column(key) for key in summed_up},
            order,
            limit,
            {key: said for key in summed_up if (said := self._said(key)) is not None},
        )

    def more_is_better(self, key: str) -> bool | None:
        """Returns whether more of a column is better: by what the scripts said, else by its name;
        `None` where neither says."""
        return is_more_better(key, self._said(key))

    def _said(self, key: str) -> bool | None:
        """Returns whether more of a metric is better, as most of the scripts said that said it;
        `None` where none did, and of what is no metric."""
        if key.partition(".")[0] in ("facts", "params"):
            return None
        said = [each for each in self.column(_direction_key(key)) if isinstance(each, bool)]
        return Counter(said).most_common(1)[0][0] if said else None

    def count_groups(self, by: str) -> int:
        """Returns how many groups there are."""
        numbers = self._table.group_numbers(self._rows, self._group_keys(by))
        return int(numbers.max(initial=-1)) + 1

    def _group_keys(self, by: str) -> list[str]:
        if not by.startswith(ALL_BUT):
            keys = self.choose_columns(by)
            if not keys:
                raise UsageError(
                    "nothing to group by: write a name, such as params.lr, or all-but:params.seed"
                )
            return keys
        left_out = set(self.choose_columns(by.removeprefix(ALL_BUT)))
        return [key for key in self.varying() if key not in left_out and not is_label(key)]

    def to_pandas(self) -> Any:
        """Returns a pandas DataFrame: a row per run, a column per key, in the order of `keys`."""
        try:
            import pandas
        except ImportError as error:
            raise _no_library("pandas") from error
        return pandas.DataFrame(dict(self._frame_columns()), index=range(len(self)))

    def to_polars(self) -> Any:
        """Returns a polars DataFrame; a column of several types is one of texts."""
        try:
            import polars
        except ImportError as error:
            raise _no_library("polars") from error
        return polars.DataFrame(
            {name: _of_one_type(values) for name, values in self._frame_columns()}, strict=False
        )

    def _frame_columns(self) -> Iterator[tuple[str, list[Any]]]:
        for key in self.keys:
            values: list[Any] = list(self.column(key))
            if key.removeprefix("facts.") in MOMENTS:
                values = [None if each is None else _moment(each) for each in values]
            yield written_key(key), [", ".join(v) if isinstance(v, tuple) else v for v in values]


def _changed_meanwhile(error: Exception) -> UsageError:
    return UsageError(f"the index of runs was changed or damaged meanwhile ({error}); ask again")


def _key_order(key: str) -> tuple[int, str, str]:
    section, _, name = key.partition(".")
    is_metric = section not in ("facts", "params")
    return (int(is_metric), name, "" if section == "metrics" else key)


def _direction_key(key: str) -> str:
    """Returns the key of the column that has what scripts said of a metric's direction."""
    return f"{DIRECTION}.{metric_of(key.partition('.')[2])}"


def _moment(value: RunValue) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(value), timezone.utc)  # type: ignore[arg-type]
    except (ValueError, OverflowError, OSError, TypeError):
        return None


def _of_one_type(values: list[Any]) -> list[Any]:
    types = {type(value) for value in values if value is not None}
    if len(types) <= 1:
        return values
    if types == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _no_library(name: str) -> UsageError:
    return UsageError(
        f"{name} is not installed, and a {name} frame was asked for; install it (pip install "
        f"{name}), or use the records themselves"
    )
