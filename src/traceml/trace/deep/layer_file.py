"""Appends what was seen of a step's layers to a file of the run: one line of JSON each.

A line is one write to the page cache, so that what was written survives the process. The names of
the layers are written once; the lines of steps refer to them by number. Numbers of layers are
packed into two bytes each. The longer the file gets, the more steps share a line: their means.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from traceml.model.environment import LAYERS
from traceml.model.packed_times import pack
from traceml.trace.deep.layer_names import LayerName, ModelLayer, without_modules
from traceml.trace.interruptions import is_interruption
from traceml.trace.session import Session

MAX_FILE_BYTES = 64 << 20
"""Of one process; after that the rest of the run adds nothing."""
MAX_SETS = 64
"""Of layers: a model that has others at every look would fill memory and file with names."""
STAGE_BYTES = 8 << 20
"""Each time the file has grown by this much …"""
STAGE_FACTOR = 4
"""… so many times more steps share a line …"""
MAX_STEPS_PER_LINE = 256
"""… up to this: weeks fit into a file, and a process that is killed loses minutes of them."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class LayerFile:
    """The writing end of a process's layers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked child writes a file of its own."""
        self._file: int | None = None
        self._bytes = 0
        self._said: set[str] = set()
        self._sets: dict[tuple[str, ...], int] = {}
        """The number of each set of layers, by their names."""
        self.is_full = False

    def write(self, layers: Sequence[ModelLayer | LayerName], line: Mapping[str, Any]) -> None:
        """Write what was seen of these layers in a step."""
        names = tuple(layer.name for layer in layers)
        number = self._sets.get(names)
        if number is None:
            if len(self._sets) == MAX_SETS:
                return
            number = self._sets[names] = len(self._sets) + 1
            kinds = [layer.kind for layer in layers]
            of_library = [place for place, layer in enumerate(layers) if layer.is_of_library]
            self._append({"set": number, "names": names, "kinds": kinds, "of_library": of_library})
        self._append({"set": number, **line})

    @property
    def steps_per_line(self) -> int:
        """How many steps share a line by now."""
        return int(min(STAGE_FACTOR ** (self._bytes // STAGE_BYTES), MAX_STEPS_PER_LINE))

    @property
    def written_bytes(self) -> int:
        """How long the file is."""
        return self._bytes

    def say(self, why: str, key: str = "why") -> None:
        """Writes a note once: why layers are not seen, or not all of them; with another key, a note
        on what else is not known of them."""
        if why not in self._said:
            self._said.add(why)
            self._append({key: why})

    def _append(self, line: Mapping[str, Any]) -> None:
        payload = _encode(line).encode(errors="replace") + b"\n"
        if self.is_full or self._bytes + len(payload) > MAX_FILE_BYTES:
            self.is_full = True
            return
        try:
            self._bytes += os.write(self._opened(), payload)
        except OSError as error:
            if is_interruption(error):
                raise
            self.is_full = True  # the disk is: what is there can be read

    def _opened(self) -> int:
        if self._file is None:
            path = self._session.run_folder / LAYERS.format(pid=os.getpid())
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
        return self._file


Numbers = Mapping[str, "list[int] | int"]
"""By name: a number of the whole step, or one of each layer (or kernel)."""


class MergedSteps:
    """Writes the numbers of steps: one line each, later one line with the means of several.

    Where `lists_steps`, such a line says which steps those are: of kernels there are few.
    """

    def __init__(self, file: LayerFile, lists_steps: bool = False) -> None:
        self._file, self._lists_steps = file, lists_steps
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child: the parent writes what is pending."""
        self._names: list[LayerName] = []
        self._steps: list[int] = []
        self._count = 0
        """How many steps are pending."""
        self._sums: dict[str, list[int] | int] = {}

    def add(
        self, layers: Sequence[ModelLayer], step: int, numbers: Numbers, steps: int = 1
    ) -> None:
        """A step was seen, or several with the sums of their numbers; it is written now, or
        together with the next ones."""
        if not self._steps and self._file.steps_per_line == 1:
            self._file.write(layers, _line(step, steps, numbers))
            return
        names = without_modules(layers)
        if self._steps and (names != self._names or numbers.keys() != self._sums.keys()):
            self.flush()  # a mean is of steps in which the same was measured
        if not self._steps:
            self._names, self._sums = names, dict(numbers)
        else:
            for name, value in numbers.items():
                self._sums[name] = _sum(self._sums[name], value)
        self._steps.append(step)
        self._count += steps
        if self._count >= self._file.steps_per_line:
            self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        if self._steps:
            line = _line(self._steps[0], self._count, self._sums)
            if self._lists_steps and len(self._steps) > 1:
                line["step_numbers"] = self._steps
            self._steps, self._count, self._sums = [], 0, {}
            self._file.write(self._names, line)


def _line(step: int, count: int, sums: Numbers) -> dict[str, Any]:
    """The line about so many steps, from the sums of their numbers."""
    line: dict[str, Any] = {"step": step} if count == 1 else {"step": step, "steps": count}
    for name, total in sums.items():
        if isinstance(total, int):
            line[name] = round(total / count)
        else:
            line[name] = pack(each / count for each in total)
    return line


def _sum(one: list[int] | int, other: list[int] | int) -> list[int] | int:
    """The sum of two numbers, or of two lists by place; what one of them does not have is zero."""
    if isinstance(other, int):
        return other + one if isinstance(one, int) else one
    long, short = sorted((one if isinstance(one, list) else [], other), key=len, reverse=True)
    return [value + (short[place] if place < len(short) else 0) for place, value in enumerate(long)]


def by_place(values: Mapping[int, int], count: int) -> list[int]:
    """Values of layers as a list; a layer without one has none of it."""
    return [values.get(place, 0) for place in range(count)]
