"""What TraceML costs around training: the start, the end, its processes and their memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks import commands
from benchmarks.figure import Figure
from benchmarks.stats import median_interval

PAIRS = 9
TRAINING_S = 3.0
QUICK_PAIRS = 25
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of the small training script, as seen from outside."""

    to_first_step_s: float
    to_exit_s: float
    threads: int
    processes: int = 0
    memory_bytes: int = 0
    """Of our own processes together, at most: shared pages are shared out (PSS) where known."""
    resident_bytes: int = 0
    cpu_share: float = 0.0
    """Of one core, while the script trains."""


def launch(traced: bool) -> Launch:
    """Run the script once, looking at its processes meanwhile."""
    with tempfile.TemporaryDirectory() as place:
        stamps = Path(place) / "stamps.json"
        logs = Path(place) / "logs" if traced else None
        began = time.monotonic()
        process = commands.start(commands.command("train_small.py", stamps, TRAINING_S, logs=logs))
        watched = _Watched(process, traced)
        while process.poll() is None:
            if stamps.exists():
                time.sleep(0.002)  # the end is timed: looking would hold it up
            else:
                watched.look()
                time.sleep(0.05)
        ended = time.monotonic()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        said = json.loads(stamps.read_text())
    return watched.launch(said["first_step"] - began, ended - said["end"])


class _Watched:
    """The most that was seen of our processes and of the training process."""

    def __init__(self, process: subprocess.Popen[bytes], traced: bool) -> None:
        self._root = psutil.Process(process.pid)
        self._traced = traced
        self._threads = self._processes = self._memory = self._resident = 0
        self._cpu: dict[int, float] = {}
        self._since = time.monotonic()
        self._seen_s = 0.0

    def look(self) -> None:
        """Add what is there now; processes come and go meanwhile."""
        try:
            every = [self._root, *self._root.children(recursive=True)]
            training = [each for each in every if _trains(each)]
            for each in training:
                self._threads = max(self._threads, each.num_threads())
            if self._traced and training:
                self._look_at_ours([each for each in every if each not in training])
        except psutil.Error:
            return

    def _look_at_ours(self, ours: list[psutil.Process]) -> None:
        memory = [_memory(each) for each in ours]
        self._processes = max(self._processes, len(ours))
        self._memory = max(self._memory, sum(shared for shared, _ in memory))
        self._resident = max(self._resident, sum(resident for _, resident in memory))
        self._cpu.update((each.pid, sum(each.cpu_times()[:2])) for each in ours)
        self._seen_s = time.monotonic() - self._since

    def launch(self, to_first_step_s: float, to_exit_s: float) -> Launch:
        return Launch(
            to_first_step_s,
            to_exit_s,
            self._threads,
            self._processes,
            self._memory,
            self._resident,
            sum(self._cpu.values()) / self._seen_s if self._seen_s else 0.0,
        )


def _trains(process: psutil.Process) -> bool:
    words = process.cmdline()
    return len(words) > 1 and words[1].endswith("train_small.py")


def _memory(process: psutil.Process) -> tuple[int, int]:
    full = process.memory_full_info()
    return getattr(full, "pss", full.rss), full.rss


def added_seconds(with_it: list[str], without: list[str], pairs: int) -> list[float]:
    """How much longer one command takes than another, pair by pair."""
    order = random.Random(0)
    for words in (with_it, without):
        commands.run(words)  # the disk's cache warms up
    differences = []
    for _ in range(pairs):
        taken = {
            name: commands.seconds(words)
            for name, words in order.sample([("with", with_it), ("without", without)], 2)
        }
        differences.append(taken["with"] - taken["without"])
    return differences


def run() -> list[Figure]:
    """Every row of the table that is about processes."""
    order = random.Random(0)
    launches: dict[bool, list[Launch]] = {True: [], False: []}
    launch(True)
    for _ in range(PAIRS):
        for traced in order.sample([True, False], 2):
            launches[traced].append(launch(traced))
    return [*_launch_figures(launches[True], launches[False]), *_import_figures()]


def _launch_figures(traced: list[Launch], plain: list[Launch]) -> list[Figure]:
    pairs = list(zip(traced, plain, strict=True))
    start = [on.to_first_step_s - off.to_first_step_s for on, off in pairs]
    end = [on.to_exit_s - off.to_exit_s for on, off in pairs]
    memory = [each.memory_bytes / MIB for each in traced]
    threads = [float(on.threads - off.threads) for on, off in pairs]
    resident = median(each.resident_bytes for each in traced) / MIB
    cpu = median(each.cpu_share for each in traced)
    whole = f"range of {len(pairs)} pairs"
    alone = median(off.to_first_step_s for off in plain)
    return [
        Figure(
            "start to first step, added",
            "≤ 0.4 s",
            median(start),
            "s",
            min(start),
            max(start),
            whole,
            f"{alone:.2f} s without",
            commands.details(added_s=start),
        ),
        Figure(
            "end of script to exit, added",
            "≤ 0.5 s",
            median(end),
            "s",
            min(end),
            max(end),
            whole,
            f"{median(off.to_exit_s for off in plain):.2f} s without",
            commands.details(added_s=end),
        ),
        Figure("threads added", "0", median(threads), "", min(threads), max(threads), whole),
        Figure("extra processes", "≤ 2", max(each.processes for each in traced), ""),
        Figure(
            "their memory (PSS)",
            "≤ 110 MB",
            median(memory) * MIB / 1e6,
            "MB",
            min(memory) * MIB / 1e6,
            max(memory) * MIB / 1e6,
            f"range of {len(memory)} runs",
            f"resident {resident * MIB / 1e6:.0f} MB; {cpu:.1%} of a core, starting included",
        ),
    ]


def _import_figures() -> list[Figure]:
    bare = [sys.executable, "-c", "pass"]
    figures = []
    for what, target, words in (
        ("import traceml", "≤ 20 ms", [sys.executable, "-c", "import traceml"]),
        ("traceml --help", "≤ 100 ms", [*commands.traceml(), "--help"]),
    ):
        added = [each * 1e3 for each in added_seconds(words, bare, QUICK_PAIRS)]
        middle, low, high = median_interval(added)
        note = "more than a bare interpreter's start"
        figures.append(
            Figure(what, target, middle, "ms", low, high, f"95 %, {QUICK_PAIRS} pairs", note)
        )
    return figures
