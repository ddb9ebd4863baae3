"""Reads a run summary from JSON of any version, ours or foreign; raises one-line errors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from traceml.model.errors import RunNotFound, TraceMLError, UnreadableSummary, did_you_mean
from traceml.model.metric import METRICS
from traceml.model.phase import Phase
from traceml.model.printable import printable, shell_word, shorten
from traceml.model.quantities import memory
from traceml.store.json_lines import MAX_INTEGER, UNDECODABLE, holds_huge_number
from traceml.store.regular_files import read_regular
from traceml.summaries.foreign import modernise
from traceml.summaries.record import (
    Groups,
    RankRow,
    RunLabels,
    SectionSummary,
    StepSeries,
    Summary,
    SystemSummary,
)

FILE_NAME = "final_summary.json"
_MAX_NAMES = 5
"""Of runs that an error names."""
_SECTIONS_OF_EVERY_VERSION = ("step_time", "step_memory", "process", "system")

_RECORD_FILES = ("*.ring", "*.steps", "run.json")
_AMOUNTS = ("_ms", "_bytes")
_LEFT_OVER = {"step_overhead_ms", *(each.key for each in METRICS if each.may_be_negative)}
"""Metrics that are differences and may be negative; no other time or amount may."""
_Summary = TypeVar("_Summary", bound=Summary)
_ADVICE = f"pass a complete {FILE_NAME} or a run folder"
MAX_BYTES = 1 << 30
"""Five times the largest supported summary; a larger file is something else."""
_LARGE_BYTES = 32 << 20
"""About eight thousand ranks; up to this size every rank's row is read."""


class _NoRows(Groups, frozen=True):
    """The rows of ranks under a name that no file has, so that decoding skips them."""

    rows: dict[str, RankRow] = msgspec.field(default_factory=dict, name="rows, unread")


class _Whole(SectionSummary, frozen=True):
    """A section without the rows of ranks."""

    groups: _NoRows = _NoRows()


class _WholeSystem(SystemSummary, frozen=True):
    """The system section without the rows of nodes."""

    groups: _NoRows = _NoRows()


class _LargeSummary(Summary, frozen=True):
    """A summary without the rows of single ranks."""

    step_time: _Whole | None = None
    step_memory: _Whole | None = None
    process: _Whole | None = None
    system: _WholeSystem | None = None
    stability: _Whole | None = None


_DECODER = msgspec.json.Decoder(Summary)
_WITHOUT_ROWS = msgspec.json.Decoder(_LargeSummary)
_LABELS = msgspec.json.Decoder(RunLabels)


def locate(argument: str, logs_folder: Path) -> Path:
    """Returns the summary file for a path, a run folder or a run's name."""
    places = (Path(argument), logs_folder / argument)
    try:
        for place in places:
            if place.exists() and not place.is_dir():
                return place
            if (place / FILE_NAME).is_file():
                return place / FILE_NAME
        for place in places:
            if place.is_dir():
                raise _no_summary_in(place)
    except (OSError, ValueError) as error:
        raise RunNotFound(
            f"{argument!r} cannot be looked up ({error}); expected a {FILE_NAME}, a run folder "
            f"or the name of a run under {logs_folder}; check the path"
        ) from error
    raise RunNotFound(
        f"no run {argument!r}: neither a file or folder of that name nor a run under "
        f"{logs_folder}; pass a {FILE_NAME}, a run folder or a run's name"
        f"{runs_there(logs_folder, argument)}"
    )


def read_summary(path: Path, follow_links: bool = False) -> Summary:
    """Returns the summary that a file holds; what it lacks is `None`.

    A link is followed only if the user named it; a link inside a run folder is refused.
    """
    return _summary(_content(path, follow_links), path, _DECODER)


def read_compared(path: Path, follow_links: bool = False) -> Summary:
    """Returns the summary for a comparison; for a very large file without the rows of single
    ranks."""
    content = _content(path, follow_links)
    if len(content) > _LARGE_BYTES:
        return _summary(content, path, _WITHOUT_ROWS)
    return _summary(content, path, _DECODER)


def _content(path: Path, follow_links: bool = False) -> bytes:
    size_bytes = 0
    try:
        size_bytes = path.stat(follow_symlinks=follow_links).st_size
        if size_bytes > MAX_BYTES:
            raise _too_large(path, size_bytes)
        return read_regular(path, follow_links)
    except FileNotFoundError as error:
        raise RunNotFound(f"{path} does not exist; expected a run summary; {_ADVICE}") from error
    except MemoryError as error:
        raise _too_large(path, size_bytes) from error
    except OSError as error:
        advice = "check its permissions" if isinstance(error, PermissionError) else _ADVICE
        raise UnreadableSummary(
            f"{path} cannot be read ({error.strerror}); expected a run summary; {advice}"
        ) from error


def _summary(content: bytes, path: Path, decoder: msgspec.json.Decoder[_Summary]) -> Summary:
    try:
        summary = _decode(content, path, decoder)
        if not any(_sections(summary)):
            raise _no_section(content, path)
    except RecursionError as error:
        raise _not_json(path, "it is nested too deeply") from error
    except MemoryError as error:
        raise _too_large(path, len(content)) from error
    summary = modernise(summary)
    _refuse_negative(summary, path)
    return summary


def read_labels(path: Path) -> RunLabels | None:
    """Returns the labels by which runs are selected; `None` for a file that is no summary."""
    try:
        return _LABELS.decode(_content(path))
    except (TraceMLError, *UNDECODABLE, MemoryError):
        return None


def _decode(content: bytes, path: Path, decoder: msgspec.json.Decoder[_Summary]) -> Summary:
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        if not holds_huge_number(content):
            return decoder.decode(content)
    # The fast way knows neither `null` for a missing object nor a metric's name in its complaint;
    # the slow way is taken by odd files alone.
    return _decode_leniently(content, path)


def _decode_leniently(content: bytes, path: Path) -> Summary:
    document = _document(content, path)
    if not isinstance(document, dict):
        raise UnreadableSummary(
            f"{path} is not a run summary: it holds JSON of type "
            f"{_JSON_TYPES[type(document)]}; expected an object; {_ADVICE}"
        )
    for name, value in _nodes(document):
        if isinstance(value, float) and not math.isfinite(value):
            raise _bad_field(path, name, f"is {value}", "a finite number or null")
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise _bad_field(path, name, "is too large", "an integer of at most 64 bits")
    try:
        return msgspec.convert(_without_nulls(document), Summary)
    except msgspec.ValidationError as error:
        complaint, _, place = str(error).partition(" - at `$")
        types = re.search("Expected `(.+?)`, got `(.+?)`", complaint)
        expected, got = types.groups() if types else ("a number in range", None)
        raise _bad_field(
            path,
            _field_name(document, place.rstrip("`").lstrip("."), got),
            f"is of type {got}" if got else f"is refused ({complaint})",
            expected.replace(" | ", " or "),
        ) from error


def _document(content: bytes, path: Path) -> Any:
    if not content.strip():
        raise _not_json(path, "it is empty")
    try:
        return json.loads(content)
    except UnicodeDecodeError as error:
        raise _not_json(path, f"it is binary ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        if 0 in content:
            raise _not_json(path, "it is binary") from error
        cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        found = "it breaks off" if cut else f"{error.msg[0].lower()}{error.msg[1:]}"
        raise _not_json(path, f"{found} at line {error.lineno}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise _not_json(path, str(error).partition(";")[0]) from error


def _without_nulls(value: Any) -> Any:
    """Returns the document without `null` objects and with text that can be encoded."""
    if isinstance(value, dict):
        return {
            _encodable(name): _without_nulls(part)
            for name, part in value.items()
            if part is not None
        }
    if isinstance(value, list):
        return [_without_nulls(part) for part in value if part is not None]
    return _encodable(value) if isinstance(value, str) else value


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _nodes(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value of a document with its dotted name."""
    yield name, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _nodes(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _nodes(part, f"{name}[{index}]")


def _field_name(document: Any, place: str, got: str | None) -> str:
    """Returns the dotted name of the field that the decoder complains about.

    The decoder writes `[...]` for the key of a map; it is the first key whose value has the wrong
    type.
    """
    pattern = re.escape(place).replace(re.escape("[...]"), r"\..+")
    for name, value in _nodes(document):
        if got == _JSON_TYPES[type(value)] and re.fullmatch(pattern, name):
            return name
    return place


_JSON_TYPES: Mapping[type, str] = {
    dict: "object",
    list: "array",
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "null",
}


def _refuse_negative(summary: Summary, path: Path) -> None:
    for name, value in (("duration_s", summary.duration_s), *_of_steps(summary.steps)):
        if value is not None and value < 0:
            raise _negative(path, name, value)
    for section_name, section in zip(_SECTIONS_OF_EVERY_VERSION, _sections(summary), strict=True):
        for statistic, values in _statistics(section) if section else ():
            for metric, value in values.items():
                if value is not None and value < 0 and _is_amount(metric):
                    raise _negative(path, f"{section_name}.{statistic}.{metric}", value)


def _is_amount(metric: str) -> bool:
    return metric.endswith(_AMOUNTS) and metric not in _LEFT_OVER


def _of_steps(steps: StepSeries | None) -> Iterator[tuple[str, float | None]]:
    """Returns the numbers of the series that cannot be negative, with their dotted names."""
    if steps is None:
        return
    for name in ("count", "mean_ms", "stdev_ms", "effective_count", "block_steps"):
        yield f"steps.{name}", getattr(steps, name)
    for percentile, value in steps.quantiles_ms.items():
        yield f"steps.quantiles_ms.{percentile}", value
    for place, value in enumerate(steps.block_means_ms):
        yield f"steps.block_means_ms[{place}]", value
    for part, means_ms in steps.part_block_means_ms.items():
        if part != Phase.RESIDUAL.value:  # what is left of the body, and of a body timed elsewhere
            for place, value in enumerate(means_ms):
                yield f"steps.part_block_means_ms.{part}[{place}]", value


def _statistics(section: SectionSummary) -> Iterator[tuple[str, Mapping[str, float | None]]]:
    whole = section.global_
    yield "global.average", whole.average
    yield "global.median", {metric: place.value for metric, place in whole.median.items()}
    yield "global.worst", {metric: place.value for metric, place in whole.worst.items()}
    for rank, row in section.groups.rows.items():
        yield f"groups.rows.{rank}.metrics", row.metrics
    for place, gpu in enumerate(section.gpus if isinstance(section, SystemSummary) else ()):
        yield f"gpus[{place}].metrics", gpu.metrics


def _sections(summary: Summary) -> tuple[SectionSummary | None, ...]:
    return (summary.step_time, summary.step_memory, summary.process, summary.system)


def _no_summary_in(folder: Path) -> RunNotFound:
    if any(any(folder.glob(pattern)) for pattern in _RECORD_FILES):
        return RunNotFound(
            f"{folder} holds a run's records and no {FILE_NAME}; expected a finished run; wait "
            "for its end or, if it was killed, rebuild it with: traceml recover "
            f"{shell_word(folder)}"
        )
    return RunNotFound(f"{folder} holds no {FILE_NAME} and no run's records; {_ADVICE}")


def known_runs(logs_folder: Path, has_file: str = FILE_NAME) -> list[str]:
    """Returns the names of the runs that have a certain file, the newest first."""
    times_s: dict[str, float] = {}
    for place in logs_folder.glob(f"*/{has_file}"):
        with suppress(OSError):  # it was removed a moment ago
            times_s[place.parent.name] = place.stat().st_mtime
    return sorted(times_s, key=lambda name: (-times_s[name], name))


def list_names(names: Sequence[str]) -> str:
    """Returns the first of many names, and how many there are besides."""
    more = f", … and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def runs_there(logs_folder: Path, wanted: str, has_file: str = FILE_NAME) -> str:
    """Returns the end of an error's text: which run was probably meant, and which there are."""
    names = known_runs(logs_folder, has_file)
    there = f" (runs there, newest first: {list_names(names)})" if names else ""
    return did_you_mean(wanted, names) + there


def _no_section(content: bytes, path: Path) -> UnreadableSummary:
    found = _shown(", ".join(_document(content, path))) or "none"
    expected = ", ".join(_SECTIONS_OF_EVERY_VERSION)
    return UnreadableSummary(
        f"{path} is not a run summary: it has none of the sections {expected} "
        f"(found keys: {found}); {_ADVICE}"
    )


def _too_large(path: Path, size_bytes: int) -> UnreadableSummary:
    return UnreadableSummary(
        f"{path} is too large for a run summary: {memory(size_bytes)}; expected at most "
        f"{memory(MAX_BYTES)}; {_ADVICE}"
    )


def _not_json(path: Path, found: str) -> UnreadableSummary:
    return UnreadableSummary(f"{path} is not a run summary: {found}; expected JSON; {_ADVICE}")


def _negative(path: Path, name: str, value: float) -> UnreadableSummary:
    return _bad_field(path, name, f"is {value:g}", "zero or more")


def _bad_field(path: Path, name: str, found: str, expected: str) -> UnreadableSummary:
    return UnreadableSummary(
        f"{path} is not a usable run summary: '{_shown(name)}' {found}; expected {expected}; "
        "write the summary again or fix that field"
    )


def _shown(text: str) -> str:
    """Returns foreign text shortened and printable."""
    return shorten(printable(text), 200)
