"""What differs between two runs besides their times: code, command, settings, machine, data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from traceml.model.lineage import (
    Changes,
    Code,
    Command,
    Data,
    Environment,
    Fingerprint,
    Gpu,
    Hardware,
)
from traceml.model.quantities import NOT_MEASURED, count, memory
from traceml.summaries.record import ArtifactSummary, Summary

HASH_LETTERS = 12
"""Enough characters of a hash to distinguish two."""
DEEPEST = 8
"""Levels of nested parameters that are compared one by one."""
MAX_VALUES = 4
"""Values of one item that are listed per side; its runs may each have a different one."""
SCRIPT_CONTENT = "script content"
"""The name of the script's hash, which reveals an edit that git does not know of."""


class Group(str, Enum):
    """Where two runs may differ, in the order of display."""

    CODE = "code"
    COMMAND = "command"
    SETTINGS = "settings"
    ENVIRONMENT = "environment"
    PACKAGES = "packages"
    HARDWARE = "hardware"
    DATA = "data"
    VARIABLES = "variables"
    PARAMS = "params"
    ARTIFACTS = "artifacts"


RECORDED = tuple(group.value for group in Group if group not in (Group.PARAMS, Group.ARTIFACTS))
"""What TraceML records by itself; parameters and artifacts are what the script logs."""

Shown: TypeAlias = str | int | float | bool | None
_Things: TypeAlias = Mapping[str, object]
"""The values to compare, by name: numbers, texts, and records with their own equality."""


class Difference(Struct, frozen=True):
    """One item that differs; `None` on a side where it is missing or not known."""

    name: str
    lhs: Shown = None
    rhs: Shown = None


class LineageComparison(Struct, frozen=True):
    """The differences between two runs or groups of runs."""

    identical: bool
    """Whether every run was recorded, and no two runs differ in anything."""
    differences: dict[str, tuple[Difference, ...]] = {}
    """By group; items with the same values on both sides are left out."""
    not_recorded: dict[str, tuple[str, ...]] = {}
    """By group: the sides (`A`, `B`) in which a run, or every run, did not record it."""

    @property
    def same(self) -> tuple[str, ...]:
        """Returns the groups that every run recorded with the same values on both sides."""
        known = (*self.differences, *self.not_recorded)
        return tuple(group.value for group in Group if group.value not in known)

    @property
    def told(self) -> dict[str, tuple[Difference, ...]]:
        """Returns the differences to show, each once: an argument of the command that a parameter
        holds as well is left out of the command."""
        params = {
            found.name.rpartition(".")[2]: found
            for found in self.differences.get(Group.PARAMS.value, ())
        }
        shown = {
            group: tuple(
                found
                for found in listed
                if group != Group.COMMAND.value or not _is_held(params, found)
            )
            for group, listed in self.differences.items()
        }
        return {group: listed for group, listed in shown.items() if listed}


def _plain(option: str) -> str:
    """Returns the name that argparse gives to the value of an option."""
    return option.lstrip("-").replace("-", "_")


def _is_held(params: Mapping[str, Difference], argument: Difference) -> bool:
    """Returns whether a parameter has the same values as an argument of the command.

    The parameter of `-b 8`, or of a positional argument, is found by its values alone. The same
    holds for a positional argument that follows a flag, because it looks like the flag's value:
    `--no-accel FOLDER`.
    """
    named = params.get(_plain(argument.name))
    if _holds(named, argument):
        return True
    is_flag = named is not None and all(
        value is None or isinstance(value, bool) for value in (named.lhs, named.rhs)
    )
    if argument.name.startswith("--") and not is_flag:
        return False
    return any(_holds(param, argument) for param in params.values())


def _holds(param: Difference | None, argument: Difference) -> bool:
    """Returns whether a parameter has the values of an argument, on each side that gives one."""
    if param is None:
        return False
    sides = ((param.lhs, argument.lhs), (param.rhs, argument.rhs))
    return all(given is None or _is_value(value, str(given)) for value, given in sides)


def _is_value(value: Shown, word: str) -> bool:
    if str(value) == word:
        return True
    try:
        return float(str(value)) == float(word)
    except ValueError:
        return False


def compare_lineages(a: Sequence[Summary], b: Sequence[Summary]) -> LineageComparison:
    """Returns the differences between two groups of runs."""
    sides = {"A": [_groups(run) for run in a], "B": [_groups(run) for run in b]}
    differences: dict[str, tuple[Difference, ...]] = {}
    not_recorded: dict[str, tuple[str, ...]] = {}
    identical = all(run.lineage is not None for run in (*a, *b))
    for group in Group:
        known = {
            side: [things for run in runs if (things := run[group]) is not None]
            for side, runs in sides.items()
        }
        if missing := _missing(group, known, sides):
            not_recorded[group.value] = missing
            identical &= len(missing) == len(sides)
        compared = list(_values(known["A"], known["B"], group))
        identical &= all(len(_distinct([*lhs, *rhs])) == 1 for _, lhs, rhs in compared)
        if found := tuple(_differences(compared)):
            differences[group.value] = found
    return LineageComparison(identical, differences, not_recorded)


def _missing(
    group: Group, known: Mapping[str, Sequence[_Things]], sides: Mapping[str, Sequence[object]]
) -> tuple[str, ...]:
    """Returns the sides in which some run did not record a group."""
    if group is Group.DATA and not any(things for side in known.values() for things in side):
        return tuple(sides)  # somebody looked, and no run names any
    return tuple(side for side, runs in sides.items() if len(known[side]) < len(runs))


def _values(
    a: Sequence[_Things], b: Sequence[_Things], group: Group
) -> Iterator[tuple[str, list[object], list[object]]]:
    """Returns the distinct values of each item on both sides; empty where a side has no run."""
    if not a or not b:
        return
    for name in dict.fromkeys(name for things in (*a, *b) for name in things):
        lhs, rhs = (_distinct([things.get(name) for things in side]) for side in (a, b))
        # Older runs did not look at the script, and a setting may not show: that says nothing.
        if name == SCRIPT_CONTENT or group is Group.SETTINGS:
            lhs, rhs = ([value for value in side if value is not None] for side in (lhs, rhs))
            if not lhs or not rhs:
                continue
        yield name, lhs, rhs


def _distinct(values: Iterable[object]) -> list[object]:
    found: list[object] = []
    for value in values:
        if not _is_among(value, found):
            found.append(value)
    return found


def _is_among(value: object, others: Iterable[object]) -> bool:
    return any(_is_same(value, other) for other in others)


def _differences(
    compared: Iterable[tuple[str, Sequence[object], Sequence[object]]],
) -> Iterator[Difference]:
    for name, lhs, rhs in compared:
        if not all(_is_among(value, rhs) for value in lhs) or not all(
            _is_among(value, lhs) for value in rhs
        ):
            yield Difference(name, _all_shown(lhs), _all_shown(rhs))


def _all_shown(values: Sequence[object]) -> Shown:
    """Returns the values of one side as text; several runs may have several."""
    if len(values) == 1:
        return _shown(values[0])
    files = [value for value in values if isinstance(value, ArtifactSummary)]
    if files and len(files) == len(values):
        return _versions(files)
    shown = [_shown(value) for value in values[:MAX_VALUES]]
    more = [f"… {len(values) - MAX_VALUES} more"] if len(values) > MAX_VALUES else []
    return ", ".join([*(NOT_MEASURED if each is None else str(each) for each in shown), *more])


def _versions(files: Sequence[ArtifactSummary]) -> str:
    """Returns how many contents a file has in the runs of one side: hashes would tell nobody more,
    since every training ends with weights of its own."""
    sizes = sorted(each.size_bytes for each in files if each.size_bytes is not None)
    shown = list(dict.fromkeys((memory(sizes[0]), memory(sizes[-1])))) if sizes else []
    return f"{len(files)} contents{' of ' if shown else ''}{' to '.join(shown)}"


def _is_same(lhs: object, rhs: object) -> bool:
    if isinstance(lhs, Fingerprint) and isinstance(rhs, Fingerprint):
        return _are_alike(lhs, rhs)
    if isinstance(lhs, ArtifactSummary) and isinstance(rhs, ArtifactSummary):
        if lhs.sha256 is not None and rhs.sha256 is not None:
            return lhs.sha256 == rhs.sha256
        return lhs.size_bytes == rhs.size_bytes
    return lhs == rhs


def _are_alike(lhs: Fingerprint, rhs: Fingerprint) -> bool:
    """Returns whether nothing shows that two scans saw different data."""
    if lhs.sha256 is not None and rhs.sha256 is not None:
        return lhs.sha256 == rhs.sha256  # whenever either was written
    if not (lhs.complete and rhs.complete) and lhs.files != rhs.files:
        return True  # time was over at different places: that says nothing of the data
    return (lhs.files, lhs.size_bytes, lhs.newest_unix_s) == (
        rhs.files,
        rhs.size_bytes,
        rhs.newest_unix_s,
    )


def _shown(value: object) -> Shown:
    """Returns a value as JSON and people can read it."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Changes):
        lines = f"+{value.added} -{value.removed} lines"
        return f"{count(value.file_count, 'file')}, {lines} ({_short(value.sha256)})"
    if isinstance(value, Fingerprint):
        size = f"{count(value.files, 'file')}, {memory(value.size_bytes)}"
        known_by = _short(value.sha256) or _date(value.newest_unix_s)
        return f"{size}{'' if value.complete else ' seen'} ({known_by})"
    if isinstance(value, ArtifactSummary):
        return f"{memory(value.size_bytes)} ({_short(value.sha256) or 'no hash'})"
    if isinstance(value, tuple):
        return ", ".join(_counted(value))
    return _text(value)


def _counted(values: Iterable[object]) -> Iterator[str]:
    """Returns each value once, equal GPUs with their number."""
    for value, times in Counter(_gpu(v) if isinstance(v, Gpu) else str(v) for v in values).items():
        yield f"{times} × {value}" if times > 1 else value


def _gpu(gpu: Gpu) -> str:
    return gpu.name if gpu.memory_bytes is None else f"{gpu.name} ({memory(gpu.memory_bytes)})"


def _date(unix_s: int | None) -> str:
    if unix_s is None:
        return "empty"
    try:
        date = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):  # beyond any calendar
        return f"newest {unix_s}"
    return f"newest {date:%Y-%m-%d %H:%M:%S} UTC"


def _short(sha256: str | None) -> str:
    return (sha256 or "")[:HASH_LETTERS]


def _groups(summary: Summary) -> dict[Group, _Things | None]:
    """Returns everything that is compared; `None` for a group that was not recorded."""
    groups: dict[Group, _Things | None] = dict.fromkeys(Group)
    groups[Group.PARAMS] = dict(flat_params(summary.params))
    groups[Group.ARTIFACTS] = summary.artifacts
    groups[Group.SETTINGS] = summary.settings
    lineage = summary.lineage
    if lineage is None:
        return groups
    return groups | {
        Group.CODE: None if lineage.code is None else _code(lineage.code),
        Group.COMMAND: None if lineage.command is None else _command(lineage.command),
        Group.ENVIRONMENT: _fields(lineage.environment),
        Group.PACKAGES: lineage.packages,
        Group.HARDWARE: _fields(lineage.hardware),
        Group.DATA: None if lineage.data is None else _data(lineage.data),
        Group.VARIABLES: lineage.variables,
    }


def _fields(record: Environment | Hardware | None) -> _Things | None:
    if record is None:
        return None
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _code(code: Code) -> _Things:
    """Returns what is compared of the code, without the repository's folder: the same code may be
    in two."""
    return {
        "commit": code.commit,
        "branch": code.branch,
        "remote": code.remote,
        "dirty": code.dirty,
        "changes": code.changes,
        "untracked": code.untracked,
    }


def _command(command: Command) -> _Things:
    """Returns the arguments one by one where they are known, else the whole command line."""
    found: dict[str, object] = {"script": command.script, "folder": command.folder}
    if command.script_sha256 is not None:
        found[SCRIPT_CONTENT] = _short(command.script_sha256)
    if command.arguments is None:
        return {**found, "command": " ".join(command.words)}
    return {**found, "launcher": _launcher(command), **options_in(command.arguments)}


def _launcher(command: Command) -> str | None:
    """Returns the words before the script (`torchrun` and its options); empty for a plain
    interpreter."""
    words, arguments = command.words, command.arguments or ()
    if command.script in words:
        words = words[: words.index(command.script)]
    elif arguments and words[-len(arguments) :] == arguments:  # `python -m train`
        words = words[: -len(arguments)]
    return " ".join(words) if len(words) > 1 else None


def options_in(arguments: Iterable[str]) -> dict[str, str | bool]:
    """Returns arguments by option, `True` for a flag; positional arguments by their position."""
    found: dict[str, str] = {}
    option, places = "", 0
    for word in arguments:
        name, separator, value = word.partition("=")
        if separator or (word.startswith("-") and not _is_number(word)):
            option = "" if separator else word
        elif option:
            name, value = option, word  # and there may be more of them: `--sizes 1 2 3`
        else:
            places += 1
            name, value = f"argument {places}", word
        found[name] = f"{found[name]} {value}".strip() if name in found else value
    return {name: value or True for name, value in found.items()}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _data(data: Data) -> _Things:
    tracked = {f"{path} (DVC)": version for path, version in data.dvc.items()}
    return {**tracked, **data.paths}


def flat_params(params: Mapping[str, object], above: str = "") -> Iterator[tuple[str, Shown]]:
    """Returns nested parameters under dotted names."""
    for name, value in params.items():
        dotted = f"{above}.{name}" if above else name
        if isinstance(value, Mapping) and dotted.count(".") < DEEPEST:
            yield from flat_params(value, dotted)
        else:
            yield dotted, _text(value)


def _text(value: object, depth: int = 0) -> Shown:
    """Returns a logged value on one line; nesting beyond `DEEPEST` is shortened."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if depth == DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(part, depth + 1)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(_text(part, depth + 1)) for part in value)
    return str(value)
