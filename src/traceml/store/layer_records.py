"""What the deep profile saw of a run's layers: read from the files that its processes wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from traceml.model.environment import LAYERS
from traceml.model.layer_names import COUNTED
from traceml.store.json_lines import decode_lines
from traceml.store.regular_files import open_regular

TIMES = ("forward", "recompute", "backward")
HELD = ("parameters", "buffers", "gradients", "optimizer", "saved", "peak")
"""What a layer holds or keeps, in bytes, as the file names it."""
MAX_BYTES = 96 << 20
"""Of the files of all processes together: about a second of reading."""
MIN_BYTES = 1 << 20
"""Of each file, however many there are."""
PIECE_BYTES, MAX_PIECES = 1 << 20, 16
"""A long file is read in pieces of about this size; a line of 2,000 layers has 80 kB."""
NOT_ALL_READ = "So many steps were looked at that only a part of them, from the whole run, is read"


class KernelTime(NamedTuple):
    """The kernels of one name in a step."""

    name: str
    calls: int
    ns: int
    layer: int
    """The place of the layer that launched most of them; -1 where none did."""


@dataclass(frozen=True, slots=True)
class KernelStep:
    """What the GPU did for one step, in nanoseconds."""

    step: int
    busy_ns: int
    """Time in which at least one kernel or copy ran."""
    kernels: int
    copies_ns: int
    communication_ns: int
    communication_alone_ns: int
    """Communication beside which nothing else ran."""
    by_kernel: tuple[KernelTime, ...]
    layer_busy_ns: npt.NDArray[np.int64]
    layer_kernels: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """A number of each layer over steps."""

    steps: tuple[int, ...] = ()
    values: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """By step and layer; NaN where a layer has none, infinity where it was not finite (infinite or
    not a number)."""


NO_NUMBERS = LayerNumbers()


class BadLayer(NamedTuple):
    """A layer whose output was found to be the first that is not finite."""

    step: int
    layer: int
    """Its place."""


@dataclass(frozen=True, slots=True)
class LayerRecords:
    """What one process wrote about its layers."""

    pid: int
    names: tuple[str, ...] = ()
    """Dotted, outer layers before what they hold; that of the model itself may be empty."""
    kinds: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    """The steps whose layers were timed."""
    calls: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """By step and layer."""
    times_ns: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """By clock and phase (`gpu_forward`), then by step and layer, each layer's own time; NaN in
    steps where it was not measured."""
    held_bytes: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """What each layer held in the last step that was looked at for it, by the names of `HELD`."""
    counted: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """Floating-point operations and bytes moved by layer, by the names of `COUNTED`, in the step
    where they were counted."""
    counted_outside: dict[str, int] = field(default_factory=dict)
    """The same of what no layer did."""
    kernels: tuple[KernelStep, ...] = ()
    """The steps in which the GPU's activity was recorded."""
    norms: LayerNumbers = NO_NUMBERS
    """The norm of each layer's own gradient before clipping, in the steps where it was measured."""
    largest: LayerNumbers = NO_NUMBERS
    """The largest absolute number that each layer returned, in the steps where it was measured."""
    scaled_steps: frozenset[int] = frozenset()
    """The steps with norms whose loss a scaler had scaled: it skips one that is not finite."""
    bad_layers: tuple[BadLayer, ...] = ()
    """By step: where the loss was not finite, and its graph was looked at."""
    of_torch: frozenset[int] = frozenset()
    """The places of layers whose class is torch's own."""
    return_order: tuple[int, ...] = ()
    """The places of the layers in the order in which they return; empty where it is not known."""
    notes: tuple[str, ...] = ()
    """Why layers were not seen, or not all of them."""


class _LayerLine(msgspec.Struct):
    """A line of the file: a set of layers, a step of one, or a note."""

    set: int = 0
    names: list[str] | None = None
    kinds: list[str] = []
    step: int | None = None
    calls: list[int] | None = None
    why: str | None = None
    host_forward_ns: list[int] | None = None
    host_recompute_ns: list[int] | None = None
    host_backward_ns: list[int] | None = None
    gpu_forward_ns: list[int] | None = None
    gpu_recompute_ns: list[int] | None = None
    gpu_backward_ns: list[int] | None = None
    parameters: list[int] | None = None
    buffers: list[int] | None = None
    gradients: list[int] | None = None
    optimizer: list[int] | None = None
    saved: list[int] | None = None
    peak: list[int] | None = None
    forward_flops: list[int] | None = None
    backward_flops: list[int] | None = None
    forward_bytes: list[int] | None = None
    backward_bytes: list[int] | None = None
    outside_forward_flops: int = 0
    outside_backward_flops: int = 0
    outside_forward_bytes: int = 0
    outside_backward_bytes: int = 0
    busy_ns: int | None = None
    kernels: int = 0
    copies_ns: int = 0
    communication_ns: int = 0
    communication_alone_ns: int = 0
    by_kernel: list[tuple[str, int, int, int]] = []
    layer_busy_ns: list[int] = []
    layer_kernels: list[int] = []
    norms: list[float | None] | None = None
    largest: list[float | None] | None = None
    returned: list[int] | None = None
    is_scaled: bool = False
    bad_layer: int | None = None
    of_torch: list[int] = []


_decoder = msgspec.json.Decoder(_LayerLine)
_ROWS = (
    "calls",
    *(f"{clock}_{phase}_ns" for clock in ("host", "gpu") for phase in TIMES),
    *HELD,
    *COUNTED,
    "layer_busy_ns",
    "layer_kernels",
)
"""The fields of a line that have a number per layer."""


def layer_files(folder: Path) -> list[Path]:
    """Returns the files of a run's processes; empty where it had no deep profile."""
    return sorted(folder.glob(LAYERS.format(pid="*")))


def read_layers(folder: Path) -> tuple[LayerRecords, ...]:
    """Returns what each process wrote; empty where the run had no deep profile.

    Of files that are large together, pieces are read that are spread over the run.
    """
    paths = layer_files(folder)
    return tuple(read_layer_file(path, len(paths)) for path in paths)


def read_layer_file(path: Path, files: int) -> LayerRecords:
    """Returns what one process wrote; `files` is how many there are, which share `MAX_BYTES`."""
    pid = path.stem.rpartition("-")[2]
    lines: list[_LayerLine] = []
    left_out = 0
    try:
        content, left_out = read_spread(path, max(MAX_BYTES // max(files, 1), MIN_BYTES))
        for line in decode_lines(content.splitlines(), _decoder):
            lines.append(_packed(line))
    except OSError:
        pass  # gone, or no file: nothing is known of that process
    found = max(_sets(lines), key=lambda each: len(each[1]), default=None)
    notes = tuple(line.why for line in lines if line.why is not None)
    if left_out:
        notes = (*notes, NOT_ALL_READ)
    number = int(pid) if pid.isascii() and pid.isdigit() else 0
    if found is None:
        return LayerRecords(number, notes=notes)
    names, of_set = found
    return _of_set(number, names, of_set, notes)


def _packed(line: _LayerLine) -> _LayerLine:
    """Returns a line whose numbers take an eighth of the memory."""
    for name in _ROWS:
        if (row := getattr(line, name)) is not None:
            setattr(line, name, np.asarray(row, np.int64))
    return line


def read_spread(path: Path, max_bytes: int) -> tuple[bytes, int]:
    """Returns whole lines of a file of at most so many bytes, and how many bytes are left out.

    Of a longer file that is its beginning, its end, and pieces in between, equally far apart.
    Raises OSError.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            return file.read(max_bytes), 0
        pieces = min(max(max_bytes // PIECE_BYTES, 2), MAX_PIECES)
        length = max_bytes // pieces
        found = []
        for place in range(pieces):
            begin = (size - length) * place // (pieces - 1)
            file.seek(begin)
            piece = file.read(length)
            if begin:
                piece = piece.partition(b"\n")[2]  # the line that it begins in is not whole
            found.append(piece[: piece.rfind(b"\n") + 1])
        content = b"".join(found)
        return content, size - len(content)


def _sets(lines: Sequence[_LayerLine]) -> Iterator[tuple[_LayerLine, list[_LayerLine]]]:
    """Yields each set of layers and the lines about it; a model that changes has several."""
    steps: dict[int, list[_LayerLine]] = {}
    for line in lines:
        if line.step is not None:
            steps.setdefault(line.set, []).append(line)
    for head in lines:
        if head.names is not None and len(head.kinds) == len(head.names):
            yield head, steps.get(head.set, [])


def _of_set(
    pid: int, head: _LayerLine, lines: Sequence[_LayerLine], notes: tuple[str, ...]
) -> LayerRecords:
    names = tuple(head.names or ())
    count = len(names)
    timed = [line for line in lines if line.calls is not None and len(line.calls) == count]
    times = {}
    for clock in ("host", "gpu"):
        for phase in TIMES:
            rows = [getattr(line, f"{clock}_{phase}_ns") for line in timed]
            if any(_fits(row, count) for row in rows):
                times[f"{clock}_{phase}"] = _table(rows, count)
    held = {}
    for name in HELD:
        known = [row for line in lines if _fits(row := getattr(line, name), count)]
        if known:
            held[name] = np.asarray(known[-1], np.int64)
    return LayerRecords(
        pid=pid,
        names=names,
        kinds=tuple(head.kinds),
        steps=tuple(line.step or 0 for line in timed),
        calls=np.asarray([line.calls for line in timed], np.int64).reshape(len(timed), count),
        times_ns=times,
        held_bytes=held,
        counted={
            name: np.asarray(getattr(line, name), np.int64)
            for line in lines
            for name in COUNTED
            if _fits(getattr(line, name), count)
        },
        counted_outside={
            name: getattr(line, f"outside_{name}")
            for line in lines
            for name in COUNTED
            if _fits(getattr(line, name), count)
        },
        kernels=tuple(_kernel_steps(lines, count)),
        norms=_numbers(lines, "norms", count),
        largest=_numbers(lines, "largest", count),
        scaled_steps=frozenset(line.step or 0 for line in lines if line.is_scaled),
        bad_layers=tuple(
            BadLayer(line.step or 0, line.bad_layer)
            for line in lines
            if line.bad_layer is not None and 0 <= line.bad_layer < count
        ),
        of_torch=frozenset(head.of_torch),
        return_order=_return_order(lines, count),
        notes=notes,
    )


def _kernel_steps(lines: Sequence[_LayerLine], count: int) -> Iterator[KernelStep]:
    for line in lines:
        layers = (line.layer_busy_ns, line.layer_kernels)
        if line.busy_ns is not None and all(_fits(each, count) for each in layers):
            yield KernelStep(
                step=line.step or 0,
                busy_ns=line.busy_ns,
                kernels=line.kernels,
                copies_ns=line.copies_ns,
                communication_ns=line.communication_ns,
                communication_alone_ns=line.communication_alone_ns,
                by_kernel=tuple(KernelTime(*each) for each in line.by_kernel),
                layer_busy_ns=np.asarray(line.layer_busy_ns, np.int64),
                layer_kernels=np.asarray(line.layer_kernels, np.int64),
            )


def _numbers(lines: Sequence[_LayerLine], name: str, count: int) -> LayerNumbers:
    """Returns a number of each layer by step; of several lines about one step, the last."""
    rows = {
        line.step or 0: row for line in lines if _fits(row := getattr(line, name), count) and row
    }
    if not rows:
        return NO_NUMBERS
    steps = tuple(sorted(rows))
    values = np.array([rows[step] for step in steps], np.float64)  # `None` becomes NaN
    values[values < 0] = np.inf
    return LayerNumbers(steps, values)


def _return_order(lines: Sequence[_LayerLine], count: int) -> tuple[int, ...]:
    found = [line.returned for line in lines if line.returned]
    return tuple(place for place in found[-1] if 0 <= place < count) if found else ()


def _fits(row: Any, count: int) -> bool:
    return row is not None and len(row) == count


def _table(rows: Sequence[list[int] | None], count: int) -> npt.NDArray[np.float64]:
    table = np.full((len(rows), count), np.nan)
    for number, row in enumerate(rows):
        if row is not None and len(row) == count:
            table[number] = row
    return table
