"""Series of like runs, of which one has a history: the same command, script, parameters and
machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from traceml.api.listed_runs import numbers_in
from traceml.api.query_runs import Runs
from traceml.compare.change_points import MIN_CHANGE
from traceml.compare.history_record import LeftOutRuns, OtherSeries
from traceml.compare.like_runs import SPEED_PARAMS, is_ignored, last_part, series_command
from traceml.compare.script_identity import one_name_per_script
from traceml.model.errors import UsageError
from traceml.model.printable import shorten
from traceml.model.run_values import RunValue
from traceml.store.query_names import written_key

DEFAULT_METRIC = "step_time_ms"
MAX_EXAMPLES = 3
MAX_OTHERS = 5

MACHINE = ("host", "gpu_names", "world_size", "nodes")
"""The facts that are the same in all runs of a series."""

Script = tuple[str | None, str | None]
"""The command that runs have in common, and the script that it runs where that is known."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """What history is asked for."""

    filter: str | None = None
    metric: str = DEFAULT_METRIC
    command: str | None = None
    """Text that the command holds; `None`: the command with most runs."""
    run: str | None = None
    """A run whose series is asked for, whether it ended well or not."""
    by_time: bool = False
    any_host: bool = False
    """Whether runs of machines with different names are one series."""
    ignored: tuple[str, ...] = ()
    """Parameters that may differ within a series, such as one that a commit introduced."""
    min_change: float = MIN_CHANGE
    max_others: int = MAX_OTHERS
    """How many other series are told."""


class SeriesOfRuns:
    """The runs that were found, in series of like runs; a run is a row of the list, newest
    first."""

    def __init__(
        self,
        found: Runs,
        key: str,
        request: HistoryRequest,
        of_code: Mapping[Script, frozenset[str]],
    ) -> None:
        """`of_code` has the keys of the parameters that command and code decide, by script: a
        commit that changes a default is what a history is asked about."""
        self._found = found
        self._key = key
        self._request = request
        self._of_code = of_code
        self._facts = [name for name in MACHINE if not (request.any_host and name == "host")]
        self._ignored = ignored = frozenset(map(last_part, request.ignored))
        self._params = {
            name: found.column(name) for name in found.varying() if not is_ignored(name, ignored)
        }
        self._commands = found.column("facts.command")
        self._scripts = scripts_of(found)
        self._ended = [status == "finished" for status in found.column("facts.status")]
        numbers = numbers_in(found, key)
        self.values = [
            number if number is not None and math.isfinite(number) else math.nan
            for number in numbers
        ]
        self._series: dict[tuple[object, ...], list[int]] = {}
        for row in self._usable():
            self._series.setdefault(self._identity(row), []).append(row)

    def _usable(self) -> Iterator[int]:
        for row, (ended, value) in enumerate(zip(self._ended, self.values, strict=True)):
            if ended and not math.isnan(value):
                yield row

    def _identity(
        self, row: int, ignored: Iterable[str] = (), is_any_code: bool = True
    ) -> tuple[object, ...]:
        """Returns what runs of a series have in common: command, script, parameters and machine;
        all parameters unless the code may be any."""
        ignored = self._ignored.union(ignored)
        script = self._scripts[row]
        of_code = self._of_code.get(script, frozenset()) if is_any_code else frozenset[str]()
        params = (
            (name, type(values[row]) is bool, values[row])
            for name, values in self._params.items()
            if last_part(name) not in ignored and name not in of_code
        )
        machine = (self._found.column(f"facts.{name}")[row] for name in self._facts)
        return (series_command(self._commands[row], ignored), script[1], *params, *machine)

    def choose(self) -> list[int]:
        """Returns the series that is asked for: of those with the command the one with most runs,
        of equally long ones the one with the newest run; empty where there is no run."""
        if self._request.run is not None:
            if self._request.command is not None:
                raise UsageError(
                    "a run says which command is meant: give it or a command, not both"
                )
            return self._series.get(self._identity(self._row_of(self._request.run)), [])
        wanted = self._request.command
        matching = [
            rows
            for rows in self._series.values()
            if wanted is None or wanted in str(self._commands[rows[0]] or "")
        ]
        if not matching and self._series:
            commands = dict.fromkeys(str(self._commands[rows[0]]) for rows in self._series.values())
            known = "; ".join(shorten(command, 80) for command in list(commands)[:MAX_OTHERS])
            raise UsageError(
                f"no run that ended well and has {written_key(self._key)} was started by a command "
                f"with {wanted!r} in it; there are: {known}"
            )
        return max(matching, key=len, default=[])

    def _row_of(self, run: str) -> int:
        if run not in self._found.names:
            raise UsageError(
                f"there is no run {shorten(run, 80)!r} among those that were found; name a run "
                "of this folder that the filter lets through"
            )
        return self._found.names.index(run)

    def relatives(self, series: Sequence[int]) -> list[int]:
        """Returns the runs that compute the same on the same machine, whatever their settings for
        speed, the newest first."""
        if not series:
            return []
        wanted = self._identity(series[0], SPEED_PARAMS, is_any_code=False)
        rows = [row for row in range(len(self._found)) if self._ended[row]]
        return [
            row for row in rows if self._identity(row, SPEED_PARAMS, is_any_code=False) == wanted
        ]

    def held_equal(self, series: Sequence[int]) -> dict[str, RunValue | None]:
        """Returns what all runs of the series have in common, by name."""
        if not series:
            return {}
        first = series[0]
        facts = {name: self._found.column(f"facts.{name}")[first] for name in self._facts}
        params = {
            written_key(name): values[first]
            for name, values in self._params.items()
            if values[first] is not None and len({values[row] for row in series}) == 1
        }
        command = series_command(self._commands[first], self._ignored)
        _, script = self._scripts[first]
        return {"command": command, "script_path": script, **facts, **params}

    def others(self, series: Sequence[int]) -> tuple[OtherSeries, ...]:
        """Returns the other series, the longest first; of many only some."""
        mine = self.held_equal(series)
        found = []
        ranked = sorted(self._series.values(), key=len, reverse=True)
        for rows in [rows for rows in ranked if rows != series][: self._request.max_others]:
            theirs = self.held_equal(rows)
            names = dict.fromkeys((*theirs, *mine))
            different = {
                name: theirs.get(name)
                for name in names
                if name != "command" and theirs.get(name) != mine.get(name)
            }
            found.append(
                OtherSeries(
                    command=str(theirs["command"] or ""),
                    runs=len(rows),
                    newest_run=self._found.names[rows[0]],
                    different=different,
                )
            )
        return tuple(found)

    def left_out(self, series: Sequence[int]) -> Iterator[LeftOutRuns]:
        """Yields the runs that are not in the series, by the reason."""
        rows = range(len(self._found))
        chosen = set(series)
        reasons: tuple[tuple[str, Callable[[int], bool]], ...] = (
            ("did not end well, or goes on", lambda row: not self._ended[row]),
            (f"no number as {written_key(self._key)}", lambda row: math.isnan(self.values[row])),
            ("another command, script, parameter or machine", lambda row: row not in chosen),
        )
        rest = list(rows)
        for why, is_so in reasons:
            taken = [row for row in rest if is_so(row)]
            rest = [row for row in rest if not is_so(row)]
            if taken:
                yield left_out(self._found, why, taken)


def scripts_of(found: Runs) -> list[Script]:
    """Returns the command and the script of each run: one command may run a script in one folder
    and another script in the next."""
    commands = [series_command(command) for command in found.column("facts.command")]
    paths, contents = (
        [None if value is None else str(value) for value in found.column(f"facts.{name}")]
        for name in ("script_path", "script_sha256")
    )
    return list(zip(commands, one_name_per_script(commands, paths, contents), strict=True))


def left_out(found: Runs, why: str, rows: Sequence[int]) -> LeftOutRuns:
    """Returns the record of runs that are left out, with some names."""
    examples = tuple(found.names[row] for row in rows[:MAX_EXAMPLES])
    return LeftOutRuns(why=why, runs=len(rows), examples=examples)
