"""The runs that are looked at: their names, and the scripts that make them."""

from __future__ import annotations

from processes import STEPS

SLOW, FAST, MANY, CURVES, HOSTILE = (
    "slow",
    "fast",
    "many",
    "curves",
    "<img src=x onerror=window.hurt=1> \"one\" 'two' & größe 日本 %2e%2e?a=1#b",
)

BAD = "</script><script>window.hurt=1</script><!--<script><img src=x onerror=window.hurt=1>"
"""Words that a careless page would obey; `Window.was_hurt` finds out."""

TRAINING = """\
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

steps, sleep_ms = int(sys.argv[1]), float(sys.argv[2])


class Samples(Dataset):
    def __len__(self):
        return 8 * steps

    def __getitem__(self, index):
        if index % 8 == 0:  # once per batch: whoever wakes often waits often, on a busy machine
            time.sleep(sleep_ms / 1e3)
        return torch.ones(64)


model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while "wait" in sys.argv and not os.path.exists("go"):
    time.sleep(0.05)
for step, batch in enumerate(DataLoader(Samples(), batch_size=8), start=1):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item(), flush=True)
"""
"""A training whose input takes so many milliseconds per batch; it may wait for a file first."""
SLOW_INPUT_MS = "60"
"""Enough for the input to be the bottleneck on a machine that is busy with something else, too."""

RANKS = """\
import os
import time

from traceml.steps import events
from traceml.trace.current import current

rank = int(os.environ["RANK"])
forward_ns = 24_000_000 if rank == 2 else 8_000_000
session = current()
session.open()
now_ns = time.perf_counter_ns()

def tell(kind, argument=0, takes_ns=0):
    global now_ns
    session.recorder.note_on_host(kind, argument, 0, 0, now_ns)
    now_ns += takes_ns

for step in range(300):
    tell(events.BEGIN_FETCH, 1, 2_000_000)
    tell(events.END_FETCH, 8)
    tell(events.BEGIN_FORWARD, 3, forward_ns)
    tell(events.END_FORWARD, 3)
    tell(events.BEGIN_BACKWARD, 0, 8_000_000)
    tell(events.END_BACKWARD)
    tell(events.BEGIN, events.COMMUNICATION, 28_000_000 - forward_ns)
    tell(events.END, events.COMMUNICATION)
    tell(events.BEGIN_OPTIMIZER, 1, 2_000_000)
    session.recorder.ends += 1
    tell(events.END_OPTIMIZER, events.optimizer_ended(session.recorder.ends, 1))
"""
"""One rank of several: steps as the tracer notes them, rank 2 slower in its forward pass."""

CURVING = (
    RANKS.partition("for step")[0].replace('os.environ["RANK"]', "0")
    + """
import math
import traceml

for step in range(1, 2401):
    tell(events.BEGIN_FETCH, 1, 2_000_000)
    tell(events.END_FETCH, 8)
    tell(events.BEGIN_FORWARD, 3, 8_000_000)
    tell(events.END_FORWARD, 3)
    tell(events.BEGIN_BACKWARD, 0, 8_000_000)
    tell(events.END_BACKWARD)
    tell(events.BEGIN_OPTIMIZER, 1, 2_000_000)
    session.recorder.ends += 1
    tell(events.END_OPTIMIZER, events.optimizer_ended(session.recorder.ends, 1))
    noise = math.sin(12.9898 * step) * 0.2
    values = {
        "train/loss": 2 * math.exp(-step / 800) + 0.3 + noise * 0.5,
        "peak": 1000.0 if step == 1201 else 10.0 + noise,
        "lr": 2e-8 * (1 + step / 2400),
        "gone": math.nan if 600 <= step < 700 else math.inf if step == 1500 else 1.0 + noise,
        "huge": 1e308 if step % 7 == 0 else 1e12,
        "x" * 120: 10.0 ** (noise * 30),
    }
    traceml.log_metrics(values, step=step)
    if step % 240 == 0:
        traceml.log_metrics({"val/accuracy": 0.5 + step / 6000}, step=step // 240)
    if step % 100 == 0:
        time.sleep(0.02)  # the ring holds only so much
traceml.log_params({"a-parameter-with-a-very-long-name-" + "y" * 100: 3, "lr": 0.1})
"""
)
"""Steps as the tracer notes them, and metrics with a peak, NaN, infinity and extreme sizes."""

HURTING = (
    STEPS
    + f"bad = {BAD!r}\n"
    + """
import traceml
traceml.log_params({bad: bad, "' onmouseover='window.hurt=1": "\\u2028\\x1b[31m]]>"})
for step in range(60):
    take_steps(1)
    traceml.log_metrics({bad: float(step)}, step=step)
print(bad)
print("\\x1b]0;title\\x07\\x1b[2Jred")
"""
)
"""Puts what a page must not take for its own wherever a script can put something."""
