"""The agent's samples on disk: a JSON object per line, halved when there are too many."""

from __future__ import annotations

from pathlib import Path

import msgspec

from traceml.model.sample import Sample
from traceml.store.append import append_lines
from traceml.store.folder import write_atomically

FILE_NAME = "samples.jsonl"
MOST_SAMPLES = 16_384
"""Four and a half hours at one a second, about 10 MB; after that every second one goes."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Sample)


class SampleFile:
    """The samples of one node, appended once a second and never too many of them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._count = sum(1 for _ in self._lines())
        self.stride = 1
        """Only every so many seconds a sample is kept: doubles each time the file is halved."""

    def append(self, sample: Sample) -> None:
        """Keep one sample."""
        append_lines(self._path, _encoder.encode(sample) + b"\n")
        self._count += 1
        if self._count >= MOST_SAMPLES:
            self._halve()

    def _halve(self) -> None:
        kept = self._lines()[::2]
        write_atomically(self._path, b"".join(line + b"\n" for line in kept))
        self._count = len(kept)
        self.stride *= 2

    def _lines(self) -> list[bytes]:
        return self._path.read_bytes().splitlines() if self._path.exists() else []


def read(folder: Path) -> tuple[Sample, ...]:
    """All samples of a run, in order; a line cut short by a killed agent is passed over."""
    path = folder / FILE_NAME
    if not path.exists():
        return ()
    samples = []
    for line in path.read_bytes().splitlines():
        try:
            samples.append(_decoder.decode(line))
        except msgspec.DecodeError:
            continue
    return tuple(samples)
