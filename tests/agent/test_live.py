"""The agent's looks at the last steps: what they leave in the run folder, and what they cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from factories import make_run
from failing import report, standing, with_stall
from processes import TRACEML, started, wait_until
from replay import ReplayedRing, with_part
from traceml.agent import live
from traceml.agent.live import Live
from traceml.model.failure import Doing
from traceml.store.records import RunRecords

CHANGE = {
    "unix_s",
    "step",
    "section",
    "kind",
    "severity",
    "since_step",
    "ranks",
    "summary",
    "action",
}


@pytest.fixture
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that come faster than once a second are not held back."""
    monkeypatch.setattr(live, "MOST_OF_A_CORE", float("inf"))


def follow(folder: Path, run: RunRecords) -> Live:
    """Look at the run once a second of its own time."""
    followed, rings = Live(folder, run.manifest), [ReplayedRing(rank) for rank in run.ranks]
    for sample in run.samples:
        for ring in rings:
            ring.unix_ns = int(sample.unix_s * 1e9)
            followed.follow(ring, is_last=False)  # type: ignore[arg-type]
        followed.sample(sample)
        followed.look()
    return followed


def changes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "live.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("tireless")
def test_every_change_of_what_leads_a_section_is_a_line(tmp_path: Path) -> None:
    run = make_run(ranks=2, steps=1200, sampled_s=50)
    follow(tmp_path, with_part(run, "input", 15.0, slice(600, None)))
    found = changes(tmp_path)
    assert all(change.keys() == CHANGE for change in found)
    slow = [change for change in found if change["kind"] == "INPUT_BOUND"]
    (change,) = slow
    assert change["section"] == "step_time"
    assert change["severity"] == "crit"
    assert change["since_step"] == 601
    assert 601 < change["step"] <= 600 + 5 / 0.051
    assert change["ranks"] == [0, 1]


@pytest.mark.usefixtures("tireless")
def test_the_state_holds_all_findings_the_window_and_where_its_time_went(tmp_path: Path) -> None:
    follow(tmp_path, make_run(ranks=2, steps=1200, input_ms=15.0, sampled_s=30))
    state = json.loads((tmp_path / "live.json").read_bytes())
    led = {finding["section"]: finding for finding in reversed(state["findings"])}
    assert led["step_time"]["kind"] == "INPUT_BOUND"
    assert led["step_time"]["since_step"] == 1
    assert {"step_memory", "system", "process"} <= led.keys()
    window = state["step_time"]["window"]
    assert window["end_step"] == state["step"]
    assert window["end_step"] - window["start_step"] + 1 == window["steps_analyzed"]
    assert state["step_time"]["average"]["input_wait_ms"] == pytest.approx(15.0, rel=0.05)


@pytest.mark.usefixtures("tireless")
def test_a_second_without_new_steps_leaves_everything_as_it_is(tmp_path: Path) -> None:
    followed = follow(tmp_path, make_run(steps=300, sampled_s=30))
    (tmp_path / "live.json").unlink()
    followed.look()
    assert not (tmp_path / "live.json").exists()


@pytest.mark.usefixtures("tireless")
def test_a_hang_is_shown_and_its_rank_named_though_no_step_comes(tmp_path: Path) -> None:
    run = make_run(ranks=2, steps=300, sampled_s=30)
    followed = follow(tmp_path, run)
    waiting = standing(0, Doing.COLLECTIVE, call="all_reduce")
    asleep = standing(1, Doing.CODE, "train.py:30 in load")
    followed.see(with_stall(run, waiting, asleep, after_s=60.0).seen)
    for _ in range(10):
        followed.look()
    hangs = [change for change in changes(tmp_path) if change["kind"] == "HANG"]
    (change,) = hangs
    assert (change["section"], change["severity"]) == ("stability", "crit")
    assert change["ranks"] == [1]
    assert "train.py:30 in load" in change["summary"]
    state = json.loads((tmp_path / "live.json").read_bytes())
    assert "HANG" in {finding["kind"] for finding in state["findings"]}


@pytest.mark.usefixtures("tireless")
def test_what_a_rank_says_of_its_end_and_its_loss_is_shown(tmp_path: Path) -> None:
    followed = follow(tmp_path, make_run(steps=300, sampled_s=30))
    failure = report(where="train.py:7 in forward")
    logged = {"kind": "metrics", "step": 7, "unix_ns": 1, "values": {"loss": "nan", "lr": 0.1}}
    said = ({"kind": "failure", **asdict(failure)}, logged)
    followed.hear([json.dumps(message, separators=(",", ":")).encode() for message in said])
    for _ in range(10):
        followed.look()
    state = json.loads((tmp_path / "live.json").read_bytes())
    kinds = [finding["kind"] for finding in state["findings"] if finding["section"] == "stability"]
    assert kinds == ["EXCEPTION", "NON_FINITE_LOSS"]


def test_looks_that_cost_much_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of 50 ms may be taken again after 2.5 s, but the first proves nothing."""
    looked, clock = [], iter(n * 0.05 for n in range(100))
    monkeypatch.setattr(Live, "_diagnose", lambda self: looked.append(now[0]))
    monkeypatch.setattr(live.time, "thread_time", lambda: next(clock))
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    followed = Live(tmp_path, make_run(steps=1).manifest)
    for second in range(10):
        now[0] = 100.0 + second
        followed.look()
    assert looked == [100.0, 101.0, 104.0, 107.0]


SLOW_INPUT = """
import time
import torch

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if index >= 4 * 100:
            time.sleep(0.02)
        return torch.ones(64)

model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(Samples(), batch_size=4):
    time.sleep(0.005)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def test_a_real_run_says_live_that_its_input_became_slow_and_prints_nothing_of_it(
    tmp_path: Path,
) -> None:
    """The loader is quick for a hundred steps, and then takes 80 ms for every batch."""
    with started([TRACEML, "run", "train.py"], tmp_path, SLOW_INPUT) as running:

        def slow() -> list[dict[str, Any]]:
            files = list(tmp_path.glob("logs/*/live.jsonl"))
            found = changes(files[0].parent) if files else []
            return [change for change in found if change["kind"] == "INPUT_BOUND"]

        change = wait_until(slow, "input is found to be slow")[0]
        running.process.terminate()
        running.process.wait(60)
    assert change["severity"] == "crit"
    assert abs(change["since_step"] - 101) <= 2
    assert change["step"] - change["since_step"] <= 5 / 0.085 + 30
    said = running.stdout_path.read_text() + running.stderr_path.read_text()
    assert change["summary"] not in said
