"""`traceml.runs`: records of the runs in a folder."""

from __future__ import annotations

import builtins
import math
import threading
from pathlib import Path
from typing import Any

import pytest

import traceml
from listed_runs import list_run, list_sweep, metric
from processes import wait_until
from traceml.api import query_runs
from traceml.api.find_runs import tag_run
from traceml.api.query_runs import RunQuery, RunSearch
from traceml.figures.run_columns import FACTS, MAX_TEXT_CHARS
from traceml.model.errors import RunNotFound, UsageError
from traceml.store import folder as folders
from traceml.store.query_language import QueryError
from traceml.store.run_index import RunIndex, index_folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return list_sweep(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("mixed")
    list_run(logs, "a", {"lr": 0.1, "seed": 1, "amp": True, "labels": "x", "mixed": 1})
    list_run(logs, "b", {"amp": False, "mixed": "auto"})
    return logs


def test_a_record_has_what_the_run_was_what_it_achieved_and_how_it_ran(sweep: Path):
    found = traceml.runs('lr = 0.01 and optimizer = "sgd" and seed = 2', logs_dir=sweep)
    (run,) = found
    assert run.name == "sweep-05"
    assert run["params.lr"] == run["lr"] == 0.01
    assert run["params.model.layers"] == 4
    assert run["metrics.val/loss"] == run["val/loss"] == pytest.approx(0.12)
    assert run["accuracy.max"] == run["accuracy"] == 0.99  # logged once
    assert run["metrics.val/loss.min"] == run["val/loss.best"] == pytest.approx(0.06)
    assert (run["status"], run["diagnosis"], run["verdict"]) == (
        *("finished", "INPUT_BOUND", "INPUT-BOUND"),
    )
    assert run["step_time_ms"] == pytest.approx(25.2)
    assert (run["throughput"], run["steps"], run["world_size"]) == (640.0, 100, 2)
    assert run["peak_memory_bytes"] == 2 << 30  # of the worst rank
    assert (run["user"], run["host"], run["gpu_names"]) == ("ada", "node", ("H200",))
    assert (run["commit"], run["branch"], run["script"]) == ("c" * 40, "main", "train.py")
    assert run.get("note") is None
    assert dict(run)["params.optimizer"] == "sgd"
    with pytest.raises(KeyError, match="no run has"):
        run["params.nothing"]


def test_the_newest_come_first_or_in_the_order_asked_for(sweep: Path):
    names = [run.name for run in traceml.runs(logs_dir=sweep)]
    assert names == [f"sweep-{number:02}" for number in range(12)]
    best = traceml.runs(sort="val/loss", limit=2, logs_dir=sweep)
    assert [run["lr"] for run in best] == [0.01, 0.01]
    assert (len(best), best.total) == (2, 12)
    ordered = traceml.runs(sort="-lr, optimizer desc, seed", logs_dir=sweep)
    assert [(r["lr"], r["optimizer"], r["seed"]) for r in ordered][:4] == [
        *((0.1, "sgd", 0), (0.1, "sgd", 1), (0.1, "sgd", 2), (0.1, "adam", 0)),
    ]
    assert [run.name for run in ordered[1:3]] == ["sweep-10", "sweep-11"]


def test_a_wrong_name_is_an_error_that_points_at_it(sweep: Path):
    with pytest.raises(QueryError, match=r"did you mean params\.optimizer"):
        traceml.runs('status = "finished" and optimiser = "adam"', logs_dir=sweep)
    with pytest.raises(QueryError, match="no run has 'nothing'"):
        traceml.runs(sort="nothing", logs_dir=sweep)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('step_time_ms < "1ms"', r"step_time_ms holds numbers, such as 20.*without quotes"),
        ("status > 5", r'status holds texts, such as "finished", so that > 5 is true of no run'),
        ('lr > "abc"', r"params\.lr holds numbers"),
        ('step_time_ms contains "5"', r"holds numbers, such as 20"),
        ('seed = 1 or not (step_time_ms matches "2*")', r"holds numbers"),
        ("amp > 0", r"params\.amp holds true and false.*= true"),
        ("lr > true", r"params\.lr holds numbers"),
        ("labels > 5", r"params\.labels holds texts"),
    ],
)
def test_a_filter_that_can_never_hold_says_what_the_column_holds(
    mixed: Path, text: str, words: str
):
    with pytest.raises(QueryError, match=words):
        traceml.runs(text, logs_dir=mixed)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('lr > "0.001"', 1),
        ("mixed > 3", 0),
        ('mixed > "b"', 0),
        ('mixed contains "ut"', 1),
        ('status > "a"', 2),
        ("status = 5", 0),
        ("peak_memory_bytes < 5", 0),
        ("duration_s < 2 min", 2),
        ('note contains "x"', 0),
    ],
)
def test_a_filter_that_could_hold_is_answered(mixed: Path, text: str, count: int):
    assert len(traceml.runs(text, logs_dir=mixed)) == count


def test_groups_have_means_with_intervals_and_bests(sweep: Path):
    found = traceml.runs(logs_dir=sweep)
    small, large = found.group("params.lr", ["metrics.val/loss", "facts.step_time_ms"])
    assert (small.values, len(small.rows)) == ({"params.lr": 0.01}, 6)
    loss = small.columns["metrics.val/loss"]
    assert loss.mean == pytest.approx(0.11)
    # Six values, 0.1, 0.11 and 0.12 twice each: standard error 0.00365, t of 5 degrees 2.571.
    assert loss.low == pytest.approx(0.11 - 2.571 * 0.0036515, abs=1e-5)
    assert (loss.best, loss.count) == (pytest.approx(0.1), 6)
    assert large.columns["facts.step_time_ms"].best == pytest.approx(20.0)


def test_all_but_the_seed_groups_repetitions(sweep: Path):
    found = traceml.runs(logs_dir=sweep)
    groups = found.group("all-but:params.seed", ["metrics.accuracy"])
    assert [tuple(group.values.values()) for group in groups] == [
        *((0.01, "adam"), (0.01, "sgd"), (0.1, "adam"), (0.1, "sgd")),
    ]
    assert {len(group.rows) for group in groups} == {3}
    assert groups[0].columns["metrics.accuracy"].low == pytest.approx(0.99)


def test_what_is_not_finite_is_counted_and_in_no_mean(tmp_path: Path):
    for number, value in enumerate([1.0, None, 3.0]):  # JSON has no NaN: the summary says null
        list_run(tmp_path, f"run-{number}", {"a": 1}, {"loss": metric(value)})
    found = traceml.runs(logs_dir=tmp_path)
    (group,) = found.group("params.a", ["metrics.loss"])
    loss = group.columns["metrics.loss"]
    assert (loss.count, loss.mean, loss.not_finite) == (2, 2.0, 1)
    assert [run.name for run in traceml.runs("loss = nan", logs_dir=tmp_path)] == ["run-1"]
    assert math.isnan(found[1]["loss"])  # type: ignore[arg-type]


def test_status_tells_failed_lost_and_live_runs(tmp_path: Path):
    list_run(tmp_path, "good")
    list_run(tmp_path, "bad", exit_status=3)
    list_run(tmp_path, "lost", exit_status=None)
    live = list_run(tmp_path, "live", exit_status=None)
    held = folders.hold(live)
    assert held is not None
    found = {run.name: run["status"] for run in traceml.runs(logs_dir=tmp_path)}
    assert found == {"good": "finished", "bad": "failed", "lost": "lost", "live": "live"}


def test_a_live_run_has_all_that_it_logged_and_not_only_its_last_losses(tmp_path: Path):
    folder = list_run(tmp_path, "live", {"lr": 0.1}, {"loss": metric(0.5)}, exit_status=None)
    summary = (folder / "final_summary.json").read_text()
    (folder / "final_summary.json").unlink()
    state = f'{{"unix_s": 1.0, "step": 9, "findings": [], "summary": {summary}}}'
    (folder / "live.json").write_text(state)
    said = '{{"number":{0},"kind":"metrics","step":{0},"unix_ns":{0},"values":{1}}}\n'
    messages = folder / "rank-0-1.messages"
    messages.write_text(
        said.format(1, '{"loss":0.25,"val/acc":0.7}') + said.format(2, '{"loss":3}')
    )
    held = folders.hold(folder)
    assert held is not None
    search = RunSearch(tmp_path)
    (run,) = search.search(RunQuery())
    assert (run["status"], run["loss"], run["loss.min"], run["val/acc"]) == ("live", 3, 0.25, 0.7)
    with messages.open("a") as file:
        file.write(said.format(3, '{"loss":0.125}'))
    (run,) = search.search(RunQuery())
    assert (run["loss"], run["loss.best"], run["loss.max"]) == (0.125, 0.125, 3)


def test_a_tag_is_found_at_once(tmp_path: Path):
    list_run(tmp_path, "a")
    list_run(tmp_path, "b")
    search = RunSearch(tmp_path)
    query = RunQuery('tags contains "good"')
    assert len(search.search(RunQuery())) == 2
    tag_run("b", tmp_path, ["good"], [], "worth a look")
    (run,) = search.search(query)
    assert (run.name, run["tags"], run["note"]) == ("b", ("good",), "worth a look")
    tag_run("b", tmp_path, [], ["good"], None)
    assert len(search.search(query)) == 0
    with pytest.raises(RunNotFound):
        tag_run("c", tmp_path, ["good"], [], None)


def test_a_folder_that_holds_a_foreign_summary_alone_can_be_listed_and_tagged(tmp_path: Path):
    folder = list_run(tmp_path, "theirs")
    (folder / "run.json").unlink()
    (folder / "ending.json").unlink()
    tag_run("theirs", tmp_path, ["peer"], [], None)
    (run,) = traceml.runs("tags = 'peer'", logs_dir=tmp_path)
    assert (run.name, run["status"]) == ("theirs", "finished")


def test_a_damaged_summary_is_listed_with_its_problem(tmp_path: Path):
    folder = list_run(tmp_path, "broken")
    (folder / "final_summary.json").write_text("{")
    (run,) = traceml.runs("problem is not missing", logs_dir=tmp_path)
    assert "not a run summary" in str(run["problem"])


def test_what_could_not_be_read_of_listed_runs_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    list_run(tmp_path, "good")
    for number in range(3):
        (list_run(tmp_path, f"broken-{number}") / "final_summary.json").write_text("{")
    found = traceml.runs(logs_dir=tmp_path)
    assert [f"broken-{number}" in note for number, note in enumerate(found.notes)] == [True] * 3
    assert traceml.runs("name = 'good'", logs_dir=tmp_path).notes == ()
    monkeypatch.setattr(query_runs, "MAX_PROBLEMS", 1)
    first, more = traceml.runs(logs_dir=tmp_path).notes
    assert "broken-0" in first and more.startswith("2 more")


def test_a_folder_that_is_not_there_is_an_error_and_no_limit_is_all(sweep: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="there is no folder"):
        traceml.runs(logs_dir=tmp_path / "nowhere")
    assert len(traceml.runs(limit=0, logs_dir=sweep)) == 12


def test_a_parameter_of_a_megabyte_is_cut_and_a_strange_one_is_kept(tmp_path: Path):
    params = {"long": "x" * 1_000_000, "odd name": True, "none": None, "list": [1, 2]}
    list_run(tmp_path, "run", params, {"top-5/acc.é": metric(0.5)})
    (run,) = traceml.runs('top-5/acc.é > 0.4 and params."odd name" = true', logs_dir=tmp_path)
    assert len(str(run["params.long"])) == MAX_TEXT_CHARS
    assert run["list"] == "1, 2"
    assert "params.none" not in run


def test_segments_are_columns_with_their_last_value(tmp_path: Path):
    logged = {"accuracy": metric(0.8), "f1": metric(0.1)}
    classes = {f"accuracy[class {n}]": metric(n / 10_000) for n in range(10_000)}
    list_run(tmp_path, "wide", {"lr": 1}, {**classes, **logged})
    list_run(tmp_path, "plain", {"lr": 2}, logged)
    (run,) = traceml.runs("accuracy[class 9999] > 0.99", logs_dir=tmp_path)
    assert run.name == "wide" and run["accuracy[class 7]"] == 7 / 10_000
    assert "metrics.accuracy.max" in run
    assert "metrics.accuracy[class 7].max" not in run
    found = traceml.runs(logs_dir=tmp_path)
    assert found.main_metrics(3) == ["metrics.f1", "metrics.accuracy"]
    assert found.choose_columns("accuracy[class 7],lr") == [
        "metrics.accuracy[class 7]",
        "params.lr",
    ]
    assert len(found.choose_columns("metrics.accuracy[class 99*]")) == 111
    assert len(found.choose_columns("accuracy[*]")) == 10_000
    assert found.notes == ()


def test_what_a_script_said_of_a_metric_holds_for_its_segments_in_groups(tmp_path: Path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        said = {**metric(value), "higher_is_better": False}
        list_run(tmp_path, name, {"lr": 1}, {"gap[x]": said})
    (group,) = traceml.runs(logs_dir=tmp_path).group("lr", ["metrics.gap[x]"])
    assert group.columns["metrics.gap[x]"].best == 1.0


def test_options_of_the_command_line_are_parameters_where_nothing_was_logged(tmp_path: Path):
    options = ["data", "--lr", "1e-3", "--epochs=3", "--amp", "--name", "x"]
    list_run(tmp_path, "unlogged", arguments=options)
    list_run(tmp_path, "logged", {"learning_rate": 0.001}, arguments=["--lr", "0.001"])
    (run,) = traceml.runs("lr < 0.01 and epochs = 3 and amp = true", logs_dir=tmp_path)
    assert run.name == "unlogged"
    assert (run["params.lr"], run["params.epochs"]) == (0.001, 3)
    assert [key for key in run if key.startswith("params.")] == [
        *("params.amp", "params.epochs", "params.lr", "params.name"),
    ]


def test_groups_can_be_sorted_by_the_mean_of_a_column(sweep: Path):
    found = traceml.runs(logs_dir=sweep)
    groups = found.group("optimizer, lr", ["metrics.accuracy"], "-val/loss, optimizer desc")
    assert [tuple(group.values.values()) for group in groups] == [
        *(("sgd", 0.1), ("adam", 0.1), ("sgd", 0.01), ("adam", 0.01)),
    ]


def test_a_parameter_that_only_names_a_run_keeps_no_repetitions_apart(tmp_path: Path):
    for seed in range(3):
        params = {"lr": 0.1, "seed": seed, "output_dir": f"out/{seed}"}
        list_run(tmp_path, f"run-{seed}", params, {"loss": metric(float(seed))})
    found = traceml.runs(logs_dir=tmp_path)
    (group,) = found.group("all-but:seed", ["metrics.loss"])
    assert len(group.rows) == 3
    assert found.varying() == ["params.seed", "params.output_dir"]


def test_a_script_that_says_which_direction_is_better_is_believed(tmp_path: Path):
    said = {**metric(0.5, 0.1, 0.9), "higher_is_better": True}
    list_run(tmp_path, "run", {}, {"loss of weight": said, "nonsense": metric(0.5, 0.1, 0.9)})
    (run,) = traceml.runs(logs_dir=tmp_path)
    assert run['metrics."loss of weight".best'] == 0.9
    with pytest.raises(QueryError, match="cannot be told from its name"):
        traceml.runs("nonsense.best > 0", logs_dir=tmp_path)


def test_a_stated_direction_goes_before_the_name_in_groups_and_among_the_main_metrics(
    tmp_path: Path,
):
    for number, value in enumerate([0.2, 0.8]):
        said = {**metric(value, 0.1, 0.9), "higher_is_better": True}
        list_run(tmp_path, f"run-{number}", {"a": 1}, {"margin_loss": said, "gap": said})
    list_run(tmp_path, "silent", {"a": 1}, {"margin_loss": metric(0.5, 0.1, 0.9)})
    found = traceml.runs(logs_dir=tmp_path)
    assert found.main_metrics(3) == ["metrics.gap", "metrics.margin_loss"]
    (group,) = found.group("params.a", ["metrics.margin_loss", "max.gap", "params.a"])
    assert group.columns["metrics.margin_loss"].best == 0.8
    assert group.columns["max.gap"].best == 0.9
    assert group.columns["params.a"].best is None
    assert not [key for key in found.keys if "higher_is_better" in key]


def test_best_is_there_for_runs_that_said_a_direction_and_for_those_that_did_not(tmp_path: Path):
    said = {**metric(0.5, 0.1, 0.9), "higher_is_better": True}
    list_run(tmp_path, "said", {}, {"margin_loss": said, "accuracy": metric(0.5, 0.1, 0.9)})
    list_run(tmp_path, "silent", {}, {"margin_loss": metric(0.5, 0.1, 0.9)})
    found = {run.name: run for run in traceml.runs(logs_dir=tmp_path)}
    assert found["said"]["margin_loss.best"] == 0.9
    assert found["silent"]["margin_loss.best"] == 0.1
    assert dict(found["said"])["metrics.accuracy.best"] == 0.9
    assert len(traceml.runs("margin_loss.best is not missing", logs_dir=tmp_path)) == 2


def test_a_damaged_index_is_built_again_by_the_query_that_meets_it(sweep: Path):
    traceml.runs(logs_dir=sweep)
    for segment in index_folder(sweep).glob("*.runs"):
        content = bytearray(segment.read_bytes())
        for place in range(len(content) // 2, len(content)):
            content[place] ^= 255
        segment.write_bytes(content)
    assert len(traceml.runs("lr = 0.1 and user = 'ada'", sort="val/loss", logs_dir=sweep)) == 6


def test_several_threads_may_search_at_once(sweep: Path):
    search = RunSearch(sweep)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(len(search.search(RunQuery("lr > 0.05")))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [6] * 8


def test_a_server_answers_at_once_only_from_what_is_fresh(tmp_path: Path):
    list_run(tmp_path, "a")
    fresh, stale = RunSearch(tmp_path, max_age_s=600.0), RunSearch(tmp_path, max_age_s=0.0)
    assert len(fresh.search(RunQuery())) == len(stale.search(RunQuery())) == 1
    list_run(tmp_path, "b")
    assert len(fresh.search(RunQuery())) == 1
    assert len(stale.search(RunQuery())) == 2  # the first answer after idling, too


def test_a_server_does_not_wait_for_ever_for_a_slow_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    list_run(tmp_path, "a")
    search = RunSearch(tmp_path, max_age_s=0.0, timeout_s=0.01)
    assert len(search.search(RunQuery())) == 1
    list_run(tmp_path, "b")
    is_there = threading.Event()
    refresh = RunIndex.refresh

    def slow(index: RunIndex, *rest: Any) -> Any:
        is_there.wait()
        return refresh(index, *rest)

    monkeypatch.setattr(RunIndex, "refresh", slow)
    assert len(search.search(RunQuery())) == 1
    is_there.set()
    wait_until(lambda: len(search.search(RunQuery())) == 2, "the search finds both runs")


def test_a_logs_folder_that_is_a_file_is_said(tmp_path: Path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(UsageError, match="is no folder"):
        traceml.runs(logs_dir=tmp_path / "logs")


def test_every_fact_is_filled_or_known_by_a_name_of_the_catalogue(sweep: Path):
    found = traceml.runs(logs_dir=sweep)
    facts = {key.removeprefix("facts.") for key in found.keys if key.startswith("facts.")}
    assert facts <= FACTS.keys()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_without_its_library_is_a_clear_error(
    sweep: Path, library: str, monkeypatch: pytest.MonkeyPatch
):
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == library:
            raise ImportError(name)
        return real(name, *rest)

    found = traceml.runs(logs_dir=sweep)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=f"pip install {library}"):
        getattr(found, f"to_{library}")()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_has_a_row_per_run_and_a_column_per_key(tmp_path: Path, library: str):
    pytest.importorskip(library)
    list_run(tmp_path, "a", {"lr": 0.1, "mixed": 1}, {"loss": metric(None)}, ago_s=10_000)
    list_run(tmp_path, "b", {"mixed": "auto"}, {"loss": metric(2.0)}, ago_s=20_000)
    tag_run("b", tmp_path, ["x", "y"], [], None)
    frame = getattr(traceml.runs(logs_dir=tmp_path), f"to_{library}")()
    assert frame.shape[0] == 2
    assert list(frame["name"]) == ["a", "b"]
    assert list(frame["metrics.loss"])[1] == 2.0
    assert list(map(str, frame["params.mixed"])) == ["1", "auto"]
    assert list(frame["tags"])[1] == "x, y"
    assert frame["started"][0] > frame["started"][1]
