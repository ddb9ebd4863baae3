"""A run as a page: going on, finished, failed, lost, foreign, deleted; and two of them compared."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from factories import make_run
from failing import failed, report
from processes import PATIENCE_S, TRACEML, started, wait_until
from run_folders import write_rank, write_run
from traceml.agent.close import summarise
from traceml.api import watch as watch_module
from traceml.api.watch import RunWatch
from traceml.figures.page import Heatmap, Lines, RunPage
from traceml.model.errors import RunNotFound, UnreadableRecords
from traceml.model.run import Ending
from traceml.store import folder as folders
from traceml.store.run_follower import RunFollower
from traceml.summaries.live_record import LiveState
from traceml.summaries.record import PrimaryDiagnosis, Summary

PEER = Path(__file__).parents[1] / "data" / "peer"


def lines(page: RunPage, name: str) -> Lines:
    figures = [figure for part in page.parts for figure in part.figures]
    (found,) = [figure for figure in figures if isinstance(figure, Lines) and figure.id == name]
    return found


def test_a_finished_run_has_its_summary_and_its_history(tmp_path: Path) -> None:
    run = make_run(ranks=2, steps=300, input_ms=40.0, sampled_s=30)
    watch = RunWatch(write_run(tmp_path / "run", run))
    page = watch.page()
    assert (page.head.state, page.verdict.status) == ("finished", "INPUT-BOUND")
    assert not watch.is_live()
    assert page.head.steps == "300 steps"
    assert len(lines(page, "step-time").at) == 300
    assert page.output is None and page.notes == ()
    assert watch.page() is page  # nothing has changed
    msgspec.json.decode(msgspec.json.encode(page), type=RunPage)


def test_a_run_that_goes_on_is_live_and_grows(tmp_path: Path) -> None:
    run = make_run(steps=300)
    (rank,) = run.ranks
    folder = tmp_path / "run"
    folder.mkdir()
    folders.write_manifest(folder, run.manifest)
    held = folders.hold(folder)
    assert held is not None
    watch = RunWatch(folder)
    page = watch.page()
    assert page.head.state == "live" and watch.is_live()
    assert page.head.steps == "no steps yet"
    seen = []
    for first in range(0, 300, 100):
        write_rank(folder, rank, first, first + 100)
        seen.append(len(lines(watch.page(), "step-time").at))
    assert seen == [100, 200, 300]
    os.close(held)
    folders.write_ending(folder, Ending(run.manifest.started_unix_s + 60, 0))
    page = watch.page()
    assert page.head.state == "finished" and not watch.is_live()


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        pytest.param(Ending(1_800_000_060.0, 0), "finished", id="ended well"),
        pytest.param(Ending(1_800_000_060.0, 3), "failed", id="a status of its own"),
        pytest.param(Ending(1_800_000_060.0, None), "finished", id="nobody saw its status"),
    ],
)
def test_the_state_is_how_the_run_ended(tmp_path: Path, ending: Ending, state: str) -> None:
    page = RunWatch(write_run(tmp_path / "run", ending=ending)).page()
    assert page.head.state == state


def test_an_exception_fails_a_run_whose_status_nobody_saw(tmp_path: Path) -> None:
    run = failed(report(), status=None)
    folder = write_run(tmp_path / "run", run)
    message = {"number": 1, "kind": "failure", **msgspec.to_builtins(report())}
    (folder / "rank-0-1000.messages").write_bytes(msgspec.json.encode(message) + b"\n")
    summarise(folder)
    assert RunWatch(folder).page().head.state == "failed"


def test_a_run_that_nobody_holds_and_nobody_saw_end_is_lost(tmp_path: Path) -> None:
    page = RunWatch(write_run(tmp_path / "run", is_over=False)).page()
    assert page.head.state == "lost"
    assert len(lines(page, "step-time").at) == 200


def test_what_a_look_that_failed_did_not_show_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk's bad moment, just when the run ended."""
    folder = write_run(tmp_path / "run", is_over=False)
    watch = RunWatch(folder)
    assert watch.page().head.state == "lost"
    folders.write_ending(folder, Ending(1_800_000_060.0, 0))
    with monkeypatch.context() as broken:

        def fail(follower: RunFollower) -> None:
            raise OSError("input/output error")

        broken.setattr(RunFollower, "refresh", fail)
        with pytest.raises(OSError, match="input/output"):
            watch.page()
    assert watch.page().head.state == "finished"


def live_state(status: str) -> bytes:
    said = PrimaryDiagnosis(kind="INPUT_BOUND", status=status, severity="warn", summary="So.")
    return msgspec.json.encode(LiveState(1.0, 7, (), Summary(primary_diagnosis=said)))


def test_while_a_run_goes_on_its_last_steps_are_told_and_then_all_of_it(tmp_path: Path) -> None:
    """Its script asked for a summary of the whole meanwhile."""
    folder = write_run(tmp_path / "run", is_over=False)
    held = folders.hold(folder)
    assert held is not None
    (folder / "live.json").write_bytes(live_state("NOW"))
    summarise(folder)
    watch = RunWatch(folder)
    assert watch.page().verdict.status == "NOW"
    os.close(held)
    page = watch.page()  # nobody saw its end: the youngest of both
    assert (page.head.state, page.verdict.status) == ("lost", "COMPUTE-BOUND")
    (folder / "live.json").write_bytes(live_state("LATER"))
    assert watch.page().verdict.status == "LATER"
    folders.write_ending(folder, Ending(1_800_000_060.0, 0))
    assert watch.page().verdict.status == "COMPUTE-BOUND"


def test_a_foreign_summary_alone_is_a_page_without_history(tmp_path: Path) -> None:
    source = next(PEER.rglob("*.json"))
    (tmp_path / "theirs").mkdir()
    shutil.copy(source, tmp_path / "theirs" / "final_summary.json")
    watch = RunWatch(tmp_path / "theirs")
    page = watch.page()
    assert (page.head.name, page.head.state) == ("theirs", "finished")
    assert page.verdict.status
    assert watch.detail(1, 10) == ()


def test_a_summary_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "final_summary.json").write_text("{")
    page = RunWatch(folder).page()
    assert page.head.state == "finished"
    (note,) = page.notes
    assert "final_summary.json is not a run summary" in note


def test_a_closer_look_is_finer_and_has_the_same_figures(tmp_path: Path) -> None:
    run = make_run(ranks=2, steps=5000)
    watch = RunWatch(write_run(tmp_path / "run", run))
    whole = watch.page()
    closer = watch.detail(1001, 1100)
    zooming = {
        figure.id
        for part in whole.parts
        for figure in part.figures
        if isinstance(figure, Lines | Heatmap) and figure.zooms
    }
    assert {figure.id for figure in closer} <= zooming
    (found,) = [figure for figure in closer if figure.id == "step-time"]
    assert isinstance(found, Lines)
    assert found.at == tuple(float(step) for step in range(1001, 1101))
    assert len(lines(whole, "step-time").at) < 1025


@pytest.mark.parametrize(("first", "last"), [(2, 1), (0, -5), (10**9, 2 * 10**9)])
def test_a_closer_look_at_steps_that_are_not_there_shows_nothing(
    tmp_path: Path, first: int, last: int
) -> None:
    watch = RunWatch(write_run(tmp_path / "run", make_run(steps=50)))
    assert watch.detail(first, last) == ()
    assert watch.detail(-7, 10**12)  # wider than the run is all of it


def test_a_run_that_is_deleted_while_it_is_looked_at_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    watch = RunWatch(folder)
    watch.page()
    shutil.rmtree(folder)
    with pytest.raises(RunNotFound, match=r"holds neither run\.json nor final_summary\.json"):
        watch.page()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        RunWatch(tmp_path)
    with pytest.raises(RunNotFound):
        RunWatch(tmp_path / "nowhere")
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UnreadableRecords, match="is damaged"):
        RunWatch(tmp_path)


def test_a_run_that_takes_long_to_look_at_is_looked_at_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RunWatch(write_run(tmp_path / "run"))
    spent_s = itertools.accumulate([0.0, 8.0, 0.0, 2.0, 0.0, 3.0])  # before and after each look
    monkeypatch.setattr(watch_module.time, "thread_time", lambda: next(spent_s))
    watch.page()
    assert watch.pause_s() == 1.0  # the first look reads all that there is
    watch.page()
    assert watch.pause_s() == 2.0 / watch_module.MAX_CORE_SHARE
    watch.page()
    assert watch.pause_s() == 2.0 / watch_module.MAX_CORE_SHARE


TRAINING = """
import time
import torch
import traceml

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
traceml.log_params({"max_steps": 100_000})
for step, batch in enumerate(torch.utils.data.DataLoader(torch.zeros(400_000, 64), batch_size=4)):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    traceml.log_metrics({"loss": float(loss.detach())})
    print(f"\\rstep {step}", end="", flush=True)
    time.sleep(0.01)
"""


def test_a_real_run_is_followed_while_it_trains(tmp_path: Path) -> None:
    """Steps, findings, parameters, metrics, sensors and output arrive; then its end does."""
    command = [TRACEML, "run", "--mode=summary", "--save-output", "--run-name", "live", "train.py"]
    with started(command, tmp_path, TRAINING) as running:
        folder = tmp_path / "logs" / "live"
        wait_until((folder / "run.json").exists, "the run has begun")
        watch = RunWatch(folder)

        def told() -> RunPage | None:
            page = watch.page()
            names = {figure.id for part in page.parts for figure in part.figures}
            is_whole = {"step-time", "loss", "system-cpu", "process-cpu"} <= names
            return page if is_whole and page.verdict.status != "WARMUP" else None

        page = wait_until(told, "the page shows everything")
        assert page.head.state == "live" and watch.is_live()
        assert "of 100,000 steps" in page.head.steps
        assert page.output is not None and page.output[-1].startswith("step ")
        reached = lines(page, "step-time").at[-1]
        wait_until(lambda: lines(watch.page(), "step-time").at[-1] > reached, "it goes on")
        running.process.terminate()
        running.process.wait(PATIENCE_S)
        page = wait_until(
            lambda: None if (now := watch.page()).head.state == "live" else now, "it has ended"
        )
    assert page.head.state == "failed" and not watch.is_live()
    summary = json.loads((folder / "final_summary.json").read_bytes())
    taken = summary["step_time"]["metadata"]["training_total_steps"]
    assert f"{taken:,}" in page.head.steps
