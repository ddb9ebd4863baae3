"""With the deep profile, a slow function is named in the phase of the step that it slows down."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import Finished, run_traceml
from traceml.agent.stack_sampler import find_py_spy
from traceml.api.live_layers import LiveHostTime
from traceml.facts.host_time import MIN_LOOKS
from traceml.figures.page import FlameGraph
from traceml.model.phase import BETWEEN, PHASES
from traceml.store.run_follower import RunFollower

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not find_py_spy(), reason="py-spy looks from outside, on Linux"
)

SCRIPT = """\
import glob
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.ones(16)


def slow_collate(items):
    time.sleep(0.02)
    return torch.stack(items)


def augment(batch):
    time.sleep(0.01)
    return batch


def score(output):
    time.sleep(0.02)
    return output.mean()


def validate():
    model.eval()
    with torch.no_grad():
        for _ in range(5):
            score(model(torch.ones(4, 16)))
    model.train()


def falls(depth):
    if depth:
        return falls(depth - 1)
    time.sleep(0.005)


def bursts():
    # those that the agent has written down so far
    paths = glob.glob("logs/*/stack_samples.jsonl")
    return [line for path in paths for line in open(path, "rb").read().splitlines()]


def has_looked_at_a_worker():
    return sum(line.count(b'"workers"') for line in bursts()) >= 15


def train(loader, is_over):
    for step, batch in enumerate(loader):
        batch = augment(batch)
        exec("falls(100)")
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        if step % 10 == 5:
            validate()
            if is_over(step):
                return


model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
deadline = time.monotonic() + 100
train(
    DataLoader(Items(), batch_size=4, num_workers=1, collate_fn=slow_collate),
    lambda step: has_looked_at_a_worker() or time.monotonic() > deadline,
)
before = len(bursts())
train(
    DataLoader(Items(), batch_size=4, collate_fn=slow_collate),
    lambda step: step > 60 and (len(bursts()) > before or time.monotonic() > deadline),
)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("host_time")
    done = run_traceml(["run", "--profile=deep", "--run-name", "deep", "train.py"], folder, SCRIPT)
    assert done.status == 0, done.stderr
    return done


def phases(done: Finished) -> dict[str, Any]:
    found: dict[str, Any] = done.summary["host_time"]["phases"]
    return found


@pytest.mark.parametrize(
    ("phase", "function", "line"),
    [
        ("workers", "slow_collate", "time.sleep(0.02)"),
        ("input", "slow_collate", "time.sleep(0.02)"),
        ("residual", "augment", "time.sleep(0.01)"),
        ("evaluation", "score", "time.sleep(0.02)"),
    ],
)
def test_a_slow_function_is_named_in_its_phase(
    run: Finished, phase: str, function: str, line: str
) -> None:
    found = {place["function"]: place for place in phases(run)[phase]["places"]}
    assert function in found, phases(run)[phase]["places"]
    place = found[function]
    assert (place["file"], SCRIPT.splitlines()[place["line"] - 1].strip()) == ("train.py", line)
    others = [each for name, each in phases(run).items() if name not in (phase, "workers", "input")]
    assert not any(each["function"] == function for one in others for each in one["places"])


def test_how_often_it_looked_and_at_what_cost_is_said(run: Finished) -> None:
    found = run.summary["host_time"]
    assert found["by"] == "py-spy"
    assert 1 < found["rate_hz"] < 101
    assert 0 < found["core_share"] < 0.5
    shown = [phase for phase in found["phases"].values() if phase["share"] is not None]
    in_rare_phases = found["looks"] - sum(phase["looks"] for phase in shown)
    assert 0 <= in_rare_phases < MIN_LOOKS * (len(PHASES) + len(BETWEEN))
    for phase in shown:
        assert phase["share"] == pytest.approx(phase["looks"] / found["looks"], abs=1e-6)
    assert "Where the host's time goes (" in run.summary["text"]


def test_a_call_is_as_long_as_what_it_called_and_itself(run: Finished) -> None:
    for name, phase in phases(run).items():
        below = [0] * len(phase["calls"])
        for call in phase["calls"]:
            if call["parent"] >= 0:
                below[call["parent"]] += call["looks"]
        for call, called in zip(phase["calls"], below, strict=True):
            assert call["looks"] == call["own_looks"] + called, (name, call)


def test_our_own_frames_are_hidden_and_recursion_is_one_call(run: Finished) -> None:
    calls = [call for phase in phases(run).values() for call in phase["calls"]]
    assert not any("traceml/trace" in call["file"] for call in calls)
    rest = phases(run)["residual"]["calls"]
    falls = [call for call in rest if call["function"] == "falls"]
    usual = max(falls, key=lambda call: call["looks"])
    # Python goes on while py-spy reads: a stack that is torn apart shows frames of two moments.
    torn = sum(call["looks"] for call in falls if call is not usual)
    assert torn <= 0.1 * usual["looks"], falls
    above = rest[usual["parent"]]
    assert (above["function"], above["file"]) == ("<module>", "<string>")  # what `exec` has run
    assert not above["is_users"]


def test_the_page_of_the_run_in_progress_shows_it_too(run: Finished) -> None:
    follower = RunFollower(run.folder)
    follower.refresh()
    part = LiveHostTime(run.folder).part(follower)
    assert part is not None
    (first, *_) = [figure for figure in part.figures if isinstance(figure, FlameGraph)]
    assert {"Rest", "augment", "Evaluation", "score"} <= {box.label for box in first.views[0].boxes}


def test_the_samples_take_little_room(run: Finished) -> None:
    assert len(json.dumps(run.summary["host_time"])) < 200_000
    assert Path(run.cwd, "logs", "deep", "stack_samples.jsonl").stat().st_size < 1_000_000
