"""Pages made by hand: what the terminal view is to draw."""

from __future__ import annotations

import msgspec

from traceml.figures.page import (
    Axis,
    Bars,
    Fact,
    FindingCard,
    Head,
    Heatmap,
    Limit,
    Lines,
    Part,
    Row,
    RunPage,
    Series,
    Span,
    Table,
    Tile,
    Verdict,
)

STEPS = tuple(float(step) for step in range(1, 1201, 20))
PHASES = ("input", "forward", "backward", "optimizer", "residual")

STEP_TABLE = Table(
    "step-time-table",
    "Step time",
    ("", "Dataloader Fetch", "Forward", "Backward", "Optimizer Step", "Step Time", "Wait*"),
    (
        Row(("Median", "269.6 ms", "6.8 ms", "15.4 ms", "15.6 ms", "309.1 ms", "1.8 ms")),
        Row(("Worst", "281.0 ms", "7.1 ms", "16.0 ms", "15.9 ms", "322.4 ms", "2.4 ms")),
        Row(("Worst Rank", "3", "3", "1", "0", "3", "2")),
        Row(("Skew %", "4.2%", "4.4%", "3.9%", "1.9%", "4.3%", "33%")),
        Row(("WAIT Share %", "", "", "", "", "", "0.6%")),
    ),
)
MEMORY_TABLE = Table(
    "step-memory-table",
    "Step memory",
    ("", "Median Peak", "Worst Peak", "Worst Rank", "Skew", "Head/Tail Delta"),
    (
        Row(("Allocated", "12.1 GiB", "12.4 GiB", "2", "2.5%", "+0.1 GiB")),
        Row(("Reserved", "13.0 GiB", "13.6 GiB", "2", "4.6%", "+0.0 GiB")),
    ),
)


def _series(name: str, height: float) -> Series:
    values = tuple(height * (1 + 0.1 * ((place * 7) % 5)) for place in range(len(STEPS)))
    return Series(name.capitalize(), name, values)


STEP_LINES = Lines(
    "step-time",
    "Step time over steps",
    Axis("step"),
    Axis("step time", "ms"),
    STEPS,
    tuple(map(_series, PHASES, (269.6, 6.8, 15.4, 15.6, 1.8))),
    stacked=True,
    spans=(Span(601.0, None, "INPUT-BOUND", "crit"),),
    zooms=True,
)
RANK_BARS = Bars(
    "ranks",
    "Median against worst rank",
    ("Median rank", "Worst rank"),
    Axis("time", "ms"),
    tuple(Series(name.capitalize(), name, (10.0, 12.0)) for name in PHASES),
)
HEAT = Heatmap(
    "heat",
    "Step time by rank",
    Axis("step"),
    STEPS,
    tuple(f"rank {rank}" for rank in range(4)),
    tuple(tuple(300.0 + 60 * (rank == 3) for _ in STEPS) for rank in range(4)),
    Axis("step time", "ms", 280.0, 370.0),
)
MEMORY_LINES = Lines(
    "memory",
    "Memory over steps",
    Axis("step"),
    Axis("peak", "GiB"),
    STEPS,
    tuple(
        Series(f"rank {rank}", f"series-{rank + 1}", tuple(12 + 0.1 * rank for _ in STEPS))
        for rank in range(4)
    ),
    limits=(Limit(80.0, "capacity"),),
)
CPU_LINES = Lines(
    "cpu",
    "CPU",
    Axis("time", "s"),
    Axis("CPU", "%", 0.0, 100.0),
    STEPS,
    (Series("CPU", "series-1", tuple((place * 3) % 90 for place in range(len(STEPS)))),),
)

INPUT_BOUND = FindingCard(
    "Step time",
    "INPUT_BOUND",
    "INPUT-BOUND",
    "crit",
    "Waiting for data takes 87% of a mean step (269.6 ms of 309.1 ms).",
    "Batches are made in the training process itself: num_workers=7 would hide the wait.",
    "309.1 → 39.5 ms, 7.82×",
    "since step 601",
    evidence=(Fact("input share", "87%"), Fact("workers", "0")),
)
MEMORY_BALANCED = FindingCard(
    "Step memory", "BALANCED", "BALANCED", "good", "Memory is steady and even over the ranks."
)

PAGE = RunPage(
    Head(
        name="bert-base-sst2",
        state="live",
        state_words="live",
        command="python train.py --max-steps 5000",
        started="2025-05-01 12:00:00 UTC",
        elapsed="6 min 11 s",
        steps="1,200 of 5,000 steps",
        throughput="3.24 steps/s · 207 samples/s per rank",
        ranks="4 ranks on 1 node, 4 × NVIDIA H200",
        remaining="about 19 min 33 s left",
        progress=0.24,
    ),
    Verdict(
        "crit",
        "INPUT-BOUND",
        INPUT_BOUND.summary,
        INPUT_BOUND.action,
        INPUT_BOUND.gain,
    ),
    (INPUT_BOUND, MEMORY_BALANCED),
    (
        Part(
            "step-time",
            "Step time",
            finding=INPUT_BOUND,
            tiles=(Tile("Median step", "309.1 ms"), Tile("Gap", "13.3 ms", "4.3%", "warn")),
            figures=(STEP_LINES, RANK_BARS, HEAT),
            tables=(STEP_TABLE,),
            is_wide=True,
        ),
        Part(
            "step-memory",
            "Step memory",
            finding=MEMORY_BALANCED,
            tiles=(Tile("Capacity", "80.0 GiB"),),
            figures=(MEMORY_LINES,),
            tables=(MEMORY_TABLE,),
        ),
        Part(
            "process",
            "Process",
            tiles=(Tile("CPU of the worst rank", "98%", "rank 3"), Tile("RSS", "2.1 GiB")),
            figures=(CPU_LINES,),
        ),
        Part("system", "System", tiles=(Tile("CPU", "41%"), Tile("RAM", "12.0 GiB of 64.0 GiB"))),
    ),
    output=(
        *(f"step {step} loss {2.5 - step / 1000:.3f}" for step in range(1100, 1200, 5)),
        "epoch 3:  62%|██████▏   | 744/1200 [02:11<01:20,  5.68it/s]",
    ),
)

HOSTILE = "[red]x[/red] [@click=app.bell]y[/] \x1b[2J\x1b]0;owned\x07 \u202e ünï"


def hostile_page() -> RunPage:
    """Every word that somebody else chose means harm."""
    text = msgspec.json.encode(PAGE).decode()
    for word in ("bert-base-sst2", "Waiting for data", "rank 3", "Median step", "step 1100"):
        text = text.replace(word, msgspec.json.encode(HOSTILE).decode()[1:-1])
    return msgspec.json.decode(text, type=RunPage)
