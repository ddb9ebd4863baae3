"""`traceml export`: its tables as CSV and JSON lines, on runs of every kind; Parquet and the trace
are in tests/integrations, which has their readers."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factories import make_run
from node_runs import bring_to_head, write_nodes
from restarted_runs import Start, restarted
from run_folders import write_run
from traceml.cli import main
from traceml.figures.exported_tables import TABLE_NAMES, exported_tables
from traceml.model import record_layout
from traceml.store.blocks import fold
from traceml.store.records import RunRecords
from traceml.summaries.read import read_summary

UNIX_S = 1_800_000_000.5


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("logs")
    folder = write_run(place / "plain", make_run(ranks=2, gpu=True, between_ms=2.0))
    said = [
        {
            "kind": "metrics",
            "step": 1,
            "unix_ns": UNIX_S * 1e9,
            "values": {"loss": 0.5, "x": "nan"},
        },
        {"kind": "metrics", "step": None, "unix_ns": UNIX_S * 1e9, "values": {"loss": 0.25}},
    ]
    lines = [
        json.dumps({"n": n, **each, "unix_ns": int(each["unix_ns"])})
        for n, each in enumerate(said, 1)
    ]
    stem = next(folder.glob("rank-0-*.steps")).name.partition(".")[0]
    (folder / f"{stem}.messages").write_text("".join(f"{line}\n" for line in lines))
    write_run(place / "cut-short", make_run(), is_over=False)
    bring_to_head(*write_nodes(place / "nodes", ahead_s=100.0))
    return place


def rows_of(run: RunRecords, name: str) -> list[dict[str, object]]:
    """The rows of a table of a run that is in memory."""
    table = exported_tables(run, None, lambda: ())[TABLE_NAMES.index(name)]
    found: list[dict[str, object]] = []
    for chunk in table.chunks():
        columns = {key: list(getattr(v, "tolist", lambda v=v: v)()) for key, v in chunk.items()}
        assert list(columns) and set(columns) == {column.name for column in table.columns}
        found += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return found


def test_one_table_is_printed_where_no_file_is_named(logs: Path, capfdbinary):
    assert main(["export", "plain", "--format", "csv", "--logs-dir", str(logs)]) == 0
    rows = list(csv.DictReader(io.StringIO(capfdbinary.readouterr().out.decode())))
    assert len(rows) == 400
    assert [row["step"] for row in rows[:2]] == ["1", "2"]
    assert {row["rank"] for row in rows} == {"0", "1"}
    assert {row["h2d_ms"] for row in rows} == {""}, "not measured is empty, never zero"
    assert {row["communication_ms"] for row in rows} == {""}


def test_the_steps_have_the_means_of_the_summary(logs: Path, capfdbinary):
    main(["export", "plain", "--format", "csv", "--logs-dir", str(logs)])
    rows = list(csv.DictReader(io.StringIO(capfdbinary.readouterr().out.decode())))
    section = read_summary(logs / "plain" / "final_summary.json").step_time
    assert section is not None
    average = section.global_.average
    for name in ("step_time_ms", "forward_ms", "residual_ms", "input_wait_ms"):
        exported = np.mean([float(row[f"gpu_{name}"]) for row in rows])
        assert exported == pytest.approx(average[name], rel=0.01), name


def test_every_table_is_a_file_of_a_folder(logs: Path, tmp_path: Path, capfd):
    out = tmp_path / "new" / "tables"
    words = ["export", "plain", "--format", "jsonl", "-o", str(out), "--logs-dir", str(logs)]
    assert main(words) == 0
    assert {path.stem for path in out.iterdir()} == set(TABLE_NAMES)
    said = capfd.readouterr().err
    assert f"{out / 'steps.jsonl'}: 400 rows" in said
    lines = (out / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in lines]
    assert [(v["name"], v.get("step"), v["value"]) for v in values] == [
        ("loss", 1, 0.5),
        ("x", 1, "NaN"),
        ("loss", None, 0.25),
    ]
    assert values[0]["unix_s"] == pytest.approx(UNIX_S)
    kinds = [json.loads(line)["kind"] for line in (out / "findings.jsonl").read_text().splitlines()]
    summary = read_summary(logs / "plain" / "final_summary.json")
    assert summary.primary_diagnosis.kind in kinds
    sample = json.loads((out / "gpu_samples.jsonl").read_text().splitlines()[0])
    assert sample["node"] and sample["unix_s"] and sample["memory_total_bytes"]


def test_what_exists_is_replaced_only_when_asked(logs: Path, tmp_path: Path, capfd):
    path = tmp_path / "steps.csv"
    words = ["export", "plain", "--format", "csv", "-o", str(path), "--logs-dir", str(logs)]
    assert main(words) == 0
    first = path.read_bytes()
    path.write_text("mine")
    assert main(words) == 2
    assert path.read_text() == "mine"
    assert "--force" in capfd.readouterr().err
    assert main([*words, "--force"]) == 0
    assert path.read_bytes() == first
    assert [each.name for each in tmp_path.iterdir()] == ["steps.csv"], "nothing half written"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch", "--format", "csv"], "there is no run 'nosuch'"),
        (["plain"], "--format"),
        (["plain", "--format", "xml"], "'xml' is none of parquet, csv, jsonl, perfetto"),
        (["plain", "--format", "perfetto"], "-o run.pftrace"),
        (["plain", "--format", "csv", "--table", "step"], "did you mean steps?"),
        (["plain", "--format", "perfetto", "--table", "steps", "-o", "x"], "leave it out"),
    ],
)
def test_wrong_words_are_one_line_that_says_what_to_do(words, said, logs: Path, capfd):
    assert main(["export", *words, "--logs-dir", str(logs)]) == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("form", "ending", "other"),
    [("csv", "parquet", "parquet"), ("csv", "pftrace", "perfetto"), ("perfetto", "csv", "csv")],
)
def test_the_ending_of_another_format_is_refused(
    form, ending, other, logs: Path, tmp_path: Path, capfd
):
    path = tmp_path / f"steps.{ending}"
    words = ["export", "plain", "--format", form, "--logs-dir", str(logs), "-o", str(path)]
    assert main(words) == 2
    assert f"ends as {other} files do, and --format is {form}" in capfd.readouterr().err
    assert not path.exists()


def test_a_folder_in_the_way_of_a_file_is_said(logs: Path, tmp_path: Path, capfd):
    (tmp_path / "steps.csv").mkdir()
    words = ["export", "plain", "--format", "csv", "-o", str(tmp_path / "steps.csv"), "--force"]
    assert main([*words, "--logs-dir", str(logs)]) == 2
    assert "is a folder" in capfd.readouterr().err


def test_a_run_that_was_cut_short_is_exported_and_says_what_is_missing(logs: Path, capfdbinary):
    words = ["export", "cut-short", "--format", "jsonl", "--logs-dir", str(logs)]
    assert main(words) == 0
    found = capfdbinary.readouterr()
    assert len(found.out.splitlines()) == 200
    assert b"no summary" in found.err and b"traceml recover" in found.err


def test_ranks_of_all_machines_are_on_the_heads_clock(logs: Path, capfdbinary):
    run = str(logs / "nodes" / "host-a" / "run")
    assert main(["export", run, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfdbinary.readouterr().out.decode())))
    assert {(row["node"], row["rank"]) for row in rows} == {
        *(("host-a", "0"), ("host-a", "1"), ("host-b", "2"), ("host-b", "3"))
    }
    first = {row["rank"]: float(row["start_unix_s"]) for row in reversed(rows)}
    assert max(first.values()) - min(first.values()) < 1.0, "the other clock is 100 s ahead"
    assert main(["export", run, "--format", "csv", "--table", "host_samples"]) == 0
    samples = list(csv.DictReader(io.StringIO(capfdbinary.readouterr().out.decode())))
    starts = {row["node"]: float(row["unix_s"]) for row in reversed(samples)}
    assert abs(starts["host-a"] - starts["host-b"]) < 1.0


def test_steps_of_later_attempts_are_numbered_on():
    rows = rows_of(restarted(Start(steps=10), Start(steps=5)), "steps")
    complete = [row for row in rows if row["is_complete"] and row["rank"] == 0]
    assert [row["step"] for row in complete] == list(range(1, 16))
    assert [row["attempt"] for row in complete] == [1] * 10 + [2] * 5


def test_an_attempt_that_one_rank_never_saw_keeps_its_number():
    run = restarted(Start(steps=10), Start(steps=0), Start(steps=5))
    rows = rows_of(run, "steps")
    assert {row["attempt"] for row in rows} == {1, 3}


def test_incomplete_records_have_no_number_and_losses_stand_at_their_own_step():
    run = make_run(steps=6)
    steps = np.array(run.ranks[0].steps)
    steps["flags"][2] |= int(record_layout.StepFlag.ABORTED)
    steps["flags"][5] |= int(record_layout.StepFlag.LOSS_SEEN)
    steps["loss"][5], steps["loss_lag"][5] = 0.125, 2
    rows = rows_of(replace(run, ranks=(replace(run.ranks[0], steps=steps),)), "steps")
    assert [row["step"] for row in rows] == [1, 2, None, 3, 4, 5]
    assert [row["loss"] for row in rows] == [None, None, None, 0.125, None, None]


def test_only_complete_steps_count_and_one_of_several_ranks_counts_once(tmp_path: Path, capfd):
    run = make_run(ranks=2, steps=7, gpu=True)
    ranks = []
    for rank in run.ranks:
        steps = np.array(rank.steps)
        steps["flags"][6] |= int(record_layout.StepFlag.ABORTED)
        ranks.append(replace(rank, steps=steps))
    folder = write_run(tmp_path / "run", replace(run, ranks=tuple(ranks)))
    section = read_summary(folder / "final_summary.json").step_time
    assert section is not None and section.metadata.training_total_steps == 6
    trace = tmp_path / "run.pftrace"
    assert main(["export", str(folder), "--format", "perfetto", "-o", str(trace)]) == 0
    assert f"Written to {trace}: 6 steps, " in capfd.readouterr().err
    assert main(["export", str(folder), "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    complete = [row["step"] for row in rows if row["is_complete"]]
    assert complete == [*range(1, 7)] * 2
    assert ["step" in row for row in rows if not row["is_complete"]] == [False, False]


def test_old_steps_are_a_table_of_blocks():
    run = make_run(steps=200)
    steps = np.array(run.ranks[0].steps)
    rank = replace(run.ranks[0], steps=steps[128:], blocks=fold(steps[:128]))
    run = replace(run, ranks=(rank,))
    blocks = rows_of(run, "step_blocks")
    assert [(row["first_step"], row["complete_steps"]) for row in blocks] == [(1, 64), (65, 64)]
    assert blocks[0]["forward_ms_mean"] == pytest.approx(steps["forward_ns"][:64].mean() / 1e6)
    assert blocks[0]["h2d_ms_mean"] is None and blocks[0]["h2d_ms_count"] == 0
    assert rows_of(run, "steps")[0]["step"] == 129


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("pyarrow", ["export", "plain", "--format", "parquet", "-o", "{out}"], "parquet"),
        ("mcp.server.mcpserver", ["mcp"], "mcp"),
    ],
)
def test_a_package_that_is_missing_is_named(
    package, words, extra, logs, tmp_path, monkeypatch, capfd
):
    monkeypatch.setitem(sys.modules, package, None)
    said = [word.format(out=tmp_path / "out") for word in words]
    assert main([*said, "--logs-dir", str(logs)]) == 2
    assert f"pip install 'traceml-insight[{extra}]'" in capfd.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
