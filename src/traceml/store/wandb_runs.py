"""Reads runs that Weights & Biases kept on disk (`run-ID.wandb`), as its offline mode leaves them.

Such a file begins with seven bytes, then blocks of 32 KiB follow as LevelDB's logs have them: a
record is one piece, or a first, middle ones and a last; each piece has a checksum. A record is a
protocol buffer that the `wandb` package describes.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traceml.model.errors import RunNotFound, UsageError
from traceml.model.printable import printable
from traceml.model.run_values import RunValue
from traceml.model.tracked_run import MetricPoint, TrackedRun, moment_of
from traceml.store.regular_files import read_regular

SCHEME = "wandb"
SUFFIX = ".wandb"
MAX_FILES = 10_000
_MARK = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK_BYTES = 32 << 10
_PIECE = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_INTERNAL = ("_step", "_timestamp", "_runtime", "_wandb")
MAX_DEPTH = 8
"""Levels of nested configurations."""


class WandbRuns:
    """The runs in a folder: one, or the `wandb` folder with several."""

    def __init__(self, word: str) -> None:
        """Takes `wandb:DIR` or `wandb:FILE`; raises UsageError where wandb is not installed, and
        RunNotFound where there is no such file."""
        self._place = Path(word.removeprefix(f"{SCHEME}:"))
        if not self._place.exists():
            raise RunNotFound(
                f"there is no {printable(str(self._place))}; expected a run folder of Weights & "
                f"Biases (wandb/offline-run-…) or a run-ID{SUFFIX} file; check the path after "
                f"{SCHEME}:"
            )
        self._record = _import_record()

    @property
    def address(self) -> str:
        """Returns the place as users write it."""
        return f"{SCHEME}:{self._place}"

    def list_runs(self) -> Iterator[TrackedRun]:
        """Yields every run."""
        for path in self._files():
            yield self._read(path)

    def find_runs(self) -> list[TrackedRun]:
        """Returns every run; raises RunNotFound where there is none."""
        found = list(self.list_runs())
        if not found:
            raise RunNotFound(
                f"there is no run of Weights & Biases in {printable(str(self._place))}: no file "
                f"there is called run-…{SUFFIX}; pass wandb/offline-run-… or the folder with all"
            )
        return found

    def fetch_files(self, run: TrackedRun, folder: Path) -> bool:
        """Returns that there are none: nothing is sent to Weights & Biases."""
        return False

    def _files(self) -> list[Path]:
        if self._place.is_file():
            return [self._place]
        found = {
            path.resolve(): path  # `latest-run` is a link to one of the others
            for pattern in (f"*{SUFFIX}", f"*run-*/*{SUFFIX}", f"wandb/*run-*/*{SUFFIX}")
            for path in sorted(self._place.glob(pattern))
        }
        return sorted(found.values())[:MAX_FILES]

    def _read(self, path: Path) -> TrackedRun:
        try:
            content = read_regular(path, follow_links=True)
        except OSError as error:
            raise UsageError(
                f"{printable(str(path))} cannot be read ({error.strerror}); check the file"
            ) from error
        if not content.startswith(_MARK):
            raise UsageError(
                f"{printable(str(path))} is no run of Weights & Biases: it does not begin as one "
                f"does; pass a run-ID{SUFFIX} file"
            )
        from google.protobuf.message import DecodeError  # comes with wandb

        reading = _RunReading(path)
        for payload in _payloads(content):
            try:
                record = self._record.FromString(payload)
            except DecodeError:
                continue  # damaged, or of another version
            reading.add(record)
        return reading.run()


def _import_record() -> Any:
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError as error:
        raise UsageError(
            f"wandb is not installed ({error}), which describes its files; install it with: "
            "pip install 'traceml-insight[wandb]'"
        ) from None
    return Record


def _payloads(content: bytes) -> Iterator[bytes]:
    """Yields the records; those of a damaged block are skipped, and a cut one ends the file."""
    pending: list[bytes] = []
    place = len(_MARK)
    while place + _PIECE.size <= len(content):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _PIECE.size:
            place += left  # a head never lies across two blocks
            continue
        checksum, length, kind = _PIECE.unpack_from(content, place)
        piece = content[place + _PIECE.size : place + _PIECE.size + length]
        if len(piece) < length or length > left - _PIECE.size:
            return
        place += _PIECE.size + length
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            pending = []
            continue
        if kind in (_FULL, _FIRST):
            pending = []
        pending.append(piece)
        if kind in (_FULL, _LAST):
            yield b"".join(pending)
            pending = []


class _RunReading:
    """What the records read so far say of a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id = path.stem.removeprefix("run-")
        self._name = ""
        self._started_s: float | None = None
        self._runtime_s: float | None = None
        self._last_s: float | None = None
        """When something was last logged."""
        self._exit_code: int | None = None
        self._params: dict[str, RunValue] = {}
        self._facts: dict[str, RunValue] = {}
        self._summary: dict[str, float] = {}
        self._histories: dict[str, list[MetricPoint]] = {}
        self._rows = 0

    def add(self, record: Any) -> None:
        """Takes a record."""
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self._add_run(record.run)
        elif kind == "config":
            self._add_config(record.config.update)
        elif kind == "history":
            self._add_history(record.history)
        elif kind == "summary":
            for item in record.summary.update:
                self._add_summary(item)
        elif kind == "exit":
            self._exit_code = record.exit.exit_code
            self._runtime_s = float(record.exit.runtime) or self._runtime_s

    def _add_run(self, run: Any) -> None:
        self._id = run.run_id or self._id
        self._name = run.display_name or self._name
        self._started_s = moment_of(run.start_time.ToNanoseconds() / 1e9) or self._started_s
        self._facts.update({"host": run.host} if run.host else {})
        self._facts.update({"note": run.notes} if run.notes else {})
        self._facts.update({"tags": tuple(run.tags)} if run.tags else {})
        self._facts.update({"commit": run.git.commit} if run.git.commit else {})
        self._add_config(run.config.update)

    def _add_config(self, items: Any) -> None:
        for item in items:
            name = _key(item)
            if name not in _INTERNAL:
                self._params.update(_flat(name, _json(item.value_json)))

    def _add_history(self, history: Any) -> None:
        values = {_key(item): _json(item.value_json) for item in history.item}
        step = values.get("_step")
        is_step = isinstance(step, int) and abs(step) < 1 << 63
        number = step if is_step else int(history.step.num) or self._rows
        at_s = values.get("_timestamp")
        unix_s = moment_of(at_s) if isinstance(at_s, int | float) else None
        self._rows += 1
        self._last_s = unix_s or self._last_s
        for name, value in values.items():
            for key, found in _flat(name, value):
                if key.split(".")[0] not in _INTERNAL and (real := _number(found)) is not None:
                    self._histories.setdefault(key, []).append(MetricPoint(real, number, unix_s))

    def _add_summary(self, item: Any) -> None:
        name, value = _key(item), _json(item.value_json)
        if name == "_runtime" and isinstance(value, int | float):
            self._runtime_s = moment_of(value)
        for key, found in _flat(name, value):
            if key.split(".")[0] not in _INTERNAL and (real := _number(found)) is not None:
                self._summary[key] = real

    def run(self) -> TrackedRun:
        """Returns what was read."""
        started = self._started_s
        # Whole seconds, and 0 for short runs: what was logged last may tell more.
        ended = None if started is None else started + (self._runtime_s or 0.0)
        ended = max((each for each in (ended, self._last_s) if each is not None), default=None)
        status = "finished" if self._exit_code == 0 else "failed"
        if self._exit_code is not None:
            self._facts["exit_status"] = self._exit_code
        last = {name: points[-1].value for name, points in self._histories.items()}
        return TrackedRun(
            source=SCHEME,
            run_id=str(self._path),
            name=self._name or self._id,
            status="lost" if self._exit_code is None else status,
            started_unix_s=started,
            ended_unix_s=ended,
            params=self._params,
            last_values={**self._summary, **last},
            histories={name: tuple(points) for name, points in self._histories.items()},
            facts=self._facts,
        )


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(value: RunValue) -> float | None:
    """Returns a metric's value; W&B writes NaN and infinities as texts."""
    if isinstance(value, bool | tuple):
        return float(value) if isinstance(value, bool) else None
    if isinstance(value, str):
        return float(value) if value in ("NaN", "Infinity", "-Infinity") else None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _flat(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, RunValue]]:
    """Yields nested values under dotted names; media and tables are left out."""
    if isinstance(value, Mapping):
        if depth < MAX_DEPTH and "_type" not in value:
            for key, part in value.items():
                yield from _flat(f"{name}.{key}", part, depth + 1)
    elif isinstance(value, str | bool | int | float):
        yield name, value
    elif value is not None:
        yield name, json.dumps(value, ensure_ascii=False)
