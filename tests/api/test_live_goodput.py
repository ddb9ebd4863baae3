"""Goodput and attempts of a run in progress: on its page, and the same that a load of it finds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from factories import make_run, work_between
from node_runs import bring_to_head, write_nodes
from restarted_runs import Start, restarted
from run_folders import write_rank
from traceml.api.watch import RunWatch
from traceml.facts.attempts import find_attempts
from traceml.facts.goodput import goodput_of
from traceml.facts.stability import NOTHING_KNOWN
from traceml.model.environment import ENDING
from traceml.model.run_time import RunPart
from traceml.store import folder as folders
from traceml.store.failures import write_seen
from traceml.store.line_files import LIVE_STATE
from traceml.store.load import load_run
from traceml.store.records import RunRecords
from traceml.store.run_follower import RunFollower
from traceml.store.run_so_far import run_so_far
from traceml.summaries.goodput import attempt_summaries, goodput_summary
from traceml.summaries.live_record import LiveState
from traceml.summaries.record import AttemptSummary, GoodputSummary, Summary


def told(run: RunRecords) -> tuple[GoodputSummary | None, tuple[AttemptSummary, ...]]:
    attempts = find_attempts(run, NOTHING_KNOWN)
    return (
        goodput_summary(goodput_of(run, attempts), attempts),
        attempt_summaries(attempts, run.manifest.started_unix_s),
    )


def so_far(folder: Path) -> RunRecords:
    follower = RunFollower(folder)
    follower.refresh()
    return run_so_far(follower.nodes())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A run that goes on, for the second time: its first attempt failed after 45 steps."""
    run = restarted(Start(45, resumed=0), Start(20, resumed=30, has_loaded=True))
    found = tmp_path / "run"
    found.mkdir()
    folders.write_manifest(found, run.manifest)
    for process in run.processes:
        write_rank(found, process, 0, len(process.steps))
        said = process.resumption
        assert said is not None
        line = {
            "kind": "resumed",
            "has_loaded": said.has_loaded,
            "step": said.step,
            "restart": said.restart,
        }
        stem = f"rank-{process.rank.rank}-{process.rank.pid}"
        (found / f"{stem}.messages").write_text(json.dumps(line) + "\n")
    first = run.processes[0].rank.unix_ns / 1e9 + 30
    write_seen(found, type(run.seen)(deaths=tuple(d for d in run.seen.deaths if d.unix_s < first)))
    held = folders.hold(found)
    assert held is not None
    yield found
    os.close(held)


def test_it_is_what_a_load_of_the_run_finds(folder: Path) -> None:
    goodput, attempts = told(so_far(folder))
    loaded, listed = told(load_run(folder))
    assert goodput is not None and loaded is not None
    assert goodput.parts_s == pytest.approx(loaded.parts_s, abs=1e-6)
    assert (goodput.share, goodput.restarts, goodput.redone_steps) == (
        pytest.approx(loaded.share),
        1,
        15,
    )
    assert attempts == listed and len(attempts) == 2


def test_it_is_the_same_for_several_nodes(tmp_path: Path) -> None:
    run = work_between(make_run(ranks=4, steps=200), "evaluation", 300.0, every=20)
    folder = bring_to_head(*write_nodes(tmp_path, 2, ahead_s=300.0, run=run))
    for place in (folder, *(folder / "nodes").iterdir()):
        (place / ENDING).unlink()
    goodput, _ = told(so_far(folder))
    loaded, _ = told(load_run(folder))
    assert goodput is not None and loaded is not None
    assert goodput.parts_s == pytest.approx(loaded.parts_s, abs=0.01)
    assert goodput.parts_s[RunPart.EVALUATION.value] > 1.0


def test_the_page_has_it_while_the_run_goes_on(folder: Path) -> None:
    (folder / LIVE_STATE).write_bytes(msgspec.json.encode(LiveState(1.0, 7, (), Summary())))
    parts = {part.id: part for part in RunWatch(folder).page().parts}
    assert (parts["goodput"].note or "").endswith("of wall time so far")
    assert [row.cells[0] for row in parts["goodput"].tables[0].rows] == ["Attempt 1", "Attempt 2"]
