"""The stack samples of the training threads on disk: a JSON object per burst."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from traceml.model.phase import BETWEEN, Phase
from traceml.model.sample import LOADER_WORKERS, OTHER_THREADS, OUTSIDE_STEPS, StackBurst
from traceml.store.folder import write_atomically
from traceml.store.json_lines import decode_lines
from traceml.store.line_files import append_lines
from traceml.store.regular_files import read_regular, stat_regular

FILE_NAME = "stack_samples.jsonl"
MAX_BURSTS = 256
MAX_BYTES = 8 << 20
"""Beyond either, every second burst is dropped: what is left is spread over the whole run."""

_PHASES = {
    BETWEEN,
    OTHER_THREADS,
    LOADER_WORKERS,
    *OUTSIDE_STEPS,
    *(phase.value for phase in Phase),
}

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StackBurst)


class StackSampleFile:
    """The bursts of one node, appended as they come, limited in number and size."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._count = len(read_stack_samples(folder))
        self.stride = 1
        """Of so many bursts one is left of the time before."""

    def append(self, burst: StackBurst) -> None:
        """Appends one burst; drops every second one first where there would be too many."""
        line = _encoder.encode(burst) + b"\n"
        found = stat_regular(self._path)
        size_bytes = len(line) + (0 if found is None else found.st_size)
        if self._count >= MAX_BURSTS or (self._count > 1 and size_bytes > MAX_BYTES):
            self._thin()
        append_lines(self._path, line)
        self._count += 1

    def _thin(self) -> None:
        kept = read_stack_samples(self._folder)[::2]
        lines = b"".join(_encoder.encode(burst) + b"\n" for burst in kept)
        write_atomically(self._path, lines)
        self._count = len(kept)
        self.stride *= 2


def read_stack_samples(folder: Path) -> tuple[StackBurst, ...]:
    """Returns all bursts of a run, in order; a half line of a killed agent is skipped."""
    try:
        lines = read_regular(folder / FILE_NAME).splitlines()
    except OSError:
        return ()
    return tuple(map(_with_sound_samples, decode_lines(lines, _decoder)))


def _with_sound_samples(burst: StackBurst) -> StackBurst:
    """Returns the burst without what a damaged file or a newer TraceML may have: empty samples,
    unknown phases, stacks that are not there."""
    frames = len(burst.frames)
    stacks = tuple(
        each if all(0 <= place < frames for place in each) else () for each in burst.stacks
    )
    known = tuple(
        each if each.stack is None or 0 <= each.stack < len(stacks) else replace(each, stack=None)
        for each in burst.samples
        if each.phase in _PHASES and each.looks > 0
    )
    return replace(burst, samples=known, stacks=stacks)
