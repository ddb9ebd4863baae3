"""What a script logs: messages on disk, thinned as they grow, and reduced for the summary."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from msgspec import Meta, Struct, convert

from traceml.model.artifact import ArtifactKind
from traceml.model.metric_segments import metric_of, split_segment
from traceml.model.parallel_place import (
    MAX_DIMENSIONS,
    NO_PLACE,
    MeshDimension,
    ParallelPlace,
)
from traceml.model.printable import printable
from traceml.model.record_layout import MESSAGE_PAYLOAD_BYTES
from traceml.model.settings import Settings
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.records import (
    Artifact,
    ArtifactFile,
    DdpStatistics,
    LoggedMetric,
    RecordedLosses,
    Resumption,
    SeenLoss,
)
from traceml.store.regular_files import read_regular, stat_regular

_TAIL_BYTES = 1 << 20
_NEVER_NS = 1 << 63
_MAX_STEP = (1 << 63) - 1
MAX_METRIC_NAMES = 12_288
"""Per process: a script that puts the step's number into a name makes a new one every step."""
MAX_METRIC_NAME_BYTES = 3 << 20
"""Of all names of metrics together: with the totals of each it fits a file of messages."""
_MAX_NAME_BYTES = 1024
"""Of one name: 256 characters."""
MAX_PARAM_NAMES = 4096
MAX_PARAM_LETTERS = 2 << 20
"""Of all parameters together: about two megabytes on disk."""
MAX_ARTIFACT_NAMES = 1000
"""Of a run, those logged last; a step's number in a name makes a new one each time."""
MAX_OTHER_LINES = 8192
"""Losses, artifacts, exceptions and settings; of more, the first and the last are kept."""
MAX_HISTORY_VALUES = 4096
"""Values of a loss or a gradient norm that are kept one by one."""
_WITH_HISTORY = re.compile(r"loss|grad[a-z]*[ ./_-]*norm", re.IGNORECASE)
_SETTING_KINDS = {name: get_args(kind)[0] for name, kind in get_type_hints(Settings).items()}
MESSAGE_FILES = "rank-*.messages"
"""The files of a run folder with what its processes reported."""
RARE_KINDS = ("params", "settings", "place", "failure")
"""The kinds of messages that a process writes once, or a few times: whoever begins to follow it
later reads them from its file."""
_KIND = re.compile(rb'\{(?:"number": ?\d+, ?)?"kind": ?"(\w+)"')
"""Of a line: its number, where it has one, and its kind come first. A file that was thinned has
spaces between them."""
_MERGED = ("folded", "params", "directions", "lost", "metrics")
"""The kinds of lines that thinning merges or halves; it keeps all others."""


def line(number: int, payload: bytes) -> bytes:
    """Returns one message as it is written to disk: its number first, then its content."""
    return b'{"number":%d,' % number + payload[1:] + b"\n"


def lost_line(number: int, pieces: int) -> bytes:
    """Returns the line for message pieces that the ring overwrote before they were read."""
    return b'{"number":%d,"kind":"lost","pieces":%d}\n' % (number, pieces)


def pieces(messages: Iterable[tuple[int, bytes]]) -> int:
    """Returns how many slots of the ring these messages filled."""
    return sum(-(-len(payload) // MESSAGE_PAYLOAD_BYTES) for _, payload in messages)


def last_number(path: Path) -> int:
    """Returns the number of the last message on disk."""
    found = stat_regular(path)
    if found is None:
        return 0
    tail = read_regular(path, offset=max(0, found.st_size - _TAIL_BYTES))
    for text in reversed(tail.splitlines()):
        try:
            return int(json.loads(text)["number"])
        except (*UNDECODABLE, KeyError, TypeError, OverflowError):
            continue
    return 0


_Count = Annotated[int, Meta(ge=0, le=_MAX_STEP)]
_Moment = Annotated[int, Meta(ge=-1)]
_Step = Annotated[int, Meta(ge=-_MAX_STEP, le=_MAX_STEP)] | None
_NumberText = Annotated[str, Meta(pattern=r"^-?(\d+(\.\d+)?(e[-+]?\d+)?|inf|nan)$")]
"""A number as Python writes it, including those that JSON cannot express."""
_Number = float | _NumberText


class _Folded(Struct):
    """The totals of a metric's values that were thinned out, as a line on disk holds them."""

    count: _Count
    finite: _Count
    total: float
    minimum: _Number
    maximum: _Number
    first: tuple[_Moment, _Step]
    last: tuple[_Moment, _Step, _Number]
    first_value: _Number | None = None
    first_not_finite: tuple[_Moment, _Step] | None = None


class _Ddp(Struct):
    """What DDP reports about its communication."""

    communication_ns: _Count
    overlap_ns: _Count
    gradient_bytes: _Count
    buckets: _Count
    has_hook: bool


class _Resumed(Struct):
    """The state that a process had loaded by its first step."""

    has_loaded: bool
    step: _Count | None = None
    restart: _Count | None = None


class _Dimension(Struct, array_like=True):
    """A dimension of the device mesh, as a rank reports it."""

    name: Annotated[str, Meta(max_length=64)]
    index: _Count
    size: _Count


class _Place(Struct):
    """Where a rank stands in the device mesh and the pipeline."""

    dimensions: Annotated[tuple[_Dimension, ...], Meta(max_length=MAX_DIMENSIONS)]
    stages: tuple[_Count, ...] = ()
    model: tuple[_Count, ...] = ()


class _Loss(Struct):
    """A loss worth remembering, and the finite one before it."""

    step: _Count
    value: _Number
    finite_step: _Count | None = None
    finite_value: _Number | None = None


class _Lost(Struct):
    """Message pieces that the ring overwrote before they were read."""

    pieces: _Count


_Record = TypeVar("_Record", bound=Struct)


def _converted(message: Any, kind: type[_Record]) -> _Record | None:
    """Returns a message as a record; `None` where a field is missing or has a wrong type."""
    try:
        return convert(message, kind)
    except UNDECODABLE:
        return None


class _Totals:
    """A metric's running totals."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.finite = 0
        self.minimum = math.inf
        self.maximum = -math.inf
        self.first: tuple[int, int | None] = (_NEVER_NS, None)
        """When the first value came, and its step."""
        self.first_value: float | None = None
        self.last: tuple[int, int | None, float] = (-1, None, math.nan)
        """When the last value came, its step, and the value."""
        self.first_not_finite: tuple[int, int | None] = (_NEVER_NS, None)
        """When the first value came that is no number, and its step."""
        self.history: deque[tuple[int, float]] = deque(maxlen=MAX_HISTORY_VALUES)

    def add(self, value: float, step: int | None, unix_ns: int) -> None:
        """Adds one value; a non-finite value is counted but not in the mean."""
        self.count += 1
        if math.isfinite(value):
            self.finite += 1
            self.total += value
            self.minimum = min(self.minimum, value)
            self.maximum = max(self.maximum, value)
        else:
            self.first_not_finite = min(self.first_not_finite, (unix_ns, step), key=_when)
        self._place((unix_ns, step), value, (unix_ns, step, value))

    def absorb(self, folded: _Folded) -> None:
        """Adds the totals of values that were thinned out."""
        self.count += folded.count
        self.finite += folded.finite
        self.total += folded.total
        self.minimum = min(self.minimum, float(folded.minimum))
        self.maximum = max(self.maximum, float(folded.maximum))
        last_ns, last_step, last = folded.last
        first = folded.first_value
        self._place(
            folded.first,
            None if first is None else float(first),
            (last_ns, last_step, float(last)),
        )
        not_finite = folded.first_not_finite or self.first_not_finite
        self.first_not_finite = min(self.first_not_finite, not_finite, key=_when)

    def _place(
        self,
        first: tuple[int, int | None],
        first_value: float | None,
        last: tuple[int, int | None, float],
    ) -> None:
        if first[0] < self.first[0]:
            self.first, self.first_value = first, first_value
        if last[0] >= self.last[0]:
            self.last = last

    def folded(self) -> dict[str, Any]:
        """Returns these totals as a line on disk; infinities as text, for strict JSON."""
        return {
            "count": self.count,
            "finite": self.finite,
            "total": self.total,
            "minimum": str(self.minimum),
            "maximum": str(self.maximum),
            "first": self.first,
            "first_value": None if self.first_value is None else str(self.first_value),
            "last": (*self.last[:2], str(self.last[2])),
            "first_not_finite": self.first_not_finite,
        }


def _when(place: tuple[int, int | None]) -> int:
    return place[0]


def reduce_metrics(messages: Iterable[dict[str, Any]]) -> tuple[LoggedMetric, ...]:
    """Returns every metric's history in a few numbers, by name."""
    said = list(messages)
    totals, known = _sum_up(said), directions(said)
    return tuple(
        LoggedMetric(
            name=name,
            count=each.count,
            last=each.last[2],
            minimum=each.minimum,
            maximum=each.maximum,
            mean=each.total / each.finite if each.finite else math.nan,
            first_step=each.first[1],
            last_step=each.last[1],
            first_not_finite_step=each.first_not_finite[1],
            first=each.first_value,
            history=tuple(each.history),
            higher_is_better=known.get(name, known.get(metric_of(name))),
        )
        for name, each in sorted(totals.items())
    )


def is_full(metrics: Iterable[LoggedMetric]) -> bool:
    """Returns whether metrics of further names would have been left out."""
    sizes = [_name_bytes(metric.name) for metric in metrics]
    return len(sizes) >= MAX_METRIC_NAMES or sum(sizes) > MAX_METRIC_NAME_BYTES - _MAX_NAME_BYTES


def _name_bytes(name: str) -> int:
    return len(name.encode(errors="replace"))


def _sum_up(messages: Iterable[dict[str, Any]]) -> dict[str, _Totals]:
    totals: dict[str, _Totals] = {}
    room = MAX_METRIC_NAME_BYTES
    for message in messages:
        for name, value in _values(message).items():
            size = 0 if name in totals else _name_bytes(name)
            if size > room or (name not in totals and len(totals) >= MAX_METRIC_NAMES):
                continue
            if message.get("kind") == "folded":
                folded = _converted(value, _Folded)
                if folded is not None:
                    totals.setdefault(name, _Totals()).absorb(folded)
            elif message.get("kind") == "metrics" and (number := _number(value)) is not None:
                at, step = unix_ns(message), _step(message.get("step"))
                each = totals.setdefault(name, _Totals())
                each.add(number, step, at)
                if step is not None and _has_history(name):
                    each.history.append((step, number))
            room -= size if name in totals else 0
    return totals


def metric_values(
    messages: Iterable[dict[str, Any]],
) -> Iterator[tuple[int, str, float, int | None]]:
    """Yields each value that is kept one by one: when it was logged, its name, the value, and the
    step."""
    for message in messages:
        if message.get("kind") == "metrics":
            at, step = unix_ns(message), _step(message.get("step"))
            for name, value in _values(message).items():
                if (number := _number(value)) is not None:
                    yield at, name, number, step


def _has_history(name: str) -> bool:
    """Returns whether a metric's values are kept one by one; a segment's loss is not the loss."""
    return _WITH_HISTORY.search(name) is not None and split_segment(name) is None


def fold(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what messages say of metrics in two of them at most: totals, and directions."""
    said = list(messages)
    totals = {name: each.folded() for name, each in _sum_up(said).items()}
    known = directions(said)
    return [
        {"number": 0, "kind": "folded", "values": totals},
        *([{"number": 0, "kind": "directions", "values": known}] if known else []),
    ]


def directions(messages: Iterable[dict[str, Any]]) -> dict[str, bool]:
    """Returns by metric whether the script said that more is better; the last word counts."""
    found: dict[str, bool] = {}
    for message in messages:
        if message.get("kind") == "directions":
            said = _values(message).items()
            found.update((name, value) for name, value in said if isinstance(value, bool))
    return dict(list(found.items())[:MAX_METRIC_NAMES])


def _values(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message's values by name; empty where the script logged no names."""
    values = message.get("values")
    return values if isinstance(values, dict) else {}


def _number(value: Any) -> float | None:
    """Returns a logged value, which is a number or the text of a non-finite one."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def unix_ns(message: dict[str, Any]) -> int:
    """Returns when a message was written; 0 where it does not say."""
    found = message.get("unix_ns", 0)
    return found if isinstance(found, int) and 0 <= found <= _MAX_STEP else 0


def _step(step: Any) -> int | None:
    """Returns a logged step; `None` where it exceeds 64 bits."""
    return step if isinstance(step, int) and abs(step) <= _MAX_STEP else None


def of_the_loss(messages: Iterable[bytes]) -> list[dict[str, Any]]:
    """Returns the losses and gradient norms in metric messages."""
    found = []
    for message in decode(b"\n".join(messages)):
        values = _values(message)
        watched = {name: values[name] for name in values if _has_history(name)}
        if watched:
            found.append({**message, "values": watched})
    return found


def thin(content: bytes) -> bytes:
    """Returns a file's content thinned: half of its metric lines, and totals of the rest.

    Parameters become one line, and so do losses; the last line stays, because its number is needed.
    """
    entries = decode(content)
    if not entries:
        return b""  # nothing in it can be read
    *earlier, newest = entries
    metrics = [message for message in earlier if message.get("kind") == "metrics"]
    dropped = [message for message in earlier if message.get("kind") == "folded"] + metrics[::2]
    totals = {name: each.folded() for name, each in _sum_up(dropped).items()}
    said = directions(earlier)
    kept = [
        {"number": 0, "kind": "folded", "values": totals},
        *merge_params(earlier).lines(),
        *([{"number": 0, "kind": "directions", "values": said}] if said else []),
        {"number": 0, "kind": "lost", "pieces": lost_pieces(earlier)},
        *_bounded([message for message in earlier if message.get("kind") not in _MERGED]),
        *metrics[1::2],
        newest,
    ]
    return b"".join(json.dumps(message, ensure_ascii=False).encode() + b"\n" for message in kept)


def _bounded(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns at most `MAX_OTHER_LINES` lines: the first losses, and the last of everything."""
    if len(lines) <= MAX_OTHER_LINES:
        return lines
    return lines[: MAX_OTHER_LINES // 2] + lines[-MAX_OTHER_LINES // 2 :]


def decode(content: bytes) -> list[dict[str, Any]]:
    """Returns the lines of a file; the half line of a killed writer is skipped."""
    found = []
    for text in content.splitlines():
        try:
            entry = load_json(text)
        except UNDECODABLE:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def lost_pieces(messages: Iterable[dict[str, Any]]) -> int:
    """Returns how many message pieces the ring overwrote before they were read."""
    said = [_converted(message, _Lost) for message in messages if message.get("kind") == "lost"]
    return sum(lost.pieces for lost in said if lost is not None)


class Params:
    """A run's parameters: the last value of each name; with very many names, the first ones.

    What the script logged by a call wins over what was taken from its own arguments.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        """Where those were taken from that the script did not log by a call, by name."""
        self._letters = 0

    def add_message(self, message: dict[str, Any]) -> None:
        """Adds the parameters of one message, if it holds some."""
        if message.get("kind") == "params":
            source = message.get("source")
            self.add(_values(message), source if isinstance(source, str) else None)

    def add(self, values: dict[str, Any], source: str | None = None) -> None:
        """Adds parameters as long as there is room; a known name's value is replaced.

        `source` says what they were taken from; `None` is a call of the script's.
        """
        for name, value in values.items():
            if source is not None and name in self.values and name not in self.sources:
                continue
            before = _letters(name, self.values[name]) if name in self.values else 0
            letters = self._letters - before + _letters(name, value)
            has_room = before or len(self.values) < MAX_PARAM_NAMES
            if has_room and letters <= MAX_PARAM_LETTERS:
                self.values[name] = value
                self._letters = letters
                if source is None:
                    self.sources.pop(name, None)
                else:
                    self.sources[name] = source

    def lines(self) -> list[dict[str, Any]]:
        """Returns these parameters as messages, one for each source."""
        parts: dict[str | None, dict[str, Any]] = {None: {}}
        for name, value in self.values.items():
            parts.setdefault(self.sources.get(name), {})[name] = value
        return [
            {"number": 0, "kind": "params", "values": values}
            | ({} if source is None else {"source": source})
            for source, values in parts.items()
        ]


def _letters(name: str, value: Any) -> int:
    return len(name) + len(str(value)) + 1


def merge_params(messages: Iterable[dict[str, Any]]) -> Params:
    """Returns the parameters in these messages."""
    params = Params()
    for message in messages:
        params.add_message(message)
    return params


def earlier_reports(folder: Path) -> list[bytes]:
    """Returns the messages of `RARE_KINDS` in a run folder, as they are on disk."""
    return [
        text
        for path in sorted(folder.glob(MESSAGE_FILES))
        for text in _lines(path)
        if is_rare(text)
    ]


def is_rare(text: bytes) -> bool:
    """Returns whether a line of a file of messages is of one of `RARE_KINDS`."""
    return kind_of(text) in RARE_KINDS


def kind_of(text: bytes) -> str | None:
    """Returns the kind of an encoded message, which is not decoded for it; `None` where it does not
    begin as messages do."""
    found = _KIND.match(text)
    return found[1].decode() if found else None


def _lines(path: Path) -> list[bytes]:
    """Returns the lines of a file; empty where it cannot be read."""
    try:
        return read_regular(path).splitlines()
    except OSError:
        return []


def ddp_statistics(messages: Iterable[dict[str, Any]]) -> DdpStatistics | None:
    """Returns the latest DDP statistics; they are means over everything before."""
    said = [_converted(message, _Ddp) for message in messages if message.get("kind") == "ddp"]
    known = [each for each in said if each is not None]
    if not known:
        return None
    latest = known[-1]
    return DdpStatistics(
        communication_s=latest.communication_ns * 1e-9,
        overlap_s=latest.overlap_ns * 1e-9,
        gradient_bytes=latest.gradient_bytes,
        buckets=latest.buckets,
        has_hook=latest.has_hook,
    )


def resumption(messages: Iterable[dict[str, Any]]) -> Resumption | None:
    """Returns what a process said of the state that it began with; `None` where it said nothing."""
    said = [_converted(each, _Resumed) for each in messages if each.get("kind") == "resumed"]
    found = next((each for each in said if each is not None), None)
    return None if found is None else Resumption(found.has_loaded, found.step, found.restart)


def loss_milestones(messages: Iterable[dict[str, Any]]) -> RecordedLosses:
    """Returns the first loss of a rank, and the first non-finite one."""
    first = lost = before = None
    for message in messages:
        said = _converted(message, _Loss) if message.get("kind") == "loss" else None
        if said is None:
            continue
        seen = SeenLoss(said.step, float(said.value))
        if math.isfinite(seen.value):
            first = first or seen
        elif lost is None:
            lost = seen
            if said.finite_step is not None and said.finite_value is not None:
                before = SeenLoss(said.finite_step, float(said.finite_value))
    return RecordedLosses(first, lost, before)


def new_milestones(losses: Iterable[bytes], on_disk: RecordedLosses) -> list[bytes]:
    """Returns those messages about a rank's first losses that are not on disk yet."""
    found = []
    for message in losses:
        said = loss_milestones([json.loads(message)])
        known = on_disk.first_lost if said.first is None else on_disk.first
        if known is None:
            found.append(message)
    return found


def settings(messages: Iterable[dict[str, Any]]) -> Settings | None:
    """Returns the settings that a rank reported last; values of a wrong type are not known."""
    said = [message for message in messages if message.get("kind") == "settings"]
    if not said:
        return None
    latest = said[-1]
    known = {name: latest.get(name) for name in Settings._fields}
    return Settings(**{name: value for name, value in known.items() if _is_setting(name, value)})


def parallel_place(messages: Iterable[dict[str, Any]]) -> ParallelPlace:
    """Returns where a rank said last that it stands; empty where it said nothing sound."""
    said = [_converted(message, _Place) for message in messages if message.get("kind") == "place"]
    known = [each for each in said if each is not None]
    if not known:
        return NO_PLACE
    latest = known[-1]
    return ParallelPlace(
        dimensions=tuple(
            MeshDimension(printable(each.name), each.index, each.size) for each in latest.dimensions
        ),
        stages=latest.stages,
        model=latest.model,
    )


def _is_setting(name: str, value: object) -> bool:
    """Returns whether a value has the type of this setting."""
    kind = _SETTING_KINDS[name]
    if type(value) is int and abs(value) > _MAX_STEP:
        return False
    return type(value) is kind or (kind is float and type(value) is int)


class _KeptEntry(Struct):
    """What the agent knows of a logged file; earlier versions recorded its size and hash alone."""

    name: str | None = None
    path: str | None = None
    unix_ns: _Count = 0
    size_bytes: _Count | None = None
    sha256: str | None = None
    kind: str | None = None
    stored: str | None = None
    files: tuple[ArtifactFile, ...] = ()
    note: str | None = None


NOT_COPIED_YET = "its content is not copied yet; `traceml recover` does that after the run"


def artifacts(messages: Iterable[dict[str, Any]], known: dict[str, Any]) -> tuple[Artifact, ...]:
    """Returns the files that the script logged in order of time, with what the agent found out.

    The agent's entries are found by the call's id, or in earlier versions by the file's path; one
    whose message was lost says for itself what it is of.
    """
    entries = {key: _converted(entry, _KeptEntry) or _KeptEntry() for key, entry in known.items()}
    found = []
    for message in messages:
        if message.get("kind") == "artifact":
            path = str(message.get("path"))
            found.append(_artifact(message, entries.get(str(message.get("id", path)))))
    announced = {str(message.get("id")) for message in messages}
    for key, entry in entries.items():
        if key not in announced and entry.name is not None and entry.path is not None:
            said = {"name": entry.name, "path": entry.path, "unix_ns": entry.unix_ns, "id": key}
            found.append(_artifact(said, entry))
    return tuple(sorted(found, key=lambda each: (each.unix_s or 0.0, each.name)))


def _artifact(message: dict[str, Any], entry: _KeptEntry | None) -> Artifact:
    note, path, at_ns = message.get("note"), str(message.get("path")), unix_ns(message)
    if entry is None:
        note = note or (NOT_COPIED_YET if "id" in message else None)
        entry = _KeptEntry(kind=ArtifactKind.REFERENCE.value if "://" in path else None)
    return Artifact(
        name=str(message.get("name")),
        path=path,
        size_bytes=entry.size_bytes,
        sha256=entry.sha256,
        kind=entry.kind,
        unix_s=at_ns * 1e-9 if at_ns else None,
        stored=entry.stored,
        files=entry.files,
        note=entry.note or (None if note is None else str(note)),
    )
