"""`traceml runs` and `traceml tag`, as people call them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from listed_runs import list_run, list_sweep, metric
from traceml.cli import main
from traceml.model.printable import terminal_width


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return list_sweep(tmp_path_factory.mktemp("logs"))


class Shown:
    """What a command printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.errors = ""

    def __call__(self, *words: object, status: int = 0) -> str:
        assert main([str(word) for word in words]) == status
        output, self.errors = self._capsys.readouterr()
        return output

    def json(self, *words: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*words, "--format", "json"), parse_constant=_refuse)
        return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe of a shell
    return Shown(capsys)


def test_the_table_has_what_matters(sweep: Path, shown: Shown):
    lines = shown("runs", "--logs-dir", sweep).splitlines()
    assert lines[0].split() == [
        *("run", "started", "status", "verdict", "step", "time", "accuracy", "val/loss"),
        *("lr", "optimizer", "seed"),
    ]
    assert lines[2].split() == [
        *("sweep-00", "1", "h", "ago", "finished", "INPUT-BOUND", "20.0", "ms", "0.99", "0.1"),
        *("0.01", "adam", "0"),
    ]
    assert "layers" not in lines[0]  # the same in all runs
    assert lines[-1] == "12 runs"


def test_filter_sort_columns_and_limit(sweep: Path, shown: Shown):
    words = ["--filter", "lr > 0.05", "--sort", "step_time_ms desc", "--limit", "2"]
    text = shown("runs", "--logs-dir", sweep, *words, "--columns", "name,params.*,val/loss.min")
    lines = text.splitlines()
    assert lines[0].split() == [
        *("run", "lr", "model.layers", "optimizer", "seed", "val/loss.min"),
    ]
    assert [line.split()[0] for line in lines[2:4]] == ["sweep-11", "sweep-10"]
    assert lines[-1] == "6 runs, 2 shown (--limit 0 shows all)"
    best = shown("runs", "--logs-dir", sweep, "--sort", "-val/loss", "--limit", 1).splitlines()
    assert best[2].split()[0] == "sweep-08"
    added = shown("runs", "--logs-dir", sweep, "--columns", "+user,+duration_s").splitlines()
    assert added[0].split()[-2:] == ["user", "duration"]
    assert added[2].split()[-3:] == ["ada", "1", "min"]
    assert shown("runs", "--logs-dir", sweep, "--columns", "+user,duration_s").splitlines() == added
    titled = shown("runs", "--logs-dir", sweep, "--columns", "run", "--filter", "run = 'sweep-03'")
    assert titled.split() == ["run", "--------", "sweep-03", "1", "run"]


@pytest.fixture(scope="module")
def many_params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that differ in three hundred parameters."""
    logs = tmp_path_factory.mktemp("many")
    for run in range(2):
        params = {f"model.layer_{number:03}.dropout": run / 10 for number in range(300)}
        list_run(logs, f"run-{run}", params, {"val/loss": metric(0.5 + run)})
    return logs


def piped(logs: Path, *words: str, **environment: str) -> list[str]:
    """What comes out of a pipe, by lines."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "traceml", "runs", "--logs-dir", str(logs), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**inherited, **environment},
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_pipe_gets_a_table_of_some_columns_and_is_told_how_many_are_left_out(many_params: Path):
    lines = piped(many_params)
    table, said = lines[:4], lines[5]
    assert max(map(len, lines[:-3])) <= 200
    assert "val/loss" in table[0] and "model.layer_000.dropout" in table[0]
    left = 300 - table[0].count("dropout")
    assert said.startswith(f"not shown: {left} columns: model.layer_")
    assert said.endswith("(choose with --columns; --format=json has all)")
    assert lines[-1] == "2 runs"
    (narrow, *_) = piped(many_params, COLUMNS="60")
    assert len(narrow) <= 60 and "status" in narrow
    (added, *_) = piped(many_params, "--columns", "+params.model.layer_299.dropout,+user")
    assert added.split()[-2:] == ["model.layer_299.dropout", "user"] and len(added) <= 200


def test_named_columns_and_the_other_formats_have_all(many_params: Path, shown: Shown):
    words = ("runs", "--logs-dir", many_params)
    named = shown(*words, "--columns", "params.*").splitlines()
    assert named[0].count("dropout") == 300 and "not shown" not in "".join(named)
    assert len(shown.json(*words)["runs"][0]) > 300
    assert shown(*words, "--format", "markdown").splitlines()[0].count("dropout") == 300


def test_groups_by_many_parameters_show_their_results(many_params: Path, shown: Shown):
    for words in ((), ("--columns", "val/loss")):
        found = shown("runs", "--logs-dir", many_params, "--group-by", "all-but:user", *words)
        lines = found.splitlines()
        assert len(lines[0]) <= 200 and lines[0].endswith("val/loss (mean ± 95% CI)  best")
        assert "columns: model.layer_" in found


def test_groups(sweep: Path, shown: Shown):
    lines = shown("runs", "--logs-dir", sweep, "--group-by", "all-but:params.seed").splitlines()
    assert lines[0].startswith("  lr  optimizer  runs  step time (mean ± 95% CI)")
    assert lines[2].split()[:9] == ["0.01", "adam", "3", "20.1", "ms", "±", "0.25", "ms", "20.0"]
    assert lines[-1] == "4 groups of 12 runs"
    words = ["--group-by", "optimizer", "--columns", "val/loss"]
    found = shown.json("runs", "--logs-dir", sweep, *words)
    adam, sgd = found["groups"]
    assert adam["group"] == {"params.optimizer": "adam"}
    assert (adam["count"], len(adam["runs"])) == (6, 6)
    loss = sgd["columns"]["metrics.val/loss"]
    assert loss["best"] == loss["min"] == pytest.approx(0.1)
    assert loss["interval"][0] < loss["mean"] < loss["interval"][1]
    rows = _csv(shown("runs", "--logs-dir", sweep, *words, "--format", "csv"))
    assert rows[0]["params.optimizer"] == "adam" and rows[0]["runs"] == "6"
    assert float(rows[0]["metrics.val/loss (mean)"]) == pytest.approx(loss["mean"])


def _csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_json_and_csv_have_everything_and_the_same(sweep: Path, shown: Shown):
    found = shown.json("runs", "--logs-dir", sweep)
    rows = _csv(shown("runs", "--logs-dir", sweep, "--format", "csv"))
    assert found["total"] == len(found["runs"]) == len(rows) == 12
    for run, row in zip(found["runs"], rows, strict=True):
        assert run["name"] == row["name"]
        assert float(row["metrics.val/loss.min"]) == run["metrics.val/loss.min"]
        assert run["started"] == float(row["started"])
    assert "params.model.layers" in rows[0]


def test_markdown_is_a_table(sweep: Path, shown: Shown):
    lines = shown("runs", "--logs-dir", sweep, "--format", "markdown", "--limit", 1).splitlines()
    assert lines[0].startswith("| run | started | status |")
    assert lines[1].count("---:") >= 3
    assert len(lines) == 3


def test_no_name_of_a_run_formats_the_markdown(tmp_path: Path, shown: Shown):
    hostile = "a|b <img src=x> [here](http://evil.example) @everybody `x` *y*"
    list_run(tmp_path, "a", {hostile: hostile, "x": 1}, {"loss": metric(1.0)})
    list_run(tmp_path, "b", {hostile: "c", "x": 2}, {"loss": metric(2.0)})
    lines = shown("runs", "--logs-dir", tmp_path, "--format", "markdown").splitlines()
    assert len({line.count("|") for line in lines}) == 1, "a cell stays a cell"
    rest = "".join(lines)
    assert not any(mark in rest for mark in ("<", "](", "://", "@", "`", "*"))


def list_slope(logs: Path) -> Path:
    """Ten runs whose loss falls with the learning rate, and one without a loss."""
    for place in range(11):
        metrics = {} if place == 10 else {"val/loss": metric(10.0 - place)}
        params = {"lr": place / 10, "width": (8, 16, 32)[place % 3], "|name": "x"}
        list_run(logs, f"slope-{place:02}", params=params, metrics=metrics)
    return logs


def test_what_mattered_over_all_runs_of_a_filter(tmp_path: Path, shown: Shown):
    words = ["runs", "--logs-dir", list_slope(tmp_path), "--what-mattered", "val/loss"]
    text = shown(*words).splitlines()
    assert text[0] == (
        "What mattered for metrics.val/loss (10 settings; 1 run without it left out):"
    )
    assert text[2].split()[:2] == ["lr", "-1.00"] and text[2].split()[4] == "*"
    assert shown(*words, "--format", "markdown").splitlines() == ["    " + line for line in text]
    found = shown.json(*words, "--filter", "lr > 0.25")
    assert (found["settings"], found["higher_is_better"]) == (7, False)
    assert {each["name"] for each in found["parameters"]} == {"lr", "width"}


def test_what_mattered_refuses_what_it_cannot_answer(sweep: Path, shown: Shown):
    words = ["runs", "--logs-dir", sweep, "--what-mattered"]
    shown(*words, "val/loss", "--group-by", "lr", "--format", "csv", status=2)
    assert "leave out --group-by, --format=csv" in shown.errors
    shown(*words, "params.lr", status=2)
    assert "takes one metric or fact, not params.lr" in shown.errors
    shown(*words, "val/lss", status=2)
    assert "val/loss" in shown.errors


def test_hostile_values_stay_in_their_cells(tmp_path: Path, shown: Shown):
    params = {"evil\x1b[2J": "\x1b[31m|<script>\nnext", "x": 1}
    metrics = {"loss": metric(None), "accuracy": metric(1e308)}
    list_run(tmp_path, "a", params, metrics)
    list_run(tmp_path, "b", {"x": "y" * 300}, {"loss": metric(2e-8)})
    for format_ in ("text", "markdown", "csv"):
        text = shown("runs", "--logs-dir", tmp_path, "--format", format_)
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) < 700
    text = shown("runs", "--logs-dir", tmp_path)
    assert len(text.splitlines()) == 6
    assert "NaN" in text and "2e-8" in text and "1e308" in text
    found = shown.json("runs", "--logs-dir", tmp_path)
    assert found["runs"][0]["metrics.loss"] == "nan"


def test_a_mistake_in_the_filter_is_pointed_at(sweep: Path, shown: Shown):
    shown("runs", "--logs-dir", sweep, "--filter", "lr > 0.1 and optimiser = 3", status=2)
    assert shown.errors == (
        "traceml runs: no run has 'optimiser'; did you mean params.optimizer, optimizer_ms?\n"
        "  lr > 0.1 and optimiser = 3\n"
        "               ^\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--columns", ""], "'' names no column; expected names with commas"),
        (["--columns", " , "], "' , ' names no column; expected names with commas"),
        (["--sort", "lr upwards"], "expected asc or desc after lr, found 'upwards'"),
        (["--sort", "-zzz"], "no run has 'zzz'; there are params.lr, "),
    ],
)
def test_a_mistake_in_an_option_says_what_was_expected(
    words: list[str], said: str, sweep: Path, shown: Shown
):
    shown("runs", "--logs-dir", sweep, *words, status=2)
    assert said in shown.errors


def test_columns_stay_aligned_beside_letters_that_are_two_columns_wide(
    tmp_path: Path, shown: Shown
):
    list_run(tmp_path, "a", {"model": "日本語", "x": 1})
    list_run(tmp_path, "b", {"model": "plain", "x": 2})
    lines = shown("runs", "--logs-dir", tmp_path, "--columns", "model,x").splitlines()[:4]
    assert {terminal_width(line) for line in lines} == {len("日本語") * 2 + 3}


def test_no_runs_and_no_folder(tmp_path: Path, shown: Shown):
    assert shown("runs", "--logs-dir", tmp_path) == f"no run under {tmp_path} matches\n"
    assert shown.json("runs", "--logs-dir", tmp_path) == {"runs": [], "total": 0, "notes": []}
    for format_ in ("csv", "markdown"):
        assert shown("runs", "--logs-dir", tmp_path, "--format", format_).strip() == ""
    for words in (["--group-by", "params.x"], ["--group-by", "all-but:params.x"]):
        shown("runs", "--logs-dir", tmp_path, *words)
    shown("runs", "--logs-dir", tmp_path / "nowhere", status=2)
    assert "there is no folder" in shown.errors


def test_a_run_that_cannot_be_read_is_a_note(tmp_path: Path, shown: Shown):
    folder = list_run(tmp_path, "broken")
    (folder / "run.json").write_text("[")
    list_run(tmp_path, "good")
    text = shown("runs", "--logs-dir", tmp_path)
    assert "1 run" in text and "good" in text
    assert "run.json is damaged" in shown.errors


def test_a_summary_that_cannot_be_read_is_a_note_in_text_and_json(tmp_path: Path, shown: Shown):
    folder = list_run(tmp_path, "cut")
    summary = folder / "final_summary.json"
    summary.write_text(summary.read_text()[:200])
    assert "cut" in shown("runs", "--logs-dir", tmp_path)
    assert f"traceml runs: {summary}" in shown.errors
    (note,) = shown.json("runs", "--logs-dir", tmp_path)["notes"]
    assert str(summary) in note
    groups = shown.json("runs", "--logs-dir", tmp_path, "--group-by", "status")
    assert groups["notes"] == [note]


def test_tags_from_the_command_line(tmp_path: Path, shown: Shown):
    list_run(tmp_path, "a")
    list_run(tmp_path, "b")
    assert shown("tag", "a", "--logs-dir", tmp_path) == "tags: none\n"
    text = shown("tag", "a", "good", "fast", "--note", "keep it", "--logs-dir", tmp_path)
    assert text == "tags: good, fast\nnote: keep it\n"
    text = shown("tag", "--logs-dir", tmp_path, "a", "--remove", "fast")
    assert text == "tags: good\nnote: keep it\n"
    assert shown.json("tag", "a", "--logs-dir", tmp_path) == {"tags": ["good"], "note": "keep it"}
    listed = shown("runs", "--logs-dir", tmp_path, "--filter", 'tags contains "good"')
    assert "good" in listed and "1 run" in listed
    shown("tag", "a", "fast", "--logs-dir", tmp_path)
    rows = _csv(shown("runs", "--logs-dir", tmp_path, "--format", "csv"))
    assert {row["tags"] for row in rows} == {"good, fast", ""}
    shown("tag", "a", "no,tag", "--logs-dir", tmp_path, status=2)
    assert "cannot be a tag" in shown.errors
    shown("tag", "--logs-dir", tmp_path, status=2)
    assert shown.errors.startswith("traceml tag: no RUN was given;")
    shown("tag", "nobody", "x", "--logs-dir", tmp_path, status=2)
    assert "no run 'nobody'" in shown.errors
