"""Scores of single examples: read from a run folder, or from a CSV or Parquet file."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from traceml.model.environment import LOGGED_SAMPLES
from traceml.model.errors import UsageError
from traceml.store.json_lines import decode_lines
from traceml.store.regular_files import read_regular

ID_COLUMNS = ("id", "sample_id", "example_id", "index")
SEGMENT_COLUMNS = ("segment", "slice", "group")
TABLE_FILES = (".csv", ".tsv", ".parquet", ".pq")
"""What the name of a file with a table ends in."""
_TRUTH = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "right": 1.0, "wrong": 0.0}
_MISSING = ("", "null", "none", "na", "n/a", "nan")


@dataclass(slots=True)
class ScoredSamples:
    """One test set: the scores of its examples by name of the score and by id."""

    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    segments: dict[str, str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    """Every example, also one whose scores are empty, NaN or infinite and so not in `scores`."""


class _Line(msgspec.Struct):
    """What one call of `log_samples` wrote, or a part of it."""

    name: str
    ids: list[int | str]
    scores: dict[str, list[float | None]]
    segments: list[int | str | None] | None = None
    unix_ns: int = 0


_decoder = msgspec.json.Decoder(_Line)


def read_logged_samples(folder: Path) -> dict[str, ScoredSamples]:
    """Returns what a run logged with `log_samples`, by the name of the test set; of an example that
    was logged again, the last scores."""
    lines: list[_Line] = []
    for path in sorted(folder.glob(LOGGED_SAMPLES.format(pid="*"))):
        try:
            lines += decode_lines(read_regular(path).splitlines(), _decoder)
        except OSError:
            continue
    found: dict[str, ScoredSamples] = {}
    for line in sorted(lines, key=lambda line: line.unix_ns):
        _add(found.setdefault(line.name, ScoredSamples()), line)
    return found


def _add(table: ScoredSamples, line: _Line) -> None:
    ids = [str(each) for each in line.ids]
    table.ids.update(ids)
    for place, segment in enumerate(line.segments or ()):
        if segment is not None and place < len(ids):
            table.segments[ids[place]] = str(segment)
    for name, values in line.scores.items():
        scores = table.scores.setdefault(name, {})
        for each, value in zip(ids, values, strict=False):
            if value is not None:
                scores[each] = value


def is_table(word: str) -> bool:
    """Returns whether a word names a file with a table and not a run."""
    return word.lower().endswith(TABLE_FILES)


def read_table(path: Path) -> dict[str, list[Any]]:
    """Returns the columns of a CSV, TSV or Parquet file, by name; values of text files are text."""
    try:
        content = read_regular(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); pass a CSV or Parquet file"
        ) from None
    if path.suffix.lower() in (".parquet", ".pq"):
        return _parquet(path, content)
    return _text_table(path, content)


def _parquet(path: Path, content: bytes) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowException, BufferReader
        from pyarrow.parquet import read_table as read
    except ImportError:
        raise UsageError(
            f"{path} is Parquet, which needs the package pyarrow: pip install pyarrow, or pass a "
            "CSV file"
        ) from None
    try:
        columns: dict[str, list[Any]] = read(BufferReader(content)).to_pydict()
    except (ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{path} is not a Parquet file ({error}); pass a complete one") from None
    return columns


def _text_table(path: Path, content: bytes) -> dict[str, list[Any]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no UTF-8 text ({error.reason}); save it as UTF-8") from None
    first = text.partition("\n")[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
    try:
        head, *rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except ValueError:
        raise UsageError(
            f"{path} is empty; expected a line of names, then one per sample"
        ) from None
    except csv.Error as error:
        raise UsageError(f"{path} is no table ({error}); pass a CSV file") from None
    names = [name.strip() for name in head]
    if len(set(names)) < len(names):
        raise UsageError(f"{path} has two columns of one name ({', '.join(names)}); rename one")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise UsageError(
                f"{path} has {len(row)} values in row {number} and {len(names)} columns; "
                "every row needs all of them"
            )
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def read_sample_file(path: Path) -> ScoredSamples:
    """Returns the test set of a file: a column `id`, perhaps one `segment`, and scores."""
    columns = read_table(path)
    ids_in = named_column(columns, ID_COLUMNS)
    if ids_in is None:
        raise UsageError(
            f"{path} has no column 'id' (found: {', '.join(columns) or 'none'}); samples are "
            "paired by it"
        )
    segments_in = named_column(columns, SEGMENT_COLUMNS)
    ids = [str(each).strip() for each in columns[ids_in]]
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise UsageError(f"{path} has the id {twice!r} twice; each sample needs one of its own")
    found = ScoredSamples(ids=set(ids))
    for name, values in columns.items():
        if name == segments_in:
            known = zip(ids, values, strict=True)
            found.segments = {each: str(text).strip() for each, text in known if text is not None}
        elif name != ids_in and (numbers := as_numbers(values)) is not None:
            scored = zip(ids, numbers, strict=True)
            found.scores[name] = {each: number for each, number in scored if number is not None}
    if not found.scores:
        raise UsageError(
            f"{path} has no column of numbers or truth values besides {ids_in!r}; add a score"
        )
    return found


def named_column(columns: Mapping[str, Sequence[Any]], names: Iterable[str]) -> str | None:
    """Returns the first column of these names, in whatever case; `None` where there is none."""
    known = {column.strip().lower(): column for column in reversed(list(columns))}
    return next((known[name] for name in names if name in known), None)


def as_numbers(values: Sequence[Any]) -> list[float | None] | None:
    """Returns a column as numbers, `None` for an empty cell; `None` where it holds anything else,
    or no number at all."""
    found: list[float | None] = []
    for value in values:
        try:
            found.append(_as_number(value))
        except ValueError:
            return None
    return found if any(number is not None for number in found) else None


def _as_number(value: Any) -> float | None:
    """Returns a cell as a number; raises ValueError where it is none."""
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        number = float(value)
        return number if math.isfinite(number) else None
    text = str(value).strip().lower()
    if text in _MISSING:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    number = float(text)
    return number if math.isfinite(number) else None
