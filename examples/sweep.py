"""A sweep whose answer is known: 24 little trainings, each a run of its own.

    python examples/sweep.py --all                    # 24 trainings, two at a time
    python examples/sweep.py --all --optimizer adam   # the 12 of them with that optimizer
    traceml run examples/sweep.py --args --lr 0.01 --width 32 --optimizer adam --seed 0

Points of the plane are to be told apart: inside a circle or outside it. What is best follows from
that and from how the trainings are made:

* a learning rate of 0.01: with 0.0001 little is learned in so few steps, 3 destroys the weights;
* a width of 32: two lines, which is all that a width of 2 can draw, do not enclose a circle;
* the seed sets the first weights and the order of the examples, and must not matter;
* 5% of the labels are wrong, so that no model can be right about many more than 95%.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

GRID = {
    "lr": (0.0001, 0.01, 3.0),
    "width": (2, 32),
    "optimizer": ("sgd", "adam"),
    "seed": (0, 1),
}
"""The values that `--all` combines."""
DEFAULTS = {"lr": 0.01, "width": 32, "optimizer": "adam", "seed": 0}
"""What a single training takes where nothing else is said."""
AT_A_TIME = 2
EPOCHS = 20
BATCH_SIZE = 32
TRAINING_POINTS, VALIDATION_POINTS = 1024, 512
RADIUS = 0.8
"""About half of all points lie inside a circle of this size."""
WRONG_LABELS = 0.05
EDGE = 0.1
"""Points this near to the circle are the hard ones."""


def main() -> int:
    """Train once, or run the whole sweep."""
    args = read_arguments()
    if args.all:
        return sweep(args)
    train(**{name: chosen(args, name) for name in GRID})
    return 0


def read_arguments() -> argparse.Namespace:
    """The parameters of one training; with `--all`, those that keep one value."""
    parser = argparse.ArgumentParser(description="a sweep whose answer is known")
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--width", type=int, help="size of the hidden layer")
    parser.add_argument("--optimizer", choices=GRID["optimizer"])
    parser.add_argument("--seed", type=int, help="of the first weights and the order of examples")
    parser.add_argument(
        "--all", action="store_true", help="run every combination of the parameters not given"
    )
    parser.add_argument("--logs-dir", default="logs", help="with --all: where runs are kept")
    return parser.parse_args()


def chosen(args: argparse.Namespace, name: str) -> object:
    """The value given for a parameter, or its default."""
    given = getattr(args, name)
    return DEFAULTS[name] if given is None else given


def sweep(args: argparse.Namespace) -> int:
    """Run every combination in a process of its own; the number of trainings that failed."""
    given = {name: getattr(args, name) for name in GRID}
    values = [GRID[name] if given[name] is None else (given[name],) for name in GRID]
    trainings = [dict(zip(GRID, each, strict=True)) for each in itertools.product(*values)]
    began = time.monotonic()
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        statuses = list(threads.map(lambda params: run(params, args.logs_dir), trainings))
    failed = sum(status != 0 for status in statuses)
    taken_s = time.monotonic() - began
    print(f"{len(trainings)} trainings, {failed} failed, in {taken_s:.0f} s")
    return min(failed, 1)


def run(params: dict[str, object], logs_dir: str) -> int:
    """Run one training under `traceml run`; its exit status. What it says is shown if it fails."""
    name = "sweep-lr{lr:g}-w{width}-{optimizer}-s{seed}".format(**params)
    words = [f"--{key}={value}" for key, value in params.items()]
    traceml = [sys.executable, "-m", "traceml", "run", "--mode=summary", "--overwrite"]
    done = subprocess.run(
        [*traceml, "--run-name", name, "--logs-dir", logs_dir, __file__, "--args", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # each has one of the cores
        check=False,
    )
    said = done.stdout.strip() if done.returncode == 0 else done.stdout + done.stderr
    print(f"{name}: {said}", flush=True)
    return done.returncode


def train(lr: float, width: int, optimizer: str, seed: int) -> None:
    """One training, with everything about it logged."""
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    import traceml

    traceml.log_params({"lr": lr, "width": width, "optimizer": optimizer, "seed": seed})
    points, labels, distance = make_points(TRAINING_POINTS + VALIDATION_POINTS)
    held_out = slice(TRAINING_POINTS, None)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, width), torch.nn.ReLU(), torch.nn.Linear(width, 1), torch.nn.Flatten(0)
    )
    steps = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=lr),
    }[optimizer]()
    known = TensorDataset(points[:TRAINING_POINTS], labels[:TRAINING_POINTS])
    loader = DataLoader(known, batch_size=BATCH_SIZE, shuffle=True)

    for epoch in range(1, EPOCHS + 1):
        for batch, truth in loader:
            steps.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(model(batch), truth)
            loss.backward()
            steps.step()
        with torch.no_grad():
            scores = model(points[held_out])
            val_loss = functional.binary_cross_entropy_with_logits(scores, labels[held_out]).item()
            correct = (scores > 0) == (labels[held_out] > 0)
        accuracy = correct.float().mean().item()
        traceml.log_metrics(
            {"val/accuracy": accuracy, "val/loss": val_loss},
            step=epoch,
            higher_is_better={"val/accuracy": True, "val/loss": False},
        )

    is_near = (distance[held_out] < EDGE).tolist()
    traceml.log_samples(
        {
            "id": list(range(VALIDATION_POINTS)),
            "correct": correct,
            "segment": ["edge" if near else "clear" for near in is_near],
        },
        name="validation",
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model.pt"
        torch.save(model.state_dict(), checkpoint)
        traceml.log_artifact(checkpoint, name="model.pt")
    print(f"accuracy {accuracy:.3f}, loss {val_loss:.3f}")


def make_points(count: int):
    """Points, whether each is inside the circle, and how far it is from it; always the same."""
    import torch

    draw = torch.Generator().manual_seed(2026)
    points = 2 * torch.rand(count, 2, generator=draw) - 1
    radius = points.norm(dim=1)
    is_wrong = torch.rand(count, generator=draw) < WRONG_LABELS
    labels = ((radius < RADIUS) != is_wrong).float()
    return points, labels, (radius - RADIUS).abs()


if __name__ == "__main__":
    sys.exit(main())
