"""Parameters, metrics and artifacts that a script logs: packed into the ring, never waited for.

Whatever the script passes, it cannot break the run or its summary: what cannot be kept is refused
here, in one line on stderr the first time, and counted; secrets are masked before they leave the
process.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from threading import RLock
from time import monotonic, sleep, time_ns
from typing import TYPE_CHECKING, Any

from traceml.model import record_layout
from traceml.model.metric_segments import cut_name
from traceml.model.packed_metrics import (
    AT_EVENT,
    AT_STEP,
    MARK,
    metrics_message,
    number_text,
    packer,
)
from traceml.model.secrets import masked_location, masked_value
from traceml.trace.artifact_staging import CannotBeKept, stage
from traceml.trace.failure import ended_by_device_error
from traceml.trace.interruptions import is_interruption
from traceml.trace.sample_log import SampleLog
from traceml.trace.segment_names import SegmentNames

if TYPE_CHECKING:
    from traceml.trace.ring import Ring
    from traceml.trace.session import Session

MAX_NAMES = 1024
"""Metric names whose JSON form is kept at hand."""
MAX_PENDING = 4096
"""Logged GPU tensors whose values may be outstanding."""
TIMEOUT_S = 2.0
"""How long the end of the process may be held up for values that are still on the GPU."""
POLL_S = 0.001
MAX_TEXT = 4096
"""Characters of a parameter's text, or of its JSON where it is nested."""
MAX_DEPTH = 8
"""Of nested parameters; deeper ones are kept as text."""
MAX_NAME = 256
"""Characters of a name."""
MAX_STEP = (1 << 63) - 1
"""What the records hold."""


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON knows it; anything else as its text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -MAX_STEP <= value <= MAX_STEP else _large(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return {_name(name): plain(inner, depth + 1) for name, inner in value.items()}
    if depth < MAX_DEPTH and isinstance(value, (list, tuple)):
        return [plain(inner, depth + 1) for inner in value]
    return _shortened(str(value))


def _large(value: int) -> str:
    """An integer that no column holds; Python itself refuses to write out very long ones."""
    bits = value.bit_length()
    return str(value) if bits <= 1024 else f"an integer of {bits} bits"


def _name(name: object) -> str:
    return cut_name(str(name), MAX_NAME) or _NO_NAME


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _number(value: Any) -> str | None:
    """A metric's value as strict JSON; what is not finite travels as text, what is none not."""
    if hasattr(value, "detach"):
        value = value.detach()  # torch warns of numbers taken from a graph
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if is_interruption(error):
            raise
        return None
    return number_text(number)


def _is_on_gpu(value: Any) -> bool:
    return getattr(value, "is_cuda", False) is True


def _ignored(error: BaseException) -> None:
    """An object of the script's did not let itself be read: the caller refuses it."""


class Messages:
    """The writing end of a rank's messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
        self._names: dict[str, str] = {}
        self._packers: dict[tuple[str, ...], tuple[Callable[..., bytes] | None, bytes]] = {}
        self._said_directions: dict[str, bool] = {}
        self._refused: set[str] = set()
        """The verbs that a line on stderr has spoken of."""
        self.forget()
        # Each value by itself: one that cannot be read costs no other.
        self._plain = session.guard(lambda value: (plain(value),), any_thread=True, failed=_ignored)
        self._number = session.guard(_number, any_thread=True, failed=_ignored)
        self._is_on_gpu = session.guard(_is_on_gpu, any_thread=True, failed=_ignored)
        self._segments = SegmentNames(session, self._refuse, MAX_NAME)
        self.params = self._verb("log_params", self._params)
        log_metrics = self._verb("log_metrics", self._metrics)
        self.metrics = session.recorder.shortcut("metrics", log_metrics)
        self.segment = self._verb("log_metrics", self._segment)
        self.samples = self._verb("log_samples", SampleLog(session, self._refuse).log)
        self.directions = self._verb("log_metrics", self._directions)
        self.artifact = self._verb("log_artifact", self._artifact)
        self.write = session.guard(self._write, any_thread=True)
        """For what the tracer itself has to say; its kind is in it."""

    def forget(self) -> None:
        """Begin anew: in a forked child the parent's lock may be held for ever."""
        self._lock = RLock()
        self._queue: list[bytes] = []
        """Messages to be written, in their order."""
        self._pending: list[tuple[str, int, str, Any, Any]] = []

    def use_ring(self, ring: Ring) -> None:
        """Tell `recorder.c` where messages go.

        It writes as soon as it knows of slots: until it knows all of it, there are none.
        """
        recorder = self._session.recorder
        first, slots, counted_at = ring.message_place
        recorder.message_slots = 0
        recorder.messages_at, recorder.messages_counted_at = first, counted_at
        recorder.message_slots = slots

    # What the script got wrong

    def _verb(self, name: str, function: Any) -> Any:
        """One of the script's calls: what fails in it is the script's slip, and no failure of ours.

        It walks through objects of the script's, which may raise anything when they are asked.
        """

        def slipped(error: BaseException) -> None:
            self._refuse(name, f"what it was given raised {type(error).__name__} when it was read")

        return self._session.guard(function, any_thread=True, failed=slipped)

    def _refuse(self, verb: str, why: str, count: int = 1) -> None:
        """Count what is not kept, and say so once per verb."""
        ring = self._session.ring or self._session.open()
        if ring is not None:
            ring.count_dropped(count)
        if verb not in self._refused:
            self._refused.add(verb)
            self._session.say(f"{verb}: {why}; training goes on (further errors are only counted)")

    def _not_a_mapping(self, verb: str, values: object, example: str) -> bool:
        if type(values) is dict or isinstance(values, Mapping):
            return False
        self._refuse(
            verb,
            f"nothing was recorded: it got {type(values).__name__}, not a dict; "
            f"pass a dict such as {example}",
        )
        return True

    # Parameters and artifacts

    def _params(self, values: Mapping[str, Any]) -> None:
        ring = self._session.ring or self._session.open()
        if ring is None or self._not_a_mapping("log_params", values, "{'lr': 0.1}"):
            return
        room = ring.longest_message - len(_PARAMS % b"")
        kept: list[bytes] = []
        unreadable = 0
        for name, value in values.items():
            readable = self._plain(value)
            if readable is None:
                self._refuse("log_params", f"'{_name(name)}' was not recorded: it cannot be read")
                unreadable += 1
                continue
            item = self._param(_name(name), *readable)
            room -= len(item) + 1
            if room < 0:
                break
            kept.append(item)
        if kept:
            self._put(_PARAMS % b",".join(kept))
        too_many = len(values) - len(kept) - unreadable
        if too_many > 0:
            self._refuse(
                "log_params",
                f"recorded {len(kept):,} of {len(values):,} parameters, as many as one call may "
                "hold; log fewer, or the rest in later calls",
                too_many,
            )

    def _param(self, name: str, value: Any) -> bytes:
        """One parameter as JSON, without secrets; a long one is cut, and that is said."""
        known = masked_value(name, value)
        text = self._encode(known)
        if len(text) > MAX_TEXT:
            text = self._encode(_shortened(known if isinstance(known, str) else text))
            self._refuse("log_params", f"the value of '{name}' was cut to {MAX_TEXT:,} characters")
        return f"{self._encode(name)}:{text}".encode(errors="replace")

    def _artifact(self, path: str | Path, name: str | None) -> None:
        ring = self._session.ring or self._session.open()
        if ring is None:
            return
        if name is not None and not isinstance(name, str):
            self._refuse("log_artifact", f"name= takes a text, not {type(name).__name__}")
            return
        where = os.fspath(path)
        text = os.fsdecode(where)
        if "\0" in text or not text:
            why = "a path holds a NUL character" if text else "the path is empty"
            self._refuse("log_artifact", f"{why}; pass the path of a file")
            return
        is_elsewhere = "://" in text
        place = masked_location(text if is_elsewhere else os.path.abspath(text))  # noqa: PTH100 - `..` counts
        called = masked_location(_name(name or Path(place).name))
        message = {"kind": "artifact", "path": place, "name": called, "unix_ns": time_ns()}
        if not is_elsewhere:
            try:
                message["id"] = stage(Path(text).absolute(), self._session.run_folder, message)
            except (CannotBeKept, OSError) as error:
                if is_interruption(error):
                    raise
                if isinstance(error, CannotBeKept):
                    self._refuse("log_artifact", str(error))
                    return
                message["note"] = f"its content could not be kept ({error.strerror})"
                self._refuse("log_artifact", f"{place}: {message['note']}")
        self._write(message)

    def _write(self, message: dict[str, Any]) -> None:
        self._put(self._encode(message).encode(errors="replace"))

    def _put(self, payload: bytes) -> None:
        ring = self._session.ring or self._session.open()
        if ring is None:
            return
        if len(payload) > ring.longest_message:
            raise ValueError(
                f"a logged message has {len(payload)} bytes, "
                f"more than the ring's {ring.longest_message}"
            )
        self._append(ring, payload)

    def _append(self, ring: Ring, payload: bytes) -> None:
        """Write a message; meanwhile other threads come here too, and wait.

        So does this thread: a signal's handler or a finalizer may log in the middle of a message.
        What it logs is queued, and written by the call that it interrupted.
        """
        with self._lock:
            self._queue.append(payload)
            self._write_queued(ring)

    def _write_queued(self, ring: Ring) -> None:
        """Write what is queued, unless a call that was interrupted will; the lock is held."""
        recorder, queue = self._session.recorder, self._queue
        while queue and not recorder.message_writers:
            try:
                recorder.message_writers = 1
                while queue:
                    ring.write_message(queue.pop(0))
            finally:
                recorder.message_writers = 0  # then once more: a handler may have come before this

    # Metrics

    def _metrics(self, values: Mapping[str, Any], step: int | None) -> None:
        """Write metric values: plain numbers of names that came before as they are, without making
        text of them. `recorder.c` does the same in a training thread."""
        if values and type(values) is dict and _PLAIN_KINDS.issuperset(map(type, values.values())):
            pack, names = self._packers.get(tuple(values), _NOT_KNOWN)
            ring, kind, at = self._session.ring, AT_STEP, step
            if step is None:
                kind, at = AT_EVENT, self._session.recorder.written
            if pack is not None and ring is not None and type(at) is int:
                try:
                    payload = pack(MARK, kind, len(values), at, time_ns(), *values.values(), names)
                    self._append(ring, payload)
                    return
                except (OverflowError, struct.error) as error:  # a number that no column holds
                    if is_interruption(error):
                        raise
        self._write_as_text(values, step)

    def _directions(
        self, values: Mapping[str, Any], higher_is_better: bool | Mapping[str, bool]
    ) -> None:
        """Write which way metrics improve, as far as that is new."""
        known = self._said_directions
        is_plain = type(higher_is_better) is bool and type(values) is dict
        if is_plain and all(known.get(name) is higher_is_better for name in values):
            return  # most calls say it again
        if isinstance(higher_is_better, Mapping):
            said = {_name(name): value for name, value in higher_is_better.items()}
        elif isinstance(values, Mapping):
            said = {_name(name): higher_is_better for name in values}
        else:
            return  # the call itself is refused
        if not all(isinstance(value, bool) for value in said.values()):
            self._refuse(
                "log_metrics", "higher_is_better= takes True, False, or a dict of them by name"
            )
            return
        new = {name: is_up for name, is_up in said.items() if self._is_new_direction(name, is_up)}
        if new:
            self._write({"kind": "directions", "unix_ns": time_ns(), "values": new})

    def _is_new_direction(self, name: str, higher_is_better: bool) -> bool:
        known = self._said_directions
        if known.get(name) is higher_is_better or len(known) >= MAX_NAMES:
            return False
        known[name] = higher_is_better
        return True

    def _write_as_text(self, values: Mapping[str, Any], step: int | None) -> None:
        """Write metric values of any kind; those still on a GPU follow when they have arrived."""
        if self._not_a_mapping("log_metrics", values, "{'loss': 0.5}"):
            return
        may_be_packed = type(values) is dict and 0 < len(values) <= _MAX_PACKED
        if may_be_packed and tuple(values) not in self._packers:
            self._learn(tuple(values))
        at = f'"at":{self._session.recorder.written}' if step is None else self._step(step)
        if at is None:
            return
        now = time_ns()
        ready = []
        by_segment: dict[str, Any] = {}
        for name, value in values.items():
            if type(value) is float:
                ready.append(f"{self._quoted(name)}:{number_text(value)}")
            elif self._is_on_gpu(value):
                self._fetch_later(at, now, _name(name), value)
            elif (number := self._number(value)) is not None:
                ready.append(f"{self._quoted(name)}:{number}")
            else:
                self._add_other(by_segment, _name(name), value)
        if ready:
            self._write_all(at, now, ready)
        if by_segment:
            self._metrics(by_segment, step)

    def _add_other(self, by_segment: dict[str, Any], name: str, value: object) -> None:
        """Add the values of a metric's segments; anything else that is no number is refused."""
        if isinstance(value, Mapping):
            self._segments.add(by_segment, name, value)
            return
        self._refuse(
            "log_metrics",
            f"'{name}' was not recorded: {type(value).__name__} is not a number; "
            "pass a number or a tensor of one element, or a dict of them by segment",
        )

    def _segment(self, values: Mapping[str, Any], step: int | None, segment: object) -> None:
        """Write metric values of one segment."""
        if not self._not_a_mapping("log_metrics", values, "{'loss': 0.5}"):
            found: dict[str, Any] = {}
            for name, value in values.items():
                self._segments.add(found, _name(name), {segment: value})
            if found:
                self._metrics(found, step)

    def _learn(self, names: tuple[str, ...]) -> None:
        """Know from here on how values of these names are packed: the same few come every time."""
        metric_names = self._session.recorder.metric_names
        if len(self._packers) >= MAX_NAMES:
            self._packers.clear()
            metric_names.clear()
        named = self._encode([_name(name) for name in names]).encode(errors="replace")
        pack = packer(named, len(names), record_layout.MESSAGE_PAYLOAD_BYTES)
        self._packers[names] = pack, named
        if pack is not None:
            metric_names[names] = named

    def _step(self, step: Any) -> str | None:
        """When a value was logged, as JSON: at a step; where the script names none, after so many
        events, of which a reader of the ring knows the step.

        What is no number, or larger than any record holds, is refused.
        """
        try:
            number = int(step)
            if -MAX_STEP <= number <= MAX_STEP:
                return f'"step":{number}'
        except (TypeError, ValueError, OverflowError) as error:
            if is_interruption(error):
                raise
        self._refuse("log_metrics", "step= takes a whole number below 2**63; nothing was recorded")
        return None

    def _write_all(self, at: str, now: int, values: list[str]) -> None:
        """In several messages where one would be too long, as far as the ring holds them."""
        if len(values) <= _VALUES_AT_ONCE:
            self._put(metrics_message(at, now, values))
            return
        ring = self._session.ring or self._session.open()
        if ring is None:
            return
        # Half of the ring, in parts: what is in the rest of it stays for the agent to read.
        room, sent = 2 * ring.longest_message, 0
        for start in range(0, len(values), _VALUES_AT_ONCE):
            part = metrics_message(at, now, values[start : start + _VALUES_AT_ONCE])
            room -= len(part)
            if room < 0:
                break
            self._put(part)
            sent = min(len(values), start + _VALUES_AT_ONCE)
        if sent < len(values):
            why = f"recorded {sent:,} of {len(values):,} metrics, as many as one call may hold"
            self._refuse("log_metrics", why, len(values) - sent)

    def _quoted(self, name: str) -> str:
        """A metric's name in JSON; the same few names come again and again."""
        quoted = self._names.get(name)
        if quoted is None:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            quoted = self._names[name] = self._encode(_name(name))
        return quoted

    def _fetch_later(self, at: str, now: int, name: str, value: Any) -> None:
        import torch

        if torch.cuda.is_current_stream_capturing():
            self._refuse("log_metrics", f"'{name}' was logged inside a CUDA graph: log it outside")
            return
        if value.numel() != 1 or len(self._pending) >= MAX_PENDING:
            why = f"the value of '{name}' is no single number, or too many wait for the GPU"
            self._refuse("log_metrics", why)
            return
        host = torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
        host.copy_(value.detach().reshape(()), non_blocking=True)
        mark: Any = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no types here
        mark.record(torch.cuda.current_stream(value.device))
        self._pending.append((at, now, name, host, mark))
        if self.write_arrived not in self._session.looks:
            self._session.looks.append(self.write_arrived)

    def write_arrived(self) -> None:
        """After each step, as long as any wait: write the values that came from the GPU."""
        pending = self._pending
        while pending and pending[0][4].query():
            at, now, name, host, _ = pending.pop(0)
            self._put(metrics_message(at, now, [f"{self._quoted(name)}:{_number(host)}"]))
        looks = self._session.looks
        if not pending and self.write_arrived in looks:
            looks.remove(self.write_arrived)

    def wait(self) -> None:
        """The process ends: write the values that still come from the GPU, and say what does not
        come."""
        ring = self._session.ring
        try:
            if self._queue and ring is not None:  # of a handler that ended the call it interrupted
                with self._lock:
                    self._write_queued(ring)
            self._wait_for_gpu()
        finally:
            self._refuse_pending()

    def _wait_for_gpu(self) -> None:
        deadline_s = monotonic() + TIMEOUT_S
        while self._pending and not ended_by_device_error():
            self.write_arrived()
            if not self._pending or monotonic() >= deadline_s:
                break
            sleep(POLL_S)

    def _refuse_pending(self) -> None:
        """Count and name the values that did not come; no later look writes them any more."""
        count = len(self._pending)
        self._pending.clear()
        if count:
            values = "value" if count == 1 else f"{count:,} values"
            why = f"the last {values} had not come from the GPU when the process ended"
            self._refuse("log_metrics", why, count)


_NO_NAME = "(no name)"
_PARAMS = b'{"kind":"params","values":{%s}}'
_VALUES_AT_ONCE = 256
_MAX_PACKED = record_layout.MESSAGE_PAYLOAD_BYTES // 8
"""Numbers of one call that may fit a slot of the ring; more are written as text."""
_NOT_KNOWN = None, b""
_PLAIN_KINDS = frozenset((float, int))
