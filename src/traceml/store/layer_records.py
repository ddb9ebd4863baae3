"""What the deep profile saw of a run's layers: read from the files that its processes wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from traceml.model.environment import LAYERS
from traceml.model.layer_names import COUNTED, PHASES
from traceml.model.packed_times import MAX_CODE, STEPS_PER_E, unpack_codes
from traceml.store.json_lines import decode_lines
from traceml.store.layer_sets import LayerSet, note_on_end, note_on_others
from traceml.store.regular_files import open_regular

CLOCKS = ("host", "gpu")
TIMES = ("forward", "recompute", "backward")
COMMUNICATION = "communication"
"""Waiting for other ranks, which is in none of these times."""
HELD = ("parameters", "buffers", "gradients", "optimizer", "saved", "peak", "reached")
"""What a layer holds or keeps, in bytes, as the file names it."""
MAX_BYTES = 64 << 20
"""Of the files of all processes together: about a second of reading, and 300 MB of memory."""
MIN_BYTES = 1 << 20
"""Of each file, however many there are."""
PIECE_BYTES, MAX_PIECES = 1 << 20, 16
"""A long file is read in pieces of about this size; a line of 2,000 layers has 80 kB."""
NOT_ALL_READ = "So many steps were looked at that only a part of them, from the whole run, is read"

NOT_OF_THESE = "the model had other layers in the step that was counted"


class KernelTime(NamedTuple):
    """The kernels of one name in a step."""

    name: str
    calls: int
    ns: int
    layer: int
    """The place of the layer that launched most of them; -1 where none did."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The kernels of a run by name and by the layer that launches them; the steps that follow it in
    the file share it."""

    names: tuple[str, ...] = ()
    layers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Places of layers; -1 where none did."""


@dataclass(frozen=True, slots=True)
class KernelStep:
    """What the GPU did for one step, in nanoseconds; of several steps the means."""

    step: int
    busy_ns: int
    """Time in which at least one kernel or copy ran."""
    kernels: int
    copies_ns: int
    communication_ns: int
    communication_alone_ns: int
    """Communication beside which nothing else ran."""
    launches: Launches
    calls: npt.NDArray[np.float64]
    ns: npt.NDArray[np.float64]
    """How often each of the launches ran, and how long in all."""
    layer_busy_ns: npt.NDArray[np.int64]
    layer_kernels: npt.NDArray[np.int64]
    steps: int = 1
    """How many steps these are the means of …"""
    numbers: tuple[int, ...] = ()
    """… and which ones, where there are several; empty in files of older versions."""
    copies_alone_ns: int | None = None
    """Copies and fills beside which nothing else ran; `None` in files of older versions, which have
    the sum of all copies, also of those at the same time, as `copies_ns`."""

    @property
    def by_kernel(self) -> tuple[KernelTime, ...]:
        """The kernels that ran in the step."""
        return tuple(
            KernelTime(self.launches.names[n], round(self.calls[n]), round(self.ns[n]), layer)
            for n, layer in enumerate(self.launches.layers.tolist())
            if self.calls[n]
        )


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """A number of each layer over steps."""

    steps: tuple[int, ...] = ()
    values: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """By step and layer; NaN where a layer has none, infinity where it was not finite (infinite or
    not a number)."""


NO_NUMBERS = LayerNumbers()


class GrownLayer(NamedTuple):
    """A layer that holds more memory by itself than when it was first looked at."""

    step: int
    since: int
    """The step of that first look."""
    name: str
    kind: str
    more_bytes: int
    attribute: str | None
    """The attribute that holds the most, beside parameters and buffers; `None` where none does."""
    added: int
    """How many layers were added to it since."""


class OutlivedLayer(NamedTuple):
    """A layer of whose outputs some were still there, steps after the one that made them."""

    step: int
    since: int
    """The step that made them."""
    name: str
    kind: str
    left_bytes: int
    """Zero where nothing was left any more of what had been left before."""


class BadLayer(NamedTuple):
    """A layer whose output was found to be the first that is not finite."""

    step: int
    layer: int
    """Its place."""
    others: tuple[int, ...] = ()
    """The places of further layers that are as likely to be it."""
    or_loss: bool = False
    """Whether the loss function is, too."""


class BadLoss(NamedTuple):
    """A loss that was not finite, of which no layer is known to have made it so."""

    step: int
    is_packed: bool = False
    """Whether that is because a hook had packed what layers save, or hid the layers."""


class BadParameters(NamedTuple):
    """The layers whose parameters were not finite after a step whose loss was finite."""

    step: int
    layers: tuple[int, ...]
    """Their places."""
    is_within_step: bool = False
    """Whether a later loss of that very step was not finite: then its gradients do not tell the
    cause."""


@dataclass(frozen=True, slots=True)
class LayerRecords:
    """What one process wrote about its layers."""

    pid: int
    names: tuple[str, ...] = ()
    """Dotted, outer layers before what they hold; that of the model itself may be empty."""
    kinds: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    """The steps whose layers were timed; of several steps in one row the first."""
    row_steps: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """How many steps each row is the mean of; empty where every row is one step."""
    took_ns: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    usual_ns: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """By row: how long the step took that was timed, and how long steps usually took just before;
    NaN where that is not known."""
    given_elements: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """By row: how many elements the models were called with, of each call the first tensor's; NaN
    where that is not known, empty where it is of no row."""
    calls: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """By step and layer."""
    times_ns: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """By clock and phase (`gpu_forward`), then by step and layer, each layer's own time, and how
    long it waited for other ranks beside that (`gpu_communication`); NaN in steps where it was not
    measured."""
    outside_ns: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """By clock and phase, then by step: what of the whole phase, or of waiting for other ranks, lay
    in no layer, in those very steps; NaN where the phase was not seen as a whole."""
    held_bytes: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """What each layer held in the last step that was looked at for it, by the names of `HELD`; NaN
    where that was not measured: what a hook packs for backward, and a peak that is below an earlier
    one."""
    input_elements: int | None = None
    """Of the first tensor that the model was called with in the step whose `saved` is in
    `held_bytes`; `None` where that is not known."""
    counted: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """Floating-point operations and bytes moved by layer, by the names of `COUNTED`, in the last
    step where they were counted."""
    counted_outside: dict[str, int] = field(default_factory=dict)
    """The same of what no layer did."""
    counted_step: int | None = None
    """That step; `None` where none was counted."""
    counted_elements: int | None = None
    """How many elements the models were called with in that step, as in `given_elements`."""
    uncounted: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Operations in that step which nobody could count, by name (`aten::_linalg_svd`), with the
    places of the layers that did them; -1 where none did."""
    kernels: tuple[KernelStep, ...] = ()
    """The steps in which the GPU's activity was recorded."""
    norms: LayerNumbers = NO_NUMBERS
    """The norm of each layer's own gradient before clipping, in the steps where it was measured."""
    largest: LayerNumbers = NO_NUMBERS
    """The largest absolute number that each layer returned, in the steps where it was measured."""
    looked_at: tuple[int, ...] = ()
    """The steps of this process that were looked at for more than norms; of several steps in one
    row only the first, unless the row names them."""
    scaled_steps: frozenset[int] = frozenset()
    """The steps with norms whose loss a scaler had scaled: it skips one that is not finite."""
    bad_layers: tuple[BadLayer, ...] = ()
    """By step: where the loss was not finite, and its graph was looked at."""
    grown: tuple[GrownLayer, ...] = ()
    """What has grown, in the order of steps; of whichever layers the model had at that step."""
    outlived: tuple[OutlivedLayer, ...] = ()
    """Whose outputs outlived their step, in the order of steps."""
    bad_inputs: tuple[int, ...] = ()
    """The steps in which what the model was given was not finite."""
    bad_losses: tuple[BadLoss, ...] = ()
    """The steps whose loss was not finite, and of which no more is known."""
    bad_parameters: tuple[BadParameters, ...] = ()
    """The steps after which parameters were not finite."""
    of_library: frozenset[int] = frozenset()
    """The places of layers whose class is torch's or another installed package's."""
    compiled: frozenset[int] = frozenset()
    """The places of layers that were called as compiled code: what they hold is not seen."""
    calls_compiled: frozenset[int] = frozenset()
    """The places of layers that called compiled functions, which are a part of their own time."""
    return_order: tuple[int, ...] = ()
    """The places of the layers in the order in which they return; empty where it is not known."""
    others_at_end: LayerRecords | None = None
    """The same of the layers that the model had at the end, where those are others; `None` where
    they are these."""
    notes: tuple[str, ...] = ()
    """Why layers were not seen, or not all of them."""
    why_uncounted: str | None = None
    """Why floating-point operations were not counted; `None` where they were, or nobody knows."""
    stated_peaks: str | None = None
    """What the device can do at most, as people stated it; `None` where they did not."""

    @property
    def at_end(self) -> LayerRecords:
        """The records of the layers that the model had at the end."""
        others = self.others_at_end
        return self if others is None else replace(others, pid=self.pid)


Numbers: TypeAlias = list[int] | str | None
"""A number per layer: as a list, or packed (`model/packed_times.py`)."""


class _LayerLine(msgspec.Struct):
    """A line of the file: a set of layers, a step of one, or a note."""

    set: int = 0
    names: list[str] | None = None
    kinds: list[str] = []
    step: int | None = None
    steps: int = 1
    step_numbers: list[int] = []
    calls: Numbers = None
    took_ns: int | None = None
    usual_ns: int | None = None
    why: str | None = None
    why_uncounted: str | None = None
    stated_peaks: str | None = None
    host_forward_ns: Numbers = None
    host_recompute_ns: Numbers = None
    host_backward_ns: Numbers = None
    host_communication_ns: Numbers = None
    gpu_forward_ns: Numbers = None
    gpu_recompute_ns: Numbers = None
    gpu_backward_ns: Numbers = None
    gpu_communication_ns: Numbers = None
    host_forward_outside_ns: int | None = None
    host_backward_outside_ns: int | None = None
    host_communication_outside_ns: int | None = None
    gpu_forward_outside_ns: int | None = None
    gpu_backward_outside_ns: int | None = None
    gpu_communication_outside_ns: int | None = None
    parameters: Numbers = None
    buffers: Numbers = None
    gradients: Numbers = None
    optimizer: Numbers = None
    saved: Numbers = None
    peak: Numbers = None
    reached: Numbers = None
    input_elements: int | None = None
    given_elements: int | None = None
    forward_flops: Numbers = None
    recompute_flops: Numbers = None
    backward_flops: Numbers = None
    forward_bytes: Numbers = None
    recompute_bytes: Numbers = None
    backward_bytes: Numbers = None
    outside_forward_flops: int = 0
    outside_recompute_flops: int = 0
    outside_backward_flops: int = 0
    outside_forward_bytes: int = 0
    outside_recompute_bytes: int = 0
    outside_backward_bytes: int = 0
    uncounted: dict[str, list[int]] = {}
    busy_ns: int | None = None
    kernels: int = 0
    copies_ns: int = 0
    copies_alone_ns: int | None = None
    communication_ns: int = 0
    communication_alone_ns: int = 0
    by_kernel: list[tuple[str, int, int, int]] = []
    layer_busy_ns: Numbers = None
    layer_kernels: Numbers = None
    launches_from: int | None = None
    kernel_names: list[str] = []
    launches: list[tuple[int, int]] = []
    launch_calls: Numbers = None
    launch_ns: Numbers = None
    norms: list[float | None] | None = None
    largest: list[float | None] | None = None
    returned: list[int] | None = None
    is_scaled: bool = False
    bad_layer: int | None = None
    bad_layer_or: list[int] = []
    or_loss: bool = False
    compiled: list[int] = []
    calls_compiled: list[int] = []
    has_bad_inputs: bool = False
    has_bad_loss: bool = False
    is_packed: bool = False
    bad_parameters: list[int] = []
    is_within_step: bool = False
    since: int = 0
    grown: list[tuple[int, int, str | None, int]] = []
    outlived: list[tuple[int, int]] = []
    of_library: list[int] = []


_decoder = msgspec.json.Decoder(_LayerLine)
_ROWS = (
    "calls",
    *(f"{clock}_{phase}_ns" for clock in CLOCKS for phase in (*TIMES, COMMUNICATION)),
    *HELD,
    *COUNTED,
    "layer_busy_ns",
    "layer_kernels",
    "launch_calls",
    "launch_ns",
)
"""The fields of a line that have a number per layer, or per kernel."""


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
    return LayerFileReader(path).read(files)


class LayerFileReader:
    """Reads one process's file, and each time again only what was added since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._lines: list[_LayerLine] = []
        self._read_bytes = 0

    def read(self, files: int) -> LayerRecords:
        """Returns what the process has written; `files` is how many there are, which share
        `MAX_BYTES`."""
        max_bytes = max(MAX_BYTES // max(files, 1), MIN_BYTES)
        try:
            is_whole = self._add_lines(max_bytes)
            lines, left_out = self._lines, 0
            if not is_whole:
                content, left_out = read_spread(self._path, max_bytes)
                lines = list(_read_lines(content))
        except OSError:  # gone, or no file: nothing is known of that process
            lines, left_out = [], 0
        return _records_of(self._path, lines, bool(left_out))

    def _add_lines(self, max_bytes: int) -> bool:
        """Reads the lines that were added; returns whether the file is short enough for that."""
        with os.fdopen(open_regular(self._path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._read_bytes or size > max_bytes:
                self._forget()
            if size > max_bytes:
                return False
            file.seek(self._read_bytes)
            content = file.read(size - self._read_bytes)
        content = content[: content.rfind(b"\n") + 1]  # the rest is still being written
        self._lines += _read_lines(content)
        self._read_bytes += len(content)
        return True


def _records_of(path: Path, lines: Sequence[_LayerLine], is_a_part: bool) -> LayerRecords:
    """Returns the records of the set of layers that most timed steps had, and with them those of
    the set at the end, where that is another one."""
    pid = path.stem.rpartition("-")[2]
    number = int(pid) if pid.isascii() and pid.isdigit() else 0
    notes = tuple(line.why for line in lines if line.why is not None)
    if is_a_part:
        notes = (*notes, NOT_ALL_READ)
    sets = [each for each in _sets(lines) if each[1]]
    if not sets:
        return LayerRecords(number, notes=notes)
    about = [_layer_set(*each) for each in sets]
    chosen = max(range(len(sets)), key=lambda place: about[place].rank)
    at_end = max(range(len(sets)), key=lambda place: _last_look(sets[place][1]))
    others = [each for place, each in enumerate(about) if place != chosen]
    said = note_on_others(about[chosen], others), note_on_end(about[chosen], about[at_end])
    return replace(
        _of_set(number, *sets[chosen], (*notes, *filter(None, said))),
        looked_at=tuple(step for line in lines if _is_look(line) for step in _named_steps(line)),
        others_at_end=None if at_end == chosen else _of_set(number, *sets[at_end], ()),
        why_uncounted=_why_uncounted(lines, sets[chosen][1]),
        stated_peaks=next((line.stated_peaks for line in lines if line.stated_peaks), None),
        grown=tuple(_grown(lines)),
        outlived=tuple(_outlived(lines)),
    )


def _is_look(line: _LayerLine) -> bool:
    """Whether a line is about a step that was looked at for more than norms."""
    seen = (line.calls, line.parameters, line.largest, line.forward_flops, line.busy_ns)
    return any(each is not None for each in seen)


def _named_steps(line: _LayerLine) -> Sequence[int]:
    return line.step_numbers or ([] if line.step is None else [line.step])


def _why_uncounted(lines: Sequence[_LayerLine], of_set: Sequence[_LayerLine]) -> str | None:
    """Returns why no operations of a set of layers were counted; `None` where they were, or nobody
    said why."""
    if any(line.forward_flops is not None for line in of_set):
        return None
    said = next((line.why_uncounted for line in lines if line.why_uncounted), None)
    is_of_others = any(line.forward_flops is not None for line in lines)
    return said or (NOT_OF_THESE if is_of_others else None)


def _last_look(lines: Sequence[_LayerLine]) -> int:
    """Returns the last step in which the model that trained was looked at. Lines about modules that
    hold more memory do not count: they may be about models that do not train."""
    looks = (line for line in lines if not line.grown and not line.outlived)
    return max((line.step or 0 for line in looks), default=0)


def _layer_set(head: _LayerLine, lines: Sequence[_LayerLine]) -> LayerSet:
    timed = [line for line in lines if _fits(line.calls, len(head.names or ()))]
    return LayerSet(
        names=tuple(head.names or ()),
        kinds=tuple(head.kinds),
        timed=tuple(line.step or 0 for line in timed),
        steps=sum(map(_steps_of, timed)),
        lines=len(lines),
    )


def _read_lines(content: bytes) -> Iterator[_LayerLine]:
    """Yields the lines, with their numbers as arrays; one that is damaged is left out."""
    for line in decode_lines(content.splitlines(), _decoder):
        try:
            for name in _ROWS:
                if (row := getattr(line, name)) is not None:
                    setattr(line, name, _array(row))
        except ValueError:
            continue
        yield line


def _array(row: list[int] | str) -> npt.NDArray[np.int64]:
    """Returns numbers of layers; raises ValueError where they are damaged."""
    if isinstance(row, str):
        decoded: npt.NDArray[np.int64] = _DECODED[np.frombuffer(unpack_codes(row), "<u2")]
        return decoded
    return np.asarray(row, np.int64)


_CODES = np.arange(MAX_CODE + 1)
_DECODED = np.where(_CODES > 0, np.exp((_CODES - 1) / STEPS_PER_E), 0.0).round().astype(np.int64)
"""The number that each code of a packed list stands for."""


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
        if line.step is not None or line.launches_from is not None:
            steps.setdefault(line.set, []).append(line)
    for head in lines:
        if head.names is not None and len(head.kinds) == len(head.names):
            yield head, steps.get(head.set, [])


def _steps_of(line: _LayerLine) -> int:
    return max(line.steps, 1)


def _of_set(
    pid: int, head: _LayerLine, lines: Sequence[_LayerLine], notes: tuple[str, ...]
) -> LayerRecords:
    names = tuple(head.names or ())
    count = len(names)
    timed = [line for line in lines if line.calls is not None and len(line.calls) == count]
    given = _column([line.given_elements for line in timed])
    outside = {
        f"{clock}_{phase}": _column(
            [getattr(line, f"{clock}_{phase}_outside_ns") for line in timed]
        )
        for clock in CLOCKS
        for phase in (*PHASES, COMMUNICATION)
    }
    found = LayerRecords(
        pid=pid,
        names=names,
        kinds=tuple(head.kinds),
        steps=tuple(line.step or 0 for line in timed),
        row_steps=np.array([_steps_of(line) for line in timed], np.int64),
        took_ns=_column([line.took_ns for line in timed]),
        usual_ns=_column([line.usual_ns for line in timed]),
        given_elements=given if np.isfinite(given).any() else np.zeros(0),
        calls=np.asarray([line.calls for line in timed], np.int64).reshape(len(timed), count),
        times_ns=_times_of_layers(timed, count),
        outside_ns=outside,
        held_bytes=_held_by_layers(lines, count),
        input_elements=_input_elements(lines, count),
        kernels=tuple(_kernel_steps(lines, count)),
        norms=_numbers(lines, "norms", count),
        largest=_numbers(lines, "largest", count),
        scaled_steps=frozenset(line.step or 0 for line in lines if line.is_scaled),
        bad_layers=tuple(
            BadLayer(
                line.step or 0,
                line.bad_layer,
                tuple(place for place in line.bad_layer_or if 0 <= place < count),
                line.or_loss,
            )
            for line in lines
            if line.bad_layer is not None and 0 <= line.bad_layer < count
        ),
        bad_inputs=tuple(line.step or 0 for line in lines if line.has_bad_inputs),
        bad_losses=tuple(
            BadLoss(line.step or 0, line.is_packed) for line in lines if line.has_bad_loss
        ),
        bad_parameters=tuple(
            BadParameters(line.step or 0, tuple(line.bad_parameters), line.is_within_step)
            for line in lines
            if line.bad_parameters and all(0 <= place < count for place in line.bad_parameters)
        ),
        of_library=frozenset(head.of_library),
        compiled=_places(lines, "compiled", count),
        calls_compiled=_places(lines, "calls_compiled", count),
        return_order=_return_order(lines, count),
        notes=notes,
    )
    return _with_counted(found, lines)


def _with_counted(records: LayerRecords, lines: Sequence[_LayerLine]) -> LayerRecords:
    """Returns the records with what was counted in the last step where something was."""
    count = len(records.names)
    line = next((each for each in reversed(lines) if _fits(each.forward_flops, count)), None)
    if line is None:
        return records
    names = [name for name in COUNTED if _fits(getattr(line, name), count)]
    return replace(
        records,
        counted={name: np.asarray(getattr(line, name), np.int64) for name in names},
        counted_outside={name: getattr(line, f"outside_{name}") for name in names},
        counted_step=line.step,
        counted_elements=line.given_elements,
        uncounted={
            name: tuple(place for place in places if -1 <= place < count)
            for name, places in line.uncounted.items()
        },
    )


def _times_of_layers(timed: Sequence[_LayerLine], count: int) -> dict[str, npt.NDArray[np.float64]]:
    """Returns the times of each layer in each timed step, by clock and phase."""
    found = {}
    for clock in CLOCKS:
        for phase in (*TIMES, COMMUNICATION):
            rows = [getattr(line, f"{clock}_{phase}_ns") for line in timed]
            if any(_fits(row, count) for row in rows):
                found[f"{clock}_{phase}"] = _table(rows, count)
    return found


def _held_by_layers(lines: Sequence[_LayerLine], count: int) -> dict[str, npt.NDArray[np.float64]]:
    """Returns the memory of each layer when that was last looked at, by its kind."""
    found = {}
    for name in HELD:
        known = [row for line in lines if _fits(row := getattr(line, name), count)]
        if known:
            found[name] = np.where(known[-1] < 0, np.nan, known[-1])
    return found


def _input_elements(lines: Sequence[_LayerLine], count: int) -> int | None:
    """Returns how much the model was given in the last step of which it is known what it kept."""
    known = [line.input_elements for line in lines if _fits(line.saved, count)]
    return known[-1] or None if known else None


def _grown(lines: Sequence[_LayerLine]) -> Iterator[GrownLayer]:
    """Yields what has grown, whichever set of layers it is of."""
    for line, layers in _with_layers(lines):
        for place, more, attribute, added in line.grown:
            if 0 <= place < len(layers):
                found = line.step or 0, line.since, *layers[place]
                yield GrownLayer(*found, more, attribute, added)


def _outlived(lines: Sequence[_LayerLine]) -> Iterator[OutlivedLayer]:
    for line, layers in _with_layers(lines):
        for place, left in line.outlived:
            if 0 <= place < len(layers):
                yield OutlivedLayer(line.step or 0, line.since, *layers[place], left)


def _with_layers(
    lines: Sequence[_LayerLine],
) -> Iterator[tuple[_LayerLine, list[tuple[str, str]]]]:
    """Yields the lines of steps, each with the names and classes of its layers."""
    layers = {
        line.set: list(zip(line.names, line.kinds, strict=False))
        for line in lines
        if line.names is not None
    }
    for line in lines:
        if line.step is not None and line.set in layers:
            yield line, layers[line.set]


def _kernel_steps(lines: Sequence[_LayerLine], count: int) -> Iterator[KernelStep]:
    """Yields the steps with kernels; a table of launches holds for the steps that follow it."""
    known: Launches | None = None
    for line in lines:
        if line.launches_from is not None:
            known = _extended(known, line, count)
        elif line.busy_ns is not None:
            launches, calls, ns = _launched(line, known, count)
            busy: Any = line.layer_busy_ns
            kernels: Any = line.layer_kernels
            if busy is None and kernels is None:
                busy, kernels = _sums(launches, ns, count), _sums(launches, calls, count)
            if _fits(busy, count) and _fits(kernels, count):
                yield KernelStep(
                    step=line.step or 0,
                    busy_ns=line.busy_ns,
                    kernels=line.kernels,
                    copies_ns=line.copies_ns,
                    communication_ns=line.communication_ns,
                    communication_alone_ns=line.communication_alone_ns,
                    launches=launches,
                    calls=calls,
                    ns=ns,
                    layer_busy_ns=np.asarray(busy, np.int64),
                    layer_kernels=np.asarray(kernels, np.int64),
                    steps=_steps_of(line),
                    numbers=tuple(line.step_numbers),
                    copies_alone_ns=line.copies_alone_ns,
                )


def _extended(known: Launches | None, line: _LayerLine, count: int) -> Launches | None:
    """Returns the table with the launches of a line; `None` where lines before it are missing."""
    if line.launches_from == 0:
        known = Launches()
    if known is None or line.launches_from != len(known.names):
        return None
    names, layers = len(line.kernel_names), [layer for _, layer in line.launches]
    if any(not 0 <= name < names or not -1 <= layer < count for name, layer in line.launches):
        return None
    return Launches(
        (*known.names, *(line.kernel_names[name] for name, _ in line.launches)),
        np.concatenate([known.layers, np.array(layers, np.int64)]),
    )


def _launched(
    line: _LayerLine, known: Launches | None, count: int
) -> tuple[Launches, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the kernels of a step, how often and how long; none where its table is not known."""
    if line.by_kernel:  # as it was written before there was a table
        names, calls, ns, layers = zip(*line.by_kernel, strict=True)
        places = [layer if 0 <= layer < count else -1 for layer in layers]
        return (
            Launches(names, np.array(places, np.int64)),
            np.array(calls, float),
            np.array(ns, float),
        )
    calls_row, ns_row = line.launch_calls, line.launch_ns
    if known is None or calls_row is None or ns_row is None:
        return Launches(), np.zeros(0), np.zeros(0)
    size = len(known.names)
    if len(calls_row) != len(ns_row) or len(calls_row) > size:
        return Launches(), np.zeros(0), np.zeros(0)
    calls_all, ns_all = np.zeros(size), np.zeros(size)  # later steps may have more kernels
    calls_all[: len(calls_row)], ns_all[: len(ns_row)] = calls_row, ns_row
    return known, calls_all, ns_all


def _sums(
    launches: Launches, values: npt.NDArray[np.float64], count: int
) -> npt.NDArray[np.int64] | None:
    """Returns the sums of a number of kernels by layer; `None` where no kernel is known."""
    if not launches.names:
        return None
    sums = np.bincount(launches.layers + 1, weights=values, minlength=count + 1)[1:]
    rounded: npt.NDArray[np.int64] = sums.round().astype(np.int64)
    return rounded


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


def _places(lines: Sequence[_LayerLine], name: str, count: int) -> frozenset[int]:
    """Returns the layers that any line names under this name."""
    return frozenset(place for line in lines for place in getattr(line, name) if 0 <= place < count)


def _return_order(lines: Sequence[_LayerLine], count: int) -> tuple[int, ...]:
    found = [line.returned for line in lines if line.returned]
    return tuple(place for place in found[-1] if 0 <= place < count) if found else ()


def _fits(row: Any, count: int) -> bool:
    return row is not None and len(row) == count


def _column(values: Sequence[int | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _table(rows: Sequence[list[int] | None], count: int) -> npt.NDArray[np.float64]:
    table = np.full((len(rows), count), np.nan)
    for number, row in enumerate(rows):
        if row is not None and len(row) == count:
            table[number] = row
    return table
