"""The slowest steps while another process writes the disk at full speed, traced and not."""

from __future__ import annotations

import array
import multiprocessing
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import commands
from benchmarks.figure import Figure
from benchmarks.stats import median_interval, quantile

PAIRS = 8
STEPS = 20_000
QUANTILES = (0.5, 0.99, 0.999)
PIECE = 4 << 20
FILE_BYTES = 512 << 20


def write_for_ever(path: Path) -> None:
    """Write and flush, over and over, as a checkpoint would."""
    content = os.urandom(PIECE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    while True:
        os.lseek(descriptor, 0, os.SEEK_SET)
        for written in range(0, FILE_BYTES, PIECE):
            os.write(descriptor, content)
            if written % (16 * PIECE) == 0:
                os.fsync(descriptor)


@contextmanager
def busy_disk(folder: Path) -> Iterator[None]:
    """Somebody else writes in this folder's filesystem."""
    writer = multiprocessing.get_context("spawn").Process(
        target=write_for_ever, args=(folder / "written",), daemon=True
    )
    writer.start()
    try:
        yield
    finally:
        writer.kill()
        writer.join()


def quantiles_us(folder: Path, traced: bool) -> list[float]:
    """The quantiles of one process's step times."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        times = Path(place) / "times"
        logs = Path(place) / "logs" if traced else None
        commands.run(commands.command("step_times.py", times, STEPS, logs=logs))
        taken = array.array("d", times.read_bytes())
    ordered = sorted(taken)
    return [quantile(ordered, share) * 1e6 for share in QUANTILES]


def run() -> list[Figure]:
    """p50, p99 and p99.9, each as the median over processes of the paired difference."""
    order = random.Random(0)
    found: dict[bool, list[list[float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place, busy_disk(Path(place)):
        for _ in range(PAIRS):
            for traced in order.sample([True, False], 2):
                found[traced].append(quantiles_us(Path(place), traced))
    figures = []
    for index, share in enumerate(QUANTILES):
        on = [each[index] for each in found[True]]
        off = [each[index] for each in found[False]]
        added = [a - b for a, b in zip(on, off, strict=True)]
        middle, low, high = median_interval(added)
        figures.append(
            Figure(
                f"p{share * 100:g} of a step while the disk is written, added",
                "unmoved" if share == 0.999 else "–",
                middle,
                "µs",
                low,
                high,
                f"range of {PAIRS} pairs" if PAIRS < 9 else f"95 %, {PAIRS} pairs",
                f"{median(on):,.0f} µs traced, {median(off):,.0f} µs not",
                commands.details(traced_us=on, plain_us=off),
            )
        )
    return figures
