"""The stack samples of the training threads on disk: a JSON object per burst."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from traceml.model.phase import BETWEEN, Phase
from traceml.model.sample import StackBurst
from traceml.store.json_lines import decode_lines
from traceml.store.line_files import append_lines
from traceml.store.regular_files import read_regular

FILE_NAME = "stack_samples.jsonl"
MAX_BURSTS = 256
"""A few megabytes at most: the agent samples less and less often."""

_PHASES = {BETWEEN, *(phase.value for phase in Phase)}

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StackBurst)


class StackSampleFile:
    """The bursts of one node, appended as they come, limited in number."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._count = len(read_stack_samples(folder))

    @property
    def is_full(self) -> bool:
        """Whether no more are kept."""
        return self._count >= MAX_BURSTS

    def append(self, burst: StackBurst) -> None:
        """Appends one burst."""
        if not self.is_full:
            append_lines(self._path, _encoder.encode(burst) + b"\n")
            self._count += 1


def read_stack_samples(folder: Path) -> tuple[StackBurst, ...]:
    """Returns all bursts of a run, in order; a half line of a killed agent is skipped."""
    try:
        lines = read_regular(folder / FILE_NAME).splitlines()
    except OSError:
        return ()
    return tuple(map(_with_sound_samples, decode_lines(lines, _decoder)))


def _with_sound_samples(burst: StackBurst) -> StackBurst:
    """Returns the burst without empty samples and unknown phases, which a damaged file or a newer
    TraceML may have."""
    known = tuple(each for each in burst.samples if each.phase in _PHASES and each.looks > 0)
    return burst if len(known) == len(burst.samples) else replace(burst, samples=known)
