"""The agent's looks at the last steps: what they leave in the run folder, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from factories import make_run
from failing import report, standing, with_stall
from node_runs import RUN_ID, split_run
from processes import PATIENCE_S, TRACEML, started, wait_until
from replay import ReplayedRing, with_part
from run_folders import write_rank
from traceml.agent import live
from traceml.agent.live import Live
from traceml.model.failure import AgentSaw, Doing
from traceml.model.node import NodeState, NodeWay
from traceml.store import folder as folders
from traceml.store.failures import write_seen
from traceml.store.logged import earlier_reports
from traceml.store.node_folders import NODES, write_node
from traceml.store.records import RunRecords
from traceml.store.samples import SampleFile
from traceml.summaries.live_record import read_live

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
    "until_step",
}


@pytest.fixture
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that come faster than once a second are not held back."""
    for name in ("MACHINE_SHARE", "MAX_CORE_SHARE", "MAX_HEAD_SHARE"):
        monkeypatch.setattr(live, name, float("inf"))


def follow(folder: Path, run: RunRecords) -> Live:
    """Look at the run once a second of its own time."""
    followed, rings = Live(folder, run.manifest), [ReplayedRing(rank) for rank in run.ranks]
    for sample in run.samples:
        for ring in rings:
            ring.unix_ns = int(sample.unix_s * 1e9)
            followed.recent.follow(ring, is_last=False)  # type: ignore[arg-type]
        followed.recent.add_sample(sample)
        followed.evaluate()
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
    found = state["summary"]["step_time"]["global"]
    assert found["window"]["end_step"] == state["step"]
    steps = found["window"]["end_step"] - found["window"]["start_step"] + 1
    assert steps == found["window"]["steps_analyzed"] < 1200
    assert found["average"]["input_wait_ms"] == pytest.approx(15.0, rel=0.05)


@pytest.mark.usefixtures("tireless")
def test_the_state_holds_a_summary_of_the_last_steps_with_the_live_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_part(make_run(ranks=2, steps=1200, sampled_s=46), "input", 15.0, slice(1050, None))
    monkeypatch.setattr(live.time, "time", lambda: run.manifest.started_unix_s - 1.0)
    follow(tmp_path, run)
    state = json.loads((tmp_path / "live.json").read_bytes())
    summary = state["summary"]
    for name in ("step_time", "step_memory", "system", "process", "stability"):
        section, found = summary[name], [f for f in state["findings"] if f["section"] == name]
        assert section["diagnosis"] == section["issues"][0]
        assert [{**issue, "section": name} for issue in section["issues"]] == found
    issue = summary["step_time"]["diagnosis"]
    assert (issue["kind"], issue["since_step"]) == ("INPUT_BOUND", 1051)
    assert summary["primary_diagnosis"]["kind"] == "INPUT_BOUND"
    gain = summary["what_if"][0]
    assert gain["kind"] == "INPUT_BOUND" and gain["saved_ms"] == pytest.approx(15.0, rel=0.1)
    assert gain["step_time_ms"] == pytest.approx(51.0, rel=0.05)
    assert summary["step_time"]["metadata"]["training_total_steps"] == state["step"] > 1000
    assert summary["meta"]["world_size"] == 2
    assert summary["duration_s"] == 0 and summary["exit_status"] is None  # it began in the future
    assert summary["lineage"] is None and summary["text"] is None


@pytest.mark.usefixtures("tireless")
def test_before_anything_is_known_the_summary_says_that_it_is_too_early(tmp_path: Path) -> None:
    follow(tmp_path, make_run(steps=60, sampled_s=1))
    assert not (tmp_path / "live.json").exists()  # no step was complete in the first second
    follow(tmp_path, make_run(steps=6, sampled_s=2))
    summary = read_live((tmp_path / "live.json").read_bytes()).summary
    assert summary.primary_diagnosis.kind == "WARMUP"
    assert [issue.kind for issue in summary.step_time.issues] == ["WARMUP"]
    assert summary.system.diagnosis is None and summary.system.issues == ()


@pytest.mark.usefixtures("tireless")
def test_parameters_are_known_live_also_to_an_agent_that_was_started_again(tmp_path: Path) -> None:
    run = make_run(steps=300, sampled_s=10)
    (tmp_path / "rank-0-1.messages").write_text(
        '{"number":1,"kind":"params","values":{"lr":0.1,"epochs":3}}\n'
        '{"number":2,"kind":"metrics","step":1,"unix_ns":1,"values":{"loss":1.0}}\n'
    )
    followed = Live(tmp_path, run.manifest)
    followed.recent.add_messages([b'{"kind":"params","values":{"lr":0.2}}'])
    (ring,) = [ReplayedRing(rank) for rank in run.ranks]
    ring.unix_ns = int(run.samples[-1].unix_s * 1e9)
    followed.recent.follow(ring, is_last=False)  # type: ignore[arg-type]
    followed.evaluate()
    summary = read_live((tmp_path / "live.json").read_bytes()).summary
    assert summary.params == {"lr": 0.2, "epochs": 3}


@pytest.mark.parametrize("content", [b"", b"{", b'{"unix_s": 1.0}', b"[]", b"\xff"])
def test_a_file_that_is_no_live_state_is_none(content: bytes) -> None:
    assert read_live(content) is None


@pytest.mark.usefixtures("tireless")
def test_a_second_without_new_steps_leaves_everything_as_it_is(tmp_path: Path) -> None:
    followed = follow(tmp_path, make_run(steps=300, sampled_s=30))
    (tmp_path / "live.json").unlink()
    followed.evaluate()
    assert not (tmp_path / "live.json").exists()


@pytest.mark.usefixtures("tireless")
def test_a_hang_is_shown_and_its_rank_named_though_no_step_comes(tmp_path: Path) -> None:
    run = make_run(ranks=2, steps=300, sampled_s=30)
    followed = follow(tmp_path, run)
    waiting = standing(0, Doing.COLLECTIVE, call="all_reduce")
    asleep = standing(1, Doing.CODE, "train.py:30 in load")
    followed.recent.add_failures(with_stall(run, waiting, asleep, after_s=60.0).seen)
    for _ in range(10):
        followed.evaluate()
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
    followed.recent.add_messages(
        [json.dumps(message, separators=(",", ":")).encode() for message in said]
    )
    for _ in range(10):
        followed.evaluate()
    state = json.loads((tmp_path / "live.json").read_bytes())
    kinds = [finding["kind"] for finding in state["findings"] if finding["section"] == "stability"]
    assert kinds == ["EXCEPTION", "NON_FINITE_LOSS"]


def test_looks_that_cost_much_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two cores a look of 52 ms may be taken again after 5.2 s, on many after 2.6 s, but the
    first proves nothing."""
    now = [0.0]
    looked: list[float] = []
    monkeypatch.setattr(Live, "_diagnose", lambda self: looked.append(now[0]))
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    for usable, expected in ((2, [0.0, 1.0, 7.0, 13.0, 19.0]), (64, [0.0, 1.0, 4.0, 7.0, 10.0])):
        clock = count(step=0.052)
        monkeypatch.setattr(live.time, "thread_time", lambda clock=clock: next(clock))
        monkeypatch.setattr(live, "cores", lambda quota, usable=usable: float(usable))
        followed = Live(tmp_path, make_run(steps=1).manifest)
        looked.clear()
        for second in range(24):
            now[0] = float(second)
            followed.evaluate()
        assert looked[: len(expected)] == expected


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
for step, batch in enumerate(torch.utils.data.DataLoader(Samples(), batch_size=4)):
    time.sleep(0.03 if step < 100 else 0.005)  # far longer than its input, also on a busy machine
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
            found = [change for change in found if change["kind"] == "INPUT_BOUND"]
            return [change for change in found if change["severity"] == "crit"]

        change = wait_until(slow, "input is found to be critically slow")[0]
        running.process.terminate()
        running.process.wait(PATIENCE_S)
    # A busy machine looks so rarely that the first slow steps are no longer among the last ones.
    assert 99 <= change["since_step"] < change["step"]
    said = running.stdout_path.read_text() + running.stderr_path.read_text()
    assert change["summary"] not in said


def follow_as_head(
    folder: Path, run: RunRecords, ahead_s: float = 0.0, said: Sequence[bytes] = ()
) -> tuple[Live, Path]:
    """Look at a run on two machines as the head does; returns the other one's folder, too. `said`
    is what the head's own ranks report."""
    own, other = split_run(run, 2, ahead_s)
    node = folder / NODES / "host-b"
    node.mkdir(parents=True, exist_ok=True)
    folders.write_manifest(node, other.manifest)
    write_node(folder, NodeState(RUN_ID, "host-a", way=NodeWay.HEAD))
    write_node(node, NodeState(RUN_ID, "host-b", way=NodeWay.HTTP, clock_offset_s=ahead_s))
    followed, rings = Live(folder, own.manifest), [ReplayedRing(rank) for rank in own.ranks]
    followed.recent.add_messages(said)
    for first in range(0, 100, 20):
        for rank in other.ranks:
            write_rank(node, rank, first, first + 20)
        for rank, ring in zip(own.ranks, rings, strict=True):
            ring.unix_ns = rank.rank.unix_ns + int(rank.steps["start_ns"][first + 19]) + 10**9
            followed.recent.follow(ring, is_last=False)  # type: ignore[arg-type]
        followed.follow_nodes([rank.rank.pid for rank in own.ranks])
        followed.evaluate()
    return followed, node


@pytest.mark.usefixtures("tireless")
def test_the_head_names_a_late_rank_of_another_node(tmp_path: Path) -> None:
    follow_as_head(tmp_path, make_run(ranks=4, steps=100, slow_rank=3))
    state = json.loads((tmp_path / "live.json").read_bytes())
    assert state["summary"]["meta"]["world_size"] == 4
    late = [finding for finding in state["findings"] if finding["ranks"] == [3]]
    assert [finding["kind"] for finding in late] == ["COMPUTE_STRAGGLER"]
    nodes = state["summary"]["nodes"]
    assert [(node["name"], node["ranks"]) for node in nodes] == [
        ("host-a", [0, 1]),
        ("host-b", [2, 3]),
    ]
    assert nodes[1]["slowest_rank"] == 3
    assert nodes[1]["metrics"]["own_time_ms"] > nodes[0]["metrics"]["own_time_ms"] + 5


@pytest.mark.usefixtures("tireless")
def test_the_head_names_the_rank_of_another_node_that_all_wait_for(tmp_path: Path) -> None:
    run = make_run(ranks=4, steps=100)
    followed, node = follow_as_head(tmp_path, run, ahead_s=300.0)
    waiting = [standing(rank, Doing.COLLECTIVE, call="all_reduce") for rank in range(2)]
    followed.add_failures(with_stall(run, *waiting).seen)
    there = [  # two machines have the same process numbers, and clocks of their own
        replace(standing(2, Doing.COLLECTIVE, call="all_reduce"), pid=1000),
        replace(standing(3, Doing.CODE, "train.py:30 in load"), pid=1001),
    ]
    (stall,) = with_stall(run, *there).seen.stalls
    since_unix_s, seen_unix_s = stall.since_unix_s + 300.0, stall.seen_unix_s + 300.0
    there_and_then = replace(stall, since_unix_s=since_unix_s, seen_unix_s=seen_unix_s)
    write_seen(node, AgentSaw(stalls=(there_and_then,)))
    SampleFile(node).append(replace(run.samples[-1], unix_s=seen_unix_s))  # its agent is there
    for _ in range(10):
        followed.follow_nodes([1000, 1001])
        followed.evaluate()
    (change,) = [change for change in changes(tmp_path) if change["kind"] == "HANG"]
    assert change["ranks"] == [3]
    assert "rank 3 of host-b stands at train.py:30 in load" in change["summary"]
    assert "nodes/host-b/stacks/rank-3-" in change["action"]


@pytest.mark.usefixtures("tireless")
def test_the_head_tells_a_stall_only_when_the_other_nodes_could_say_what_they_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(ranks=4, steps=100)
    followed, _ = follow_as_head(tmp_path, run)
    waiting = [standing(rank, Doing.COLLECTIVE, call="all_reduce") for rank in range(2)]
    seen = with_stall(run, *waiting).seen
    for passed_s, expected in ((1.0, 0), (4.0, 1)):
        unix_s = seen.stalls[0].noticed_unix_s + passed_s
        monkeypatch.setattr(live.time, "time", lambda unix_s=unix_s: unix_s)
        for _ in range(10):
            followed.add_failures(seen)
            followed.evaluate()
        hangs = [change for change in changes(tmp_path) if change["kind"] == "HANG"]
        assert len(hangs) == expected


def stage(pid: int, number: int) -> str:
    """What a process says of the pipeline stage that it holds."""
    return f'{{"kind":"place","pid":{pid},"dimensions":[],"stages":[{number}]}}'


@pytest.mark.parametrize("gap", ["", " "], ids=["as written", "thinned"])
def test_an_agent_that_was_started_again_reads_what_is_rare_alone(tmp_path: Path, gap: str) -> None:
    rare = [
        {"number": 1, "kind": "params", "values": {"lr": 0.1}},
        {"kind": "settings", "pid": 7},
        {"number": 3, "kind": "place", "pid": 7},
        {"number": 4, "kind": "failure", "error": "ValueError"},
    ]
    frequent = [
        {"number": 5, "kind": "metrics", "values": {"place": 0.5}},
        {"number": 6, "kind": "folded", "values": {"params": [1, 0.5]}},
        {"number": 7, "kind": "directions", "values": {"failure": "max"}},
        {"number": 8, "kind": "artifact", "path": "settings"},
    ]
    lines = [json.dumps(each, separators=(f",{gap}", f":{gap}")) for each in (*rare, *frequent)]
    (tmp_path / "rank-0-1.messages").write_text("\n".join(lines))
    assert [json.loads(text) for text in earlier_reports(tmp_path)] == rare


@pytest.mark.usefixtures("tireless")
def test_the_head_compares_no_pipeline_stages_of_another_node(tmp_path: Path) -> None:
    run = make_run(ranks=4, steps=100, slow_rank=3)
    places = {0: (1000, 0), 1: (1001, 1), 2: (1000, 2), 3: (1001, 3)}
    said = {rank: stage(*place) for rank, place in places.items()}
    there = tmp_path / NODES / "host-b"
    there.mkdir(parents=True)
    for rank in (2, 3):
        text = said[rank].replace("{", '{"number":1,', 1)
        (there / f"rank-{rank}-{places[rank][0]}.messages").write_text(f"{text}\n")
    followed, _ = follow_as_head(tmp_path, run, said=[said[0].encode(), said[1].encode()])
    assert followed.state is not None
    kinds = {issue.kind for issue in followed.state.summary.step_time.issues}
    assert not {kind for kind in kinds if kind and "STRAGGLER" in kind}


@pytest.mark.usefixtures("tireless")
def test_an_agent_that_was_started_again_knows_the_pipeline_stages(tmp_path: Path) -> None:
    run = make_run(ranks=2, steps=1200, slow_rank=1, sampled_s=20)
    for rank in run.ranks:
        number, pid = rank.rank.rank, rank.rank.pid
        text = stage(pid, number).replace("{", '{"number":1,', 1)
        (tmp_path / f"rank-{number}-{pid}.messages").write_text(f"{text}\n")
    followed = follow(tmp_path, run)
    assert followed.state is not None
    kinds = {issue.kind for issue in followed.state.summary.step_time.issues}
    assert not {kind for kind in kinds if kind and "STRAGGLER" in kind}


@pytest.mark.usefixtures("tireless")
def test_the_head_shows_what_a_rank_of_another_node_says_of_its_end(tmp_path: Path) -> None:
    run = make_run(ranks=4, steps=100)
    followed, node = follow_as_head(tmp_path, run, ahead_s=300.0)
    failure = replace(
        report(where="train.py:7 in forward"),
        rank=3,
        pid=1001,
        unix_s=run.ranks[0].rank.unix_ns / 1e9 + 310.0,
    )
    said = json.dumps({"number": 9, "kind": "failure", **asdict(failure)}, separators=(",", ":"))
    (node / "rank-3-1001.messages").write_text(f"{said}\n")
    for _ in range(10):
        followed.follow_nodes([1000, 1001])
        followed.evaluate()
    (change,) = [change for change in changes(tmp_path) if change["kind"] == "EXCEPTION"]
    assert change["ranks"] == [3]
