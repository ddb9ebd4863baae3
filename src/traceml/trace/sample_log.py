"""Scores of single test examples that a script logs: appended to a file of the run, one line per
call.

They are too many for the ring, which keeps a megabyte: a test set of 50,000 examples is written in
a few calls. A call is one write to the page cache, so that what was logged survives the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from time import time_ns
from typing import TYPE_CHECKING, Any

from traceml.model.environment import LOGGED_SAMPLES
from traceml.model.secrets import masked_value
from traceml.trace.interruptions import is_interruption

if TYPE_CHECKING:
    from traceml.trace.session import Session

ID, SEGMENT = "id", "segment"
NO_ID = f"there is no '{ID}', by which the same sample is found in another run"
MAX_STEP = (1 << 63) - 1
MAX_FILE_BYTES = 256 << 20
"""Of one process: about ten million scores."""
MAX_TEXT = 256
"""Characters of an id or of a segment's name."""
LINE_SAMPLES = 4096
"""Samples in one line: a reader decodes them together."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
Refuse = Callable[..., None]
_Columns = dict[str, list[Any]]


class NoSamples(ValueError):
    """What was passed cannot be samples; the text says why."""


class SampleLog:
    """The writing end of a process's samples."""

    def __init__(self, session: Session, refuse: Refuse) -> None:
        self._session = session
        self._refuse = refuse
        self._file: int | None = None
        self._pid = 0
        self._bytes = 0
        self._is_torn = False
        """Whether the last line could not be written to its end."""

    def log(self, samples: Any, name: str, step: Any) -> None:
        """Write samples; what cannot be kept is refused in one line on stderr, and counted."""
        try:
            at = None if step is None else _step(step)
            columns = _columns(samples)
            ids = [_text(value) for value in columns.pop(ID)]
            segments = columns.pop(SEGMENT, None)
            if segments is not None:
                segments = [None if each is None else _text(each) for each in segments]
            scores = {str(key)[:MAX_TEXT]: self._numbers(key, columns[key]) for key in columns}
            if not any(scores.values()):
                raise NoSamples("there is no score: add a number or a truth value to each sample")
        except NoSamples as error:
            if is_interruption(error):
                raise
            self._refuse("log_samples", f"nothing was recorded: {error}")
            return
        for start in range(0, len(ids), LINE_SAMPLES):
            part = slice(start, start + LINE_SAMPLES)
            line: dict[str, Any] = {"name": str(name)[:MAX_TEXT], "unix_ns": time_ns()}
            if at is not None:
                line["step"] = at
            line["ids"] = ids[part]
            if segments is not None:
                line["segments"] = segments[part]
            line["scores"] = {key: values[part] for key, values in scores.items() if values}
            if not self._write(line):
                return

    def _numbers(self, name: str, values: list[Any]) -> list[float | None]:
        """One score of all samples; empty where it is none."""
        found: list[float | None] = []
        lost = 0
        for value in values:
            number = _number(value)
            if number is None and value is not None:
                lost += 1
            found.append(number)
        if lost:
            what = "are no finite numbers" if lost > 1 else "is no finite number"
            self._refuse("log_samples", f"{lost:,} of '{str(name)[:MAX_TEXT]}' {what}", lost)
        return found if any(number is not None for number in found) else []

    def _write(self, line: Mapping[str, Any]) -> bool:
        """Append a line; whether there was room for it."""
        text = _encode(line)
        payload = (b"\n" if self._is_torn else b"") + text.encode(errors="replace") + b"\n"
        if self._bytes + len(payload) > MAX_FILE_BYTES:
            why = f"a process may log {MAX_FILE_BYTES >> 20} MiB of samples, and these are more"
            self._refuse("log_samples", why, len(line["ids"]))
            return False
        try:
            written = os.write(self._opened(), payload)
        except OSError as error:
            if is_interruption(error):
                raise
            self._refuse("log_samples", f"they cannot be written ({error.strerror})")
            return False
        self._bytes += written
        self._is_torn = written < len(payload)
        if self._is_torn:
            self._refuse("log_samples", "the disk is full", len(line["ids"]))
        return not self._is_torn

    def _opened(self) -> int:
        """The process's own file; a forked child has another one than its parent."""
        pid = os.getpid()
        if self._file is None or self._pid != pid:
            if self._session.ring is None:
                self._session.open()  # so that the run knows of this process
            path = self._session.run_folder / LOGGED_SAMPLES.format(pid=pid)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file, self._pid, self._bytes = os.open(path, flags, 0o600), pid, 0
            self._is_torn = False
        return self._file


def _step(step: Any) -> int:
    """The step as `log_metrics` takes it: whatever is a whole number, of numpy or torch too."""
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        if is_interruption(error):
            raise
        number = MAX_STEP + 1
    if not -MAX_STEP <= number <= MAX_STEP:
        raise NoSamples("step= takes a whole number below 2**63")
    return number


def _columns(samples: Any) -> _Columns:
    """One list per field, all of one length; raises NoSamples."""
    if isinstance(samples, Mapping):
        columns = _of_mapping(samples)
    elif isinstance(samples, Iterable) and not isinstance(samples, (str, bytes)):
        columns = _of_rows(list(samples))
    else:
        raise NoSamples(
            f"it got {type(samples).__name__}; pass a dict such as "
            "{'id': 7, 'score': 0.9, 'segment': 'night'}, a list of them, or a dict of columns"
        )
    if ID not in columns:
        raise NoSamples(NO_ID)
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise NoSamples(f"its columns have different lengths ({sorted(lengths)})")
    return columns


def _of_mapping(samples: Mapping[str, Any]) -> _Columns:
    if ID not in samples:
        raise NoSamples(NO_ID)
    if not _is_column(samples[ID]):
        return {str(name): [value] for name, value in samples.items()}
    return {str(name): _listed(name, value) for name, value in samples.items()}


def _of_rows(rows: Sequence[Any]) -> _Columns:
    if not all(isinstance(row, Mapping) for row in rows):
        raise NoSamples("a list of samples holds something else than dicts")
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _is_column(value: Any) -> bool:
    """Whether it holds many values: a list, an array, a tensor with a dimension."""
    if isinstance(value, (list, tuple)):
        return True
    return hasattr(value, "tolist") and bool(getattr(value, "shape", ()))


def _listed(name: str, value: Any) -> list[Any]:
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise NoSamples(f"'{str(name)[:MAX_TEXT]}' is no list, array or tensor, unlike '{ID}'")
    return list(value)


def _text(value: Any) -> str | int:
    """An id or a segment: a number as it is, all else as text without secrets."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 1 << 63 else str(value)[:MAX_TEXT]
    return _masked(str(value)[:MAX_TEXT])


@lru_cache(maxsize=4096)
def _masked(text: str) -> str:
    """Text without secrets; the names of segments come again and again."""
    return str(masked_value("", text))


def _number(value: Any) -> float | None:
    """A score; a truth value is 1 or 0."""
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError as error:
        if is_interruption(error):
            raise
        return None
    return number if isfinite(number) else None
