"""The history of one command over the runs of a folder: `traceml history`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from traceml.api.commit_history import CommitHistory
from traceml.api.query_runs import RunQuery, Runs, RunSearch
from traceml.api.run_series import (
    DEFAULT_METRIC,
    HistoryRequest,
    Script,
    SeriesOfRuns,
    left_out,
    scripts_of,
)
from traceml.api.series_summaries import SeriesSummaries
from traceml.compare.change_points import (
    MIN_RUNS,
    ChangePoint,
    StableStretch,
    find_changes,
    levels,
    unit_starts,
)
from traceml.compare.history_record import (
    HistoryChange,
    HistoryLevel,
    HistoryRun,
    LeftOutRuns,
    OtherDifference,
    RunHistory,
)
from traceml.compare.like_runs import is_ignored, series_command
from traceml.compare.prediction_scores import RunVersion, open_predictions, score_predictions
from traceml.compare.run_groups import is_more_better
from traceml.compare.students_t import reach
from traceml.compare.within_run_error import within_run
from traceml.model.errors import UsageError
from traceml.model.printable import shorten
from traceml.model.quantities import count
from traceml.model.run_values import RunValue
from traceml.store.query_names import DIRECTION, written_key
from traceml.summaries.record import Summary

MAX_RUNS = 500
"""Of a series, the newest: finding changes takes time with the square of their number."""
MAX_SCORED_RUNS = 200
MAX_SCRIPTS = 50
"""Scripts for which a summary is read to learn where parameters come from."""
MAX_DIFFERENT_PARAMS = 5
"""Parameters that are named beside a change."""
_COMMAND_LINE = "argparse"

_STEP_TIME = f"facts.{DEFAULT_METRIC}"
_ENVIRONMENT = ("host", "torch", "python", "cuda", "traceml_version")
"""The facts that may change along a history, and may be why it changes."""
_Code = tuple[RunValue | None, RunValue | None, RunValue | None]


def run_history(logs: Path, request: HistoryRequest, repository: Path) -> RunHistory:
    """Returns the history of one command; raises UsageError for a metric or a command that no run
    has."""
    found = RunSearch(logs).search(RunQuery(request.filter))
    return history_of(found, SeriesSummaries(logs), request, repository)


def history_of(
    found: Runs, summaries: SeriesSummaries, request: HistoryRequest, repository: Path
) -> RunHistory:
    """Returns the history of runs that a filter has already selected."""
    key = _metric_key(found, request.metric)
    gathered = SeriesOfRuns(
        found,
        key,
        replace(request, ignored=_ignored(found, request.ignored)),
        _params_of_code(found, summaries),
    )
    series = gathered.choose()
    whole = None if request.by_time else _repository(found, series, repository)
    notes = list(_order_notes(request, whole, repository, series))
    history = whole and whole.along(_commits(found, series))
    ordered = _in_order(found, series, history)
    omitted = [*gathered.left_out(series), *_unordered(found, series, ordered, whole)]
    notes += _shallow_notes(whole, _commits(found, series))
    ordered = ordered[-MAX_RUNS:]
    versions = list(_versions(summaries, found, gathered.relatives(series)))
    scores = score_predictions(versions)
    values = [gathered.values[row] for row in ordered]
    codes = _codes(found, ordered) if history else list(range(len(ordered)))
    started = [_moment(found, row) for row in ordered]
    changes = find_changes(values, codes, request.min_change, started)
    units = len(unit_starts(codes, started))
    unit = "commit" if history and units == len(set(codes)) else "run"
    notes += _number_notes(unit, units)
    higher = _direction(found, key)
    records = _HistoryRecords(found, summaries, history, ordered)
    return RunHistory(
        metric=written_key(key),
        higher_is_better=higher,
        order="commit" if history else "time",
        unit=unit,
        units=units,
        held_equal=gathered.held_equal(series),
        runs=tuple(
            records.run(row, value, has_interval=key == _STEP_TIME)
            for row, value in zip(ordered, values, strict=True)
        ),
        levels=tuple(records.level(level) for level in levels(values, changes, codes, started)),
        changes=tuple(records.change(change, higher) for change in changes),
        left_out=tuple(omitted),
        others=gathered.others(series),
        scores=tuple(scores),
        predictions=tuple(open_predictions(versions[-1].summaries[-1], scores) if versions else ()),
        notes=(*notes, *found.notes),
    )


def _metric_key(found: Runs, name: str) -> str:
    keys = found.choose_columns(name)
    if len(keys) != 1 or keys[0].startswith("params."):
        raise UsageError(
            f"--metric takes one metric or fact, not {shorten(name, 60)}; write a name such as "
            "step_time_ms or metrics.loss"
        )
    return keys[0]


def _ignored(found: Runs, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the keys of the parameters that may differ; raises QueryError for an unknown one."""
    keys = [key for name in names for key in found.choose_columns(name)]
    wrong = [written_key(key) for key in keys if not key.startswith("params.")]
    if wrong:
        raise UsageError(
            f"--ignore takes parameters, and {wrong[0]} is none; write a name such as "
            "params.num_workers"
        )
    return tuple(keys)


def _params_of_code(found: Runs, summaries: SeriesSummaries) -> dict[Script, frozenset[str]]:
    """Returns by script the keys of the parameters that were read from its own command line.

    With the same command, their values are the defaults in the code. Runs whose command is not
    known are left out.
    """
    known: dict[Script, frozenset[str]] = {}
    ended = found.column("facts.status")
    for row, script in enumerate(scripts_of(found)):
        if (
            script[0] is None
            or script in known
            or ended[row] != "finished"
            or len(known) >= MAX_SCRIPTS
        ):
            continue
        summary = summaries.of(found.names[row])
        sources = {} if summary is None else summary.param_sources
        known[script] = frozenset(
            f"params.{name}" for name, source in sources.items() if source == _COMMAND_LINE
        )
    return known


def _direction(found: Runs, key: str) -> bool | None:
    """Returns whether more is better: what the newest script that says so says, else the name."""
    said: bool | None = None
    section, _, name = key.partition(".")
    if section != "facts" and f"{DIRECTION}.{name}" in found.table.keys:
        column = found.column(f"{DIRECTION}.{name}")
        said = next((value for value in column if isinstance(value, bool)), None)
    return is_more_better(key, said)


def _repository(found: Runs, series: Sequence[int], here: Path) -> CommitHistory | None:
    """Returns the repository that knows commits of these runs: around this folder, or around the
    one that the newest run was started in."""
    commits = _commits(found, series)
    if not any(commits):
        return None
    started_in = _text(found.column("facts.folder")[series[0]])
    for folder in (here, *([Path(started_in)] if started_in else ())):
        history = CommitHistory.around(folder)
        if history is not None and history.knows_any(commits):
            return history
    return None


def _commits(found: Runs, series: Sequence[int]) -> list[str | None]:
    column = found.column("facts.commit")
    return [_text(column[row]) for row in series]


def _order_notes(
    request: HistoryRequest, history: CommitHistory | None, here: Path, series: Sequence[int]
) -> Iterator[str]:
    if history is None and not request.by_time and series:
        yield (
            f"in the order of time: no git repository around {here} knows a commit of these runs; "
            "call it inside the repository, with its whole history (in CI: fetch-depth: 0)"
        )


def _shallow_notes(history: CommitHistory | None, commits: Sequence[str | None]) -> Iterator[str]:
    if history is None:
        return
    unordered = sum(each not in history.places for each in commits)
    if unordered and history.is_shallow():
        yield (
            f"this repository is a shallow clone: {count(unordered, 'run')} may be left out only "
            "because older commits are not in it; fetch the whole history (git fetch --unshallow; "
            "in CI: fetch-depth: 0)"
        )


def _number_notes(unit: str, units: int) -> Iterator[str]:
    if not 0 < units < MIN_RUNS:
        return
    if unit == "commit":
        yield (
            f"too few commits to tell a change from noise ({units}): it takes {MIN_RUNS}, because "
            "runs of one commit share the state of the machine; traceml bench compares two commits "
            "in turn"
        )
    else:
        yield (
            f"too few runs to tell a change from noise ({units}): it takes {MIN_RUNS}; "
            "traceml compare --a … --b … judges two groups of three"
        )


def _in_order(found: Runs, series: Sequence[int], history: CommitHistory | None) -> list[int]:
    """Returns the runs of a series, the oldest first: by the order of their commits, or by time. A
    run with a commit that is not on the line of the history is left out."""
    by_time = sorted(series, key=lambda row: _moment(found, row))
    if history is None:
        return by_time
    commits = found.column("facts.commit")
    first_seen: dict[_Code, int] = {}
    for place, row in enumerate(by_time):
        first_seen.setdefault(_code(found, row), place)
    known = [row for row in by_time if commits[row] in history.places]

    def place_of(row: int) -> tuple[int, bool, int]:
        code = _code(found, row)
        is_changed = any(code[1:])
        return history.places[str(code[0])], is_changed, first_seen[code]

    return sorted(known, key=place_of)


def _moment(found: Runs, row: int) -> float:
    """Returns when a run started; one that does not say so is the oldest."""
    value = found.column("facts.started")[row]
    return float(value) if isinstance(value, int | float) else -math.inf


def _code(found: Runs, row: int) -> _Code:
    """Returns what the code of a run is known by: its commit, and what was not committed."""
    names = ("commit", "code_changes", "dirty")
    commit, changes, dirty = (found.column(f"facts.{name}")[row] for name in names)
    return commit, changes, dirty or None


def _unordered(
    found: Runs, series: Sequence[int], ordered: Sequence[int], whole: CommitHistory | None
) -> Iterator[LeftOutRuns]:
    kept = set(ordered)
    rest = [row for row in series if row not in kept]
    reasons: dict[str, list[int]] = {}
    for row, commit in zip(rest, _commits(found, rest), strict=True):
        if commit is None:
            why = "it has no commit on record"
        elif whole is not None and commit in whole.places:
            why = "its commit is on a merged branch, beside the line that is followed"
        else:
            why = "its commit is not in the history of HEAD"
        reasons.setdefault(why, []).append(row)
    for why, rows in reasons.items():
        yield left_out(found, why, rows)
    if len(ordered) > MAX_RUNS:
        why = f"only the newest {MAX_RUNS} are judged"
        yield left_out(found, why, ordered[:-MAX_RUNS])


def _codes(found: Runs, ordered: Sequence[int]) -> list[int]:
    """Returns a number for the version of the code of each run."""
    numbers: dict[_Code, int] = {}
    return [numbers.setdefault(_code(found, row), len(numbers)) for row in ordered]


def _versions(summaries: SeriesSummaries, found: Runs, rows: Sequence[int]) -> Iterator[RunVersion]:
    """Yields the runs by code and command, with their summaries; the oldest version first."""
    commands = found.column("facts.command")
    versions: dict[tuple[RunValue | None, ...], list[tuple[str, Summary]]] = {}
    for row in reversed(rows[:MAX_SCORED_RUNS]):
        summary = summaries.of(found.names[row])
        if summary is None:
            continue  # nothing to score by
        command = series_command(commands[row])
        known = versions.setdefault((*_code(found, row), command), [])
        known.append((found.names[row], summary))
    for (commit, *_), runs in versions.items():
        yield RunVersion(tuple(runs), _text(commit))


class _HistoryRecords:
    """Records of runs and changes, from the columns of the list."""

    def __init__(
        self,
        found: Runs,
        summaries: SeriesSummaries,
        history: CommitHistory | None,
        ordered: Sequence[int],
    ) -> None:
        self._found = found
        self._summaries = summaries
        self._history = history
        self._ordered = ordered
        self._commits = {self.commit(row) for row in ordered}
        self._subjects = history.subjects(map(self.commit, ordered)) if history else {}

    def subject(self, row: int) -> str | None:
        return self._subjects.get(self.commit(row) or "")

    def commit(self, row: int) -> str | None:
        return _text(self._found.column("facts.commit")[row])

    def dirty(self, row: int) -> bool | None:
        value = self._found.column("facts.dirty")[row]
        return value if isinstance(value, bool) else None

    def run(self, row: int, value: float, has_interval: bool) -> HistoryRun:
        started = self._found.column("facts.started")[row]
        return HistoryRun(
            run=self._found.names[row],
            value=value,
            interval=self._interval(row, value) if has_interval else None,
            started_unix_s=started if isinstance(started, float) else None,
            commit=self.commit(row),
            subject=self.subject(row),
            dirty=self.dirty(row),
        )

    def _interval(self, row: int, value: float) -> tuple[float, float] | None:
        summary = self._summaries.of(self._found.names[row])
        error = within_run(summary.steps, value) if summary is not None else None
        if error is None:
            return None
        share = reach(error)
        return value * max(0.0, 1 - share), value * (1 + share)

    def level(self, level: StableStretch) -> HistoryLevel:
        first, last = self._ordered[level.first], self._ordered[level.end - 1]
        return HistoryLevel(
            first_run=self._found.names[first],
            last_run=self._found.names[last],
            first_commit=self.commit(first),
            last_commit=self.commit(last),
            runs=level.end - level.first,
            mean=level.mean,
        )

    def change(self, change: ChangePoint, higher_is_better: bool | None) -> HistoryChange:
        names, ordered = self._found.names, self._ordered
        before, after = ordered[change.place - 1], ordered[change.place]
        is_more = change.difference > 0
        effect = None
        if higher_is_better is not None:
            effect = "better" if is_more == higher_is_better else "worse"
        commits = None
        if self._history is not None:
            commits = self._history.between(self.commit(before), self.commit(after))
        return HistoryChange(
            first_run=names[after],
            first_commit=self.commit(after),
            first_subject=self.subject(after),
            dirty=self.dirty(after),
            last_run_before=names[before],
            last_commit_before=self.commit(before),
            commits_between=commits
            and tuple(each for each in commits if each not in self._commits),
            earliest_run=names[ordered[change.earliest]],
            latest_run=names[ordered[change.latest]],
            before=change.before,
            after=change.after,
            difference=change.difference,
            difference_interval=change.difference_interval,
            ratio=change.ratio,
            ratio_interval=change.ratio_interval,
            p=change.p,
            effect=effect,
            also_different=tuple(self._different(before, after)),
        )

    def _different(self, before: int, after: int) -> Iterator[OtherDifference]:
        for name in _ENVIRONMENT:
            column = self._found.column(f"facts.{name}")
            if column[before] != column[after]:
                yield OtherDifference(name=name, before=column[before], after=column[after])
        yield from islice(self._different_params(before, after), MAX_DIFFERENT_PARAMS)

    def _different_params(self, before: int, after: int) -> Iterator[OtherDifference]:
        for key in self._found.varying():
            column = self._found.column(key)
            if column[before] != column[after] and not is_ignored(key):
                name = written_key(key)
                yield OtherDifference(name=name, before=column[before], after=column[after])


def _text(value: RunValue | None) -> str | None:
    return value if isinstance(value, str) else None
