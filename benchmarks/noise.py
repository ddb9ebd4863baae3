"""Whether `compare` can tell a change from a busy machine: real runs, alone and under planted load.

Two small trainings run again and again, in turn alone, beside busy processes of our own, and with
a planted change of the script. All pairs of runs of one script are compared one run per side. A
verdict on the same script is a false one; the planted change has to be found.

TRACEML_NOISE_RUNS=FOLDER keeps the runs there, and judges those that are there already instead of
making new ones.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from benchmarks import commands
from benchmarks.calibration import DECIDED, step_ms, wilson
from benchmarks.figure import Figure
from traceml.compare.measured import values
from traceml.compare.pair import compare
from traceml.model.finding import Section
from traceml.summaries.read import FILE_NAME, read_summary
from traceml.summaries.record import Summary

FOLDER = "TRACEML_NOISE_RUNS"
RUNS = 11
"""Of each script, alone and under load: 2 × 55 pairs of each kind."""
CHANGED_RUNS = 3
"""Of each script and planted change."""
TRAINING_S = 4.0
PART_S = 1.5
"""How far into the training a load that covers a part of it begins or ends."""
TIMEOUT_S = 300.0
WORK = 20
CHANGED_WORK = {"+10 %": 22, "+30 %": 26}
SCRIPTS = ("train_layers", "train_loader")
ALONE, LOADED = "alone", "loaded"
TARGET_FALSE = "≤ 5 %"
QUIET_PERCENT = 10.0
"""Of the CPU, by other programs."""

_BURN = "while True: pass"


@dataclass(frozen=True, slots=True)
class Load:
    """Busy processes beside a training; for all of it, up to its middle, or from there on."""

    processes: int = 0
    covers: str = "whole"


LOADS = (
    *(Load(1), Load(2, "first part"), Load(3), Load(1, "last part"), Load(4)),
    *(Load(2), Load(4, "last part"), Load(3, "first part")),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run to make."""

    script: str
    kind: str
    number: int
    work: int = WORK
    load: Load = Load()

    @property
    def name(self) -> str:
        """Of its folder: says what to compare it with."""
        return f"{self.script}.{self.kind}.{self.number}".replace(" ", "")


def run() -> list[Figure]:
    """Make the runs, or take those that were kept, and judge them."""
    kept = os.environ.get(FOLDER)
    if kept:
        make(Path(kept))
        return judge(Path(kept))
    with tempfile.TemporaryDirectory() as place:
        make(Path(place))
        return judge(Path(place))


# Making the runs


def plan() -> list[Planned]:
    """Every run, in an order that mixes the kinds: the machine changes while they are made."""
    runs: list[Planned] = []
    for script, number in product(SCRIPTS, range(RUNS)):
        runs.append(Planned(script, ALONE, number))
        runs.append(Planned(script, LOADED, number, load=LOADS[number % len(LOADS)]))
    for script, (kind, work), number in product(SCRIPTS, CHANGED_WORK.items(), range(CHANGED_RUNS)):
        runs.append(Planned(script, kind, number, work=work))
    random.Random(11).shuffle(runs)
    return runs


def make(folder: Path) -> None:
    """Train what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for planned in plan():
        if not (folder / planned.name / FILE_NAME).exists():
            _train(folder, planned)


def _train(folder: Path, planned: Planned) -> None:
    with tempfile.TemporaryDirectory() as place:
        began, logs = Path(place) / "began", Path(place) / "logs"
        script = f"{planned.script}.py"
        words = commands.command(script, began, TRAINING_S, planned.work, logs=logs)
        with _load(planned.load.processes if planned.load.covers != "last part" else 0):
            training = commands.start(words)
            _wait(lambda: began.exists() or training.poll() is not None)
            if planned.load.covers == "first part":
                time.sleep(PART_S)
            elif planned.load.covers == "whole":
                training.wait(TIMEOUT_S)
        if planned.load.covers == "last part":
            time.sleep(PART_S)
            with _load(planned.load.processes):
                training.wait(TIMEOUT_S)
        if training.wait(TIMEOUT_S):
            raise RuntimeError(f"{' '.join(words)} failed")
        commands.only_run(logs).rename(folder / planned.name)


@contextmanager
def _load(processes: int) -> Iterator[None]:
    """So many processes that do nothing but use a core each."""
    busy = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _wait(until: Callable[[], bool]) -> None:
    ends = time.monotonic() + TIMEOUT_S
    while not until():
        if time.monotonic() > ends:
            raise TimeoutError(f"no first step within {TIMEOUT_S:.0f} s")
        time.sleep(0.05)


# Judging them

Pair = tuple[Summary, Summary]


def judge(folder: Path) -> list[Figure]:
    """What `compare` says of the runs in a folder."""
    found = {path.parent.name: read_summary(path) for path in sorted(folder.glob(f"*/{FILE_NAME}"))}
    by_script = {
        script: {kind: _of_kind(found, script, kind) for kind in (ALONE, LOADED, *CHANGED_WORK)}
        for script in SCRIPTS
    }
    alike = {
        "both alone": [p for kinds in by_script.values() for p in combinations(kinds[ALONE], 2)],
        "both under load": [
            p for kinds in by_script.values() for p in combinations(kinds[LOADED], 2)
        ],
        "one alone, one under load": [
            p for kinds in by_script.values() for p in product(kinds[ALONE], kinds[LOADED])
        ],
    }
    changed = {
        f"planted {kind}": [
            p for kinds in by_script.values() for p in product(kinds[ALONE], kinds[kind])
        ]
        for kind in CHANGED_WORK
    }
    alike["both alone and quiet"] = list(filter(_is_quiet, alike["both alone"]))
    for what, pairs in list(changed.items()):
        changed[f"{what} on a quiet machine"] = list(filter(_is_quiet, pairs))
    return [
        *(_false(what, pairs) for what, pairs in alike.items() if pairs),
        *(_power(what, pairs) for what, pairs in changed.items() if pairs),
    ]


def _is_quiet(pair: Pair) -> bool:
    """Whether nobody else used much of the machine: alone is not quiet on a shared one."""
    others = [values(Section.SYSTEM, run).get("cpu_other_percent") for run in pair]
    return all(percent is not None and percent < QUIET_PERCENT for percent in others)


def _of_kind(found: dict[str, Summary], script: str, kind: str) -> list[Summary]:
    beginning = f"{script}.{kind.replace(' ', '')}."
    return [summary for name, summary in found.items() if name.startswith(beginning)]


def _false(what: str, pairs: Sequence[Pair]) -> Figure:
    return _share(f"same script, {what}: false verdicts", TARGET_FALSE, pairs, DECIDED)


def _power(what: str, pairs: Sequence[Pair]) -> Figure:
    return _share(f"{what}, both alone: found", "shown", pairs, ("REGRESSION",))


def _share(what: str, target: str, pairs: Sequence[Pair], statuses: Sequence[str]) -> Figure:
    verdicts = [compare(a, b, ("a", "b")).verdict for a, b in pairs]
    hits = sum(verdict.status in statuses for verdict in verdicts)
    low, high = wilson(hits / len(pairs), len(pairs))
    ratios = sorted(max(step_ms(a), step_ms(b)) / min(step_ms(a), step_ms(b)) for a, b in pairs)
    allowances = sorted(verdict.allowance_pct for verdict in verdicts)
    middle = len(pairs) // 2
    return Figure(
        what,
        target,
        100 * hits / len(pairs),
        "%",
        100 * low,
        100 * high,
        f"95 % interval, {hits} of {len(pairs)} pairs",
        f"step times differ by {100 * (ratios[middle] - 1):.1f} % (median), up to "
        f"{100 * (ratios[-1] - 1):.0f} %; median allowance ±{allowances[middle]:.1f} %",
        details={"statuses": [verdict.status for verdict in verdicts]},
    )
