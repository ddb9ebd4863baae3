"""`python -m benchmarks.deep_cost`: what both profiles add to a step, measured within one process.

Runs one after the other differ by more than the cost. So short blocks of steps with a profile and
without it alternate in one process, and each is held against its two neighbours. What a burst of
the deep profile costs is a mean, because few blocks have one; of the others the median counts. The
deep profile bounds what it adds to the time of all steps, so its share is taken of that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.figure import machine
from traceml.store.layer_records import read_layers
from traceml.trace import current, hooks
from traceml.trace.deep import bursts
from traceml.trace.deep.time_budget import TimeBudget

BLOCK_STEPS = 8
WARM_UP_STEPS = 24
RESAMPLED = 2000
ESSENTIAL_PART = 0.35
"""Of the time: the deep profile has rare events and needs more of it."""
NEVER = TimeBudget(0.0, 0)
NEVER.spend(1.0)


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps in a row, with a profile or without."""

    is_on: bool
    has_burst: bool
    steps: int
    seconds: float

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class Cost:
    """What a profile adds, as a share of the time without it, with a 95 % interval."""

    step_ms: float
    share: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        interval = f"{100 * self.low:+.2f} … {100 * self.high:+.2f} %"
        return (
            f"{100 * self.share:+.2f} % ({interval}) of {self.step_ms:.2f} ms, {self.pairs} pairs"
        )


def cost_of(blocks: Sequence[Block]) -> Cost:
    """The cost of a profile, from blocks that alternate, the first of them without it."""
    pairs = []
    for number, block in enumerate(blocks):
        if block.is_on and 0 < number < len(blocks) - 1:
            usual_s = (blocks[number - 1].step_s + blocks[number + 1].step_s) / 2
            added_s = block.seconds - usual_s * block.steps
            pairs.append((block, added_s))
    off = [block for block in blocks if not block.is_on]
    usual_s = median(block.step_s for block in off)
    steps_in_all = sum(block.steps for block in blocks)
    has_bursts = any(block.has_burst for block, _ in pairs)

    def share(chosen: Sequence[tuple[Block, float]]) -> float:
        idle = [added / block.steps for block, added in chosen if not block.has_burst]
        burst = sum(added for block, added in chosen if block.has_burst)
        steps = sum(block.steps for block, _ in chosen if not block.has_burst)
        added = burst + (median(idle) * steps if idle else 0.0)
        # A deep profile spends its share of all the time in the half that it may work in.
        of_steps = steps_in_all if has_bursts else sum(block.steps for block, _ in chosen)
        return added / (of_steps * usual_s)

    numbers = np.random.default_rng(0)
    samples = [
        share([pairs[place] for place in numbers.integers(0, len(pairs), len(pairs))])
        for _ in range(RESAMPLED)
    ]
    low, high = np.quantile(samples, (0.025, 0.975))
    return Cost(1e3 * usual_s, share(pairs), float(low), float(high), len(pairs))


def transformer_step(device: str, layers: int) -> Callable[[], None]:
    """One training step of a transformer, in bfloat16 on a GPU."""
    on_gpu = device == "cuda"
    width, heads, batch, length = (1024, 16, 8, 512) if on_gpu else (128, 4, 8, 64)
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    inputs = torch.randn(batch, length, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def timed_block(step: Callable[[], None], is_on: bool, is_over: Callable[[], bool]) -> Block:
    """Takes steps until a block is full and nothing is left of a burst."""
    _wait()
    began, steps = time.perf_counter(), 0
    while steps < BLOCK_STEPS or not is_over():
        step()
        steps += 1
    _wait()
    return Block(is_on, steps > BLOCK_STEPS, steps, time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def essential_blocks(step: Callable[[], None], seconds: float, folder: Path) -> list[Block]:
    """Blocks without any hook and with those of the essential profile, in turns."""
    blocks: list[Block] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(blocks) < 5:
        blocks.append(timed_block(step, False, lambda: True))
        place = folder / f"essential-{len(blocks)}"
        _begin_session(place)
        for _ in range(3):
            step()  # the model and its optimizer are met
        blocks.append(timed_block(step, True, lambda: True))
        current.end()
    return blocks[:-1] if blocks[-1].is_on else blocks


def deep_blocks(step: Callable[[], None], seconds: float, folder: Path) -> list[Block]:
    """Blocks with the essential profile alone and with the deep one, in turns, in one session."""
    session = _begin_session(folder / "deep")
    found: list[Any] = []

    class KeptBursts(bursts.Bursts):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    bursts.Bursts = KeptBursts  # type: ignore[misc, assignment] # hooks.py makes one when it is asked for
    session.begin_deep_profile()
    (deep,) = found
    looks, budget = [deep._end_norms, deep._follow_guarded], deep._norms._budget

    def is_idle() -> bool:
        return deep._look_at is None and not deep._is_settling

    for _ in range(WARM_UP_STEPS):
        step()  # with the first burst, which every run has once
    while not is_idle():
        step()
    blocks: list[Block] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(blocks) < 5:
        for look in looks:
            session.looks.remove(look)
        deep._norms._budget = NEVER
        blocks.append(timed_block(step, False, lambda: True))
        session.looks.extend(looks)
        deep._norms._budget = budget
        deep._looked_at = time.perf_counter_ns()
        looked_at = deep._bursts, deep._kernels_budget._spent_ns
        block = timed_block(step, True, is_idle)
        has_burst = looked_at != (deep._bursts, deep._kernels_budget._spent_ns)
        blocks.append(Block(True, has_burst, block.steps, block.seconds))
    current.end()
    return blocks[:-1]


def _begin_session(folder: Path) -> Any:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"run_name": "cost", "started_unix_s": 0}')
    session: Any = current.start(folder, None, None)
    hooks.install(session)
    return session


def main() -> None:
    """Measure both, and print a row each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deep_cost", description=__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--seconds", type=float, default=80.0, metavar="N", help="of measuring")
    parser.add_argument("--layers", type=int, default=12, metavar="N", help="of the transformer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every block there")
    options = parser.parse_args()
    torch.manual_seed(0)
    step = transformer_step(device, options.layers)
    for _ in range(WARM_UP_STEPS):
        step()
    with tempfile.TemporaryDirectory(prefix="traceml-cost-") as scratch:
        folder = Path(scratch)
        parts = {
            "essential": essential_blocks(step, ESSENTIAL_PART * options.seconds, folder),
            "deep": deep_blocks(step, (1 - ESSENTIAL_PART) * options.seconds, folder),
        }
        looked_at = mean(len(each.steps) for each in read_layers(folder / "deep"))
    print(f"{machine()} · {device} · torch {torch.__version__} · {options.layers} layers\n")
    print("| profile | added to a step |\n| --- | --- |")
    for name, blocks in parts.items():
        beside = "no profile" if name == "essential" else "the essential one"
        print(f"| {name}, beside {beside} | {cost_of(blocks)} |")
    print(f"\n{looked_at:.0f} steps were looked at layer by layer.")
    if options.json:
        content = {
            name: [(each.is_on, each.has_burst, each.steps, each.seconds) for each in blocks]
            for name, blocks in parts.items()
        }
        options.json.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
