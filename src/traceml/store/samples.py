"""The agent's samples on disk: a JSON object per line, halved when there are too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from traceml.model.sample import Sample
from traceml.store.folder import write_atomically
from traceml.store.json_lines import decode_lines
from traceml.store.line_files import LineFollower, append_lines
from traceml.store.regular_files import read_regular, stat_regular

FILE_NAME = "samples.jsonl"
MAX_SAMPLES = 16_384
"""Four and a half hours at one per second, about 10 MB; beyond it every second one is dropped."""
MAX_BYTES = 16 << 20
"""The same limit in bytes: on a node with many GPUs a sample is long."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Sample)


class SampleFile:
    """The samples of one node, appended once a second, limited in number."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        lines = self._lines()
        self._count = len(lines)
        self._bytes = _bytes(lines)
        self.stride = 1
        """Only every so many seconds a sample is kept: doubles each time the file is halved."""

    def append(self, sample: Sample) -> None:
        """Appends one sample."""
        line = _encoder.encode(sample) + b"\n"
        append_lines(self._path, line)
        self._count += 1
        self._bytes += len(line)
        if self._count >= MAX_SAMPLES or self._bytes >= MAX_BYTES:
            self._halve()

    def _halve(self) -> None:
        kept = self._lines()[::2]
        write_atomically(self._path, b"".join(line + b"\n" for line in kept))
        self._count, self._bytes = len(kept), _bytes(kept)
        self.stride *= 2

    def _lines(self) -> list[bytes]:
        return read_regular(self._path).splitlines() if stat_regular(self._path) else []


def _bytes(lines: list[bytes]) -> int:
    """On disk, with their ends."""
    return sum(map(len, lines)) + len(lines)


def read(folder: Path, most: int = MAX_SAMPLES) -> tuple[Sample, ...]:
    """Returns the samples of a run, in order; of more than `most`, so many from all of the run.

    A half line of a killed agent is skipped.
    """
    try:
        content = read_regular(folder / FILE_NAME)
    except OSError:
        return ()
    is_long = content.count(b"\n") > most
    lines = _spread_lines(content, most) if is_long else content.splitlines()
    return tuple(decode_lines(lines, _decoder))


class SampleTail:
    """The last samples of a file, as it grows."""

    def __init__(self, folder: Path, most: int) -> None:
        self._lines = LineFollower(folder / FILE_NAME)
        self.last: deque[Sample] = deque(maxlen=most)

    def read(self) -> None:
        """Reads what is new; of many new samples only the last ones are decoded."""
        lines, is_anew = self._lines.read_new()
        if is_anew:
            self.last.clear()
        self.last.extend(decode_lines(lines[-(self.last.maxlen or 1) :], _decoder))


def _spread_lines(content: bytes, most: int) -> Iterator[bytes]:
    """Yields so many lines of a long text, from places at equal distances."""
    end = -1
    for place in range(0, len(content), -(-len(content) // most)):
        begin = max(end, content.rfind(b"\n", 0, place)) + 1
        end = content.find(b"\n", begin)
        if end < 0:
            return
        yield content[begin:end]
