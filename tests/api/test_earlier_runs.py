"""Earlier runs of the same command teach how noisy it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from traceml.api.compare import compare
from traceml.api.earlier_runs import MAX_SUMMARIES, spread_of_earlier_runs
from traceml.summaries.read import read_summary

COMMAND = ("python", "train.py")


def add(
    logs: Path,
    name: str,
    step_ms: float,
    command: tuple[str, ...] = COMMAND,
    age: int = 0,
    **fields: Any,
) -> None:
    folder = logs / name
    folder.mkdir(parents=True)
    document = {
        "producer": {"name": "traceml-insight"},
        "step_time": {"global": {"average": {"step_time_ms": step_ms}}},
        **fields,
    }
    (folder / "final_summary.json").write_text(json.dumps(document))
    manifest = {"run_name": name, "started_unix_s": 0, "command": command}
    (folder / "run.json").write_text(json.dumps(manifest))
    os.utime(folder / "run.json", (1_800_000_000 - age,) * 2)


def compared(logs: Path) -> list[Path]:
    return [logs / name / "final_summary.json" for name in ("a", "b")]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    add(tmp_path, "a", 100.0)
    add(tmp_path, "b", 102.0)
    return tmp_path


def test_quiet_earlier_runs_let_one_run_show_more(logs: Path, tmp_path: Path) -> None:
    before, _ = compare("a", "b", logs, str(tmp_path / "out"))
    for number in range(5):
        add(logs, f"earlier-{number}", 100 + number / 100)
    after, _ = compare("a", "b", logs, str(tmp_path / "out"))
    assert (before.verdict.status, before.verdict.allowance_from) == ("INCONCLUSIVE", "default")
    assert (after.verdict.status, after.verdict.allowance_from) == ("REGRESSION", "history")
    assert after.verdict.allowance_pct == 1


def test_other_commands_and_damaged_runs_teach_nothing(logs: Path) -> None:
    for number in range(5):
        add(logs, f"other-{number}", 100, ("python", "other.py"))
        add(logs, f"damaged-{number}", 100)
        (logs / f"damaged-{number}" / "final_summary.json").write_text("{")
    paths = compared(logs)
    assert spread_of_earlier_runs(paths, [read_summary(path) for path in paths]) is None


def test_only_the_newest_runs_are_read(logs: Path) -> None:
    for number in range(MAX_SUMMARIES):
        add(logs, f"new-{number}", 100 + number / 100)
    for number in range(5):
        add(logs, f"old-{number}", 500 + 100 * number, age=1000)
    paths = compared(logs)
    found = spread_of_earlier_runs(paths, [read_summary(path) for path in paths])
    assert found is not None and found.freedom == MAX_SUMMARIES - 1
    assert found.log_spread < 0.01


def test_a_file_outside_any_run_has_no_history(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"system": {}}))
    assert spread_of_earlier_runs([path, path], [read_summary(path)] * 2) is None


CODE = {"commit": "c0ffee", "dirty": True, "changes": {"sha256": "aa"}}
MACHINE = {"hostname": "n1", "gpus": [{"name": "H200"}]}
ALIKE = {"lineage": {"code": CODE, "hardware": MACHINE}, "meta": {"world_size": 2}}


@pytest.mark.parametrize(
    ("fields", "teaches"),
    [
        pytest.param(ALIKE, True, id="alike"),
        pytest.param({**ALIKE, "exit_status": 0}, True, id="ended well"),
        pytest.param({**ALIKE, "exit_status": 1}, False, id="failed"),
        pytest.param({**ALIKE, "failure": {"kind": "CRASHED"}}, False, id="known to have failed"),
        pytest.param({**ALIKE, "meta": {"world_size": 1}}, False, id="fewer ranks"),
        pytest.param(
            {
                **ALIKE,
                "lineage": {"code": CODE | {"changes": {"sha256": "bb"}}, "hardware": MACHINE},
            },
            False,
            id="other changes to the code",
        ),
        pytest.param(
            {**ALIKE, "lineage": {"code": CODE | {"changes": None}, "hardware": MACHINE}},
            False,
            id="changes that nobody kept",
        ),
        pytest.param(
            {**ALIKE, "lineage": ALIKE["lineage"] | {"command": {"script_sha256": "cc"}}},
            False,
            id="another script under the same name",
        ),
        pytest.param(
            {**ALIKE, "lineage": {"code": CODE, "hardware": MACHINE | {"hostname": "n2"}}},
            False,
            id="another machine",
        ),
        pytest.param(
            {**ALIKE, "lineage": {"code": CODE, "hardware": MACHINE | {"gpus": []}}},
            False,
            id="no GPU",
        ),
    ],
)
def test_only_runs_that_were_alike_teach(
    tmp_path: Path, fields: dict[str, Any], teaches: bool
) -> None:
    for name in ("a", "b"):
        add(tmp_path, name, 100.0, **ALIKE)
    for number in range(5):
        add(tmp_path, f"earlier-{number}", 100.0 + number, **fields)
    paths = compared(tmp_path)
    found = spread_of_earlier_runs(paths, [read_summary(path) for path in paths])
    assert (found is not None) is teaches


def test_changes_that_nobody_kept_are_like_no_other_run(tmp_path: Path) -> None:
    unknown = {"lineage": {"code": {"commit": "c0ffee", "dirty": True}}}
    for number, name in enumerate(("a", "b", "c", "d", "e", "f")):
        add(tmp_path, name, 100.0 + number, **unknown)
    paths = compared(tmp_path)
    assert spread_of_earlier_runs(paths, [read_summary(path) for path in paths]) is None
