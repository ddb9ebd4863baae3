"""What a coding agent may ask about runs: read-only answers, small enough to be read by a model.

An agent names runs by their names, and reaches nothing outside the logs folders. Code is read only
where it lies in the one folder that was allowed, and only from Python files that the run's own
summary points at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from traceml.api.compare import compare_sides
from traceml.api.listed_runs import choose_columns, runs_document, usual_columns
from traceml.api.query_runs import RunQuery, RunSearch
from traceml.api.run_files import RunFiles
from traceml.compare.record import to_json
from traceml.model.errors import RunNotFound, UsageError, did_you_mean
from traceml.model.printable import file_lines, shell_word, shorten
from traceml.model.secrets import masked_text
from traceml.store import folder as folders
from traceml.store.regular_files import read_regular, stat_regular
from traceml.summaries.read import FILE_NAME, known_runs, list_names
from traceml.summaries.record import SECTIONS, Summary, sections_of
from traceml.text.comparison import comparison_text

MAX_ANSWER_CHARS = 40_000
"""About 10,000 tokens."""
MAX_LISTED_RUNS = 200
CONTEXT_LINES = 4
"""Of code, before and after a line."""
MAX_SOURCE_BYTES = 4 << 20
_CUTS = ((400, 8_000), (100, 2_000), (30, 600), (10, 200), (4, 80))
"""Entries of a list and letters of a text that an answer keeps, tried until it is small enough."""
_PLACE = re.compile(r"(?P<file>.+\.py):(?P<line>\d+)(?: in (?P<function>\S+))?")
"""How a failure says where it happened: `train.py:7 in main`, as `line_name` writes it. A path may
hold spaces and colons."""


@dataclass(frozen=True)  # no slots: the protocol's package makes its schema of class attributes
class ToolAnswer:
    """What a tool answers."""

    result: dict[str, Any]
    notes: list[str]
    """What is missing or was cut, in words."""


@dataclass(frozen=True, slots=True)
class _NamedLine:
    """A line of code that a run's summary points at."""

    file: str
    line: int
    why: str
    function: str | None = None


class AgentTools:
    """The runs under some logs folders, and the code in one folder."""

    def __init__(self, logs_dirs: Sequence[Path], code_dir: Path) -> None:
        self._logs_dirs = [path.absolute() for path in logs_dirs]
        self._code_dir = code_dir.resolve()

    def list_runs(
        self, chosen: str | None, sort: str | None, columns: str | None, limit: int
    ) -> ToolAnswer:
        """Returns the runs of every logs folder that a filter chooses."""
        if not 1 <= limit <= MAX_LISTED_RUNS:
            raise UsageError(f"limit is {limit}; expected 1 to {MAX_LISTED_RUNS}")
        listed, notes, problems = [], [], []
        for logs_dir in self._logs_dirs:
            if not logs_dir.is_dir():
                notes.append(f"{logs_dir} does not exist yet: no run was made there")
                continue
            try:
                found = RunSearch(logs_dir).search(RunQuery(chosen, sort, limit))
                keys = choose_columns(found, columns, partial(usual_columns, found))
            except UsageError as error:  # a column that the runs of another folder may have
                problems.append(error)
                continue
            document = runs_document(found, keys)
            notes += document.pop("notes")
            listed.append({"logs_dir": str(logs_dir), **document})
        if problems and not listed:
            raise problems[0]
        return _bounded({"folders": listed}, notes)

    def verdict(self, run: str) -> ToolAnswer:
        """Returns what a run's bottleneck or failure is, with the numbers that show it."""
        files, summary = self._open(run)
        found = _plain(summary)
        steps = found.get("step_time") or {}
        result = {
            "run": run,
            "state": files.state,
            "exit_status": files.exit_status,
            "primary_diagnosis": found.get("primary_diagnosis"),
            "failure": found.get("failure"),
            "duration_s": found.get("duration_s"),
            "meta": found.get("meta"),
            "mean_step": (steps.get("global") or {}).get("average"),
            "window": (steps.get("global") or {}).get("window"),
            "if_fixed": found.get("what_if"),
            "other_findings": [
                f"{name}: {issue.status} ({issue.severity})"
                for name, section in sections_of(summary)
                for issue in section.issues[:3]
            ],
        }
        return _bounded(result, list(files.notes))

    def findings(self, run: str, section: str | None) -> ToolAnswer:
        """Returns a run's findings with their evidence and next steps, section by section."""
        if section is not None and section not in SECTIONS:
            raise UsageError(
                f"there is no section {section!r}{did_you_mean(section, SECTIONS)}; "
                f"expected one of {', '.join(SECTIONS)}"
            )
        files, summary = self._open(run)
        found = _plain(summary)
        chosen = SECTIONS if section is None else (section,)
        result = {name: found[name]["issues"] for name in chosen if found.get(name)}
        return _bounded({"run": run, "findings": result}, list(files.notes))

    def layers(self, run: str) -> ToolAnswer:
        """Returns what the deep profile saw of a run's layers."""
        _, summary = self._open(run)
        found = _plain(summary).get("layers")
        if found is None:
            raise UsageError(
                f"the run {run!r} has no deep profile; run it with `traceml run --profile=deep` to "
                "see its layers"
            )
        return _bounded({"run": run, "layers": found}, [])

    def summary_part(self, run: str, path: str) -> ToolAnswer:
        """Returns one part of a run's summary by its keys with dots, and with numbers for the
        places in a list; an empty path: the names of all parts."""
        _, summary = self._open(run)
        found: Any = _plain(summary)
        if not path:
            return _bounded({"run": run, "parts": sorted(found)}, [])
        for key in path.split("."):
            found = _step_into(found, key, path)
        return _bounded({"run": run, "path": path, "value": found}, [])

    def compare(self, a: Sequence[str], b: Sequence[str]) -> ToolAnswer:
        """Returns what changed from one group of runs to another, how sure that is, and why."""
        if not a or not b:
            raise UsageError("a side has no run; name at least one run in a and one in b")
        sides = [[str(self._summary_file(run)) for run in side] for side in (a, b)]
        comparison, _ = compare_sides(sides[0], sides[1], self._logs_dirs[0], None)
        document = json.loads(to_json(comparison))
        chosen = ("verdict", "overview", "moved", "warnings", "gate")
        result = {key: document[key] for key in chosen if document.get(key)}
        return _bounded({**result, "text": comparison_text(comparison)}, [])

    def code(self, run: str) -> ToolAnswer:
        """Returns the lines of code that a run's findings and failure point at, with a few lines
        around each."""
        files, summary = self._open(run)
        places = list(_places(summary))
        notes: list[str] = []
        shown = [
            {
                "file": place.file,
                "line": place.line,
                "function": place.function,
                "why": place.why,
                "code": self._source(files, place, notes),
            }
            for place in places
        ]
        if not places:
            notes.append(
                "nothing points at a line of code: no exception ended the run, and no stack of its "
                "own code was sampled (stacks are sampled once something has been wrong for some "
                "seconds, or with --profile=deep, where the system allows to read the process)"
            )
        return _bounded({"run": run, "places": shown}, list(dict.fromkeys(notes)))

    # Where things are

    def _folder(self, run: str) -> Path:
        """Returns the folder of a run by its name; raises RunNotFound."""
        for logs_dir in self._logs_dirs:
            folder = logs_dir / run
            if folders.is_right_in(logs_dir, run) and folder.is_dir():
                return folder
        names = [name for logs_dir in self._logs_dirs for name in known_runs(logs_dir)]
        places = ", ".join(map(str, self._logs_dirs))
        there = f"; runs there: {list_names(names)}" if names else ""
        raise RunNotFound(
            f"there is no run {shorten(run, 80)!r} under {places}{did_you_mean(run, names)}; pass "
            f"a run's name as list_runs shows it{there}"
        )

    def _summary_file(self, run: str) -> Path:
        path = self._folder(run) / FILE_NAME
        if stat_regular(path) is None:
            raise UsageError(f"the run {run!r} has no summary yet; it is written when the run ends")
        return path

    def _open(self, run: str) -> tuple[RunFiles, Summary]:
        folder = self._folder(run)
        files = RunFiles(folder)
        if files.summary is None:
            why = "it has just begun" if files.state == "live" else "its agent died"
            raise UsageError(
                f"the run {run!r} has no summary ({why}); wait for its first steps, or run "
                f"`traceml recover {shell_word(folder)}`"
            )
        return files, files.summary

    def _source(self, files: RunFiles, place: _NamedLine, notes: list[str]) -> list[str] | None:
        """Returns numbered lines around a place; `None`, with a note, where they may not be read or
        are not there."""
        path = Path(files.manifest.working_folder or ".", place.file)
        try:
            real = path.resolve(strict=True)
            if real.suffix != ".py" or not real.is_relative_to(self._code_dir):
                notes.append(
                    f"{place.file} is not shown: only Python files under {self._code_dir} may be "
                    "read (--code-dir)"
                )
                return None
            content = read_regular(real, max_bytes=MAX_SOURCE_BYTES).decode(errors="replace")
            changed_s = real.stat().st_mtime
        except (OSError, ValueError, RuntimeError):
            notes.append(f"{place.file} is not there any more, or cannot be read")
            return None
        if changed_s > files.manifest.started_unix_s:
            notes.append(f"{place.file} was changed after the run began: lines may have moved")
        numbered = list(enumerate(file_lines(masked_text(content)), 1))
        near = numbered[max(0, place.line - 1 - CONTEXT_LINES) : place.line + CONTEXT_LINES]
        return [f"{'>' if number == place.line else ' '} {number}: {text}" for number, text in near]


def _places(summary: Summary) -> Iterator[_NamedLine]:
    """Yields the places that a summary names: where it failed, and where phases spent time."""
    failure = summary.failure
    if failure is not None and failure.where:
        found = _PLACE.fullmatch(failure.where)
        if found:
            why = f"{failure.kind}: {failure.error or failure.summary}"
            yield _NamedLine(found["file"], int(found["line"]), why, found["function"])
    if summary.user_time is None:
        return
    for phase, code in summary.user_time.phases.items():
        for place in code.places:
            why = f"{100 * place.share:.0f}% of the samples in {phase}"
            yield _NamedLine(place.file, place.line, why, place.function)


def _plain(summary: Summary) -> dict[str, Any]:
    """Returns a summary as its file has it."""
    found: dict[str, Any] = json.loads(to_json(summary))
    return found


def _step_into(value: Any, key: str, path: str) -> Any:
    if isinstance(value, dict) and key in value:
        return value[key]
    is_place = key.isdecimal() and len(key) < 10
    if isinstance(value, list) and is_place and int(key) < len(value):
        return value[int(key)]
    if isinstance(value, dict):
        known = f"it has {', '.join(sorted(value)[:60])}{did_you_mean(key, value)}"
    elif isinstance(value, list):
        known = f"it is a list of {len(value)}"
    else:
        known = "it is a single value"
    raise UsageError(f"there is no {key!r} on the way to {path!r}: {known}")


def _bounded(result: dict[str, Any], notes: list[str]) -> ToolAnswer:
    """Returns an answer that is not too long: its lists and texts are cut until it fits."""
    if len(json.dumps(result)) <= MAX_ANSWER_CHARS:
        return ToolAnswer(result, notes)
    smaller: Any = result
    for entries, letters in _CUTS:
        smaller = _cut(result, entries, letters)
        if len(json.dumps(smaller)) <= MAX_ANSWER_CHARS:
            break
    else:
        smaller = {"names": _cut(sorted(result), *_CUTS[-1])}
    said = "the answer was too long: lists and texts were cut; ask for a part with summary_section"
    return ToolAnswer(smaller, [*notes[:20], said])


def _cut(value: Any, entries: int, letters: int) -> Any:
    if isinstance(value, dict):
        kept = list(value.items())[: 4 * entries]
        return {key: _cut(inner, entries, letters) for key, inner in kept}
    if isinstance(value, list | tuple):
        return [_cut(inner, entries, letters) for inner in value[:entries]]
    return shorten(value, letters) if isinstance(value, str) else value
