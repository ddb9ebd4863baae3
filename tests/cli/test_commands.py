"""`traceml view`, `recover` and `compare` as people type them."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from processes import STEPS, TRACEML, run, run_traceml


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, `a` and `b`."""
    cwd = tmp_path_factory.mktemp("runs")
    script = STEPS + "import time\nfor _ in range(60):\n    time.sleep(0.001)\n    take_steps(1)\n"
    for name in ("a", "b"):
        done = run_traceml(["run", "--run-name", name, "train.py"], cwd, script)
        assert done.status == 0, done.stderr
    return cwd


@pytest.mark.parametrize("word", ["a", "logs/a", "logs/a/final_summary.json"])
def test_view_prints_the_summary_again(logs: Path, word: str) -> None:
    done = run_traceml(["view", word], logs)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.strip() == (logs / "logs/a/final_summary.txt").read_text().strip()


@pytest.mark.parametrize("command", ["view", "recover", "watch"])
def test_a_run_that_is_not_there_is_one_line(logs: Path, command: str) -> None:
    done = run_traceml([command, "gone"], logs)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"traceml {command}: ")


@pytest.mark.parametrize("command", ["view a", "recover a", "compare a b", "runs"])
def test_a_reader_that_leaves_is_no_error_of_ours(logs: Path, command: str) -> None:
    shell = f"{TRACEML} {command} | true; exit ${{PIPESTATUS[0]}}"
    for _ in range(3):  # whether the reader has gone before we write is a matter of luck
        done = run(["bash", "-c", shell], logs)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert done.status in (0, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "command",
    [
        *("view a", "recover a", "compare a b --fail-on regression", "runs", "tag a", "history"),
        *("export a --format csv", "export a --format jsonl --table findings", "schema summary"),
    ],
)
def test_output_without_room_is_one_line(logs: Path, command: str) -> None:
    """As `traceml export … > steps.csv` on a full disk; 1 is the status of a gate that failed."""
    done = run(["bash", "-c", f"{TRACEML} {command} > /dev/full"], logs)
    assert done.status == 2, done.stderr
    assert "the output could not be written (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_runs_lists_real_runs_and_finds_what_they_say(logs: Path) -> None:
    done = run_traceml(["runs", "--format", "json"], logs)
    assert (done.status, done.stderr) == (0, "")
    found = json.loads(done.stdout)["runs"]
    assert {each["name"] for each in found} == {"a", "b"}
    for each in found:
        assert (each["status"], each["steps"], each["script"]) == ("finished", 60, "train.py")
        assert each["user"] == getpass.getuser()
        assert 0 < each["step_time_ms"] < each["duration_s"] * 1e3
    done = run_traceml(["tag", "a", "good"], logs)
    assert (done.status, done.stdout) == (0, "tags: good\n")
    words = ["runs", "--filter", 'tags contains "good" and steps >= 60', "--format", "csv"]
    done = run_traceml([*words, "--columns", "name,tags"], logs)
    assert done.stdout == "name,tags\na,good\n"


def test_compare_writes_what_it_says(logs: Path, tmp_path: Path) -> None:
    done = run_traceml(["compare", "a", "b", "--output", tmp_path / "deltas"], logs)
    assert done.status == 0, done.stderr
    assert (tmp_path / "deltas.txt").read_text().strip() in done.stdout
    comparison = json.loads((tmp_path / "deltas.json").read_bytes())
    assert comparison["verdict"]["status"] in done.stdout


def test_compare_says_where_it_cannot_write(logs: Path) -> None:
    done = run_traceml(["compare", "a", "b", "--output", "train.py/x"], logs)
    assert done.status == 2
    assert done.stderr.count("\n") == 1
    assert "choose another place with --output" in done.stderr


def test_every_command_has_help_on_stdout(tmp_path: Path) -> None:
    for command in ("run", "view", "recover", "compare", "report", "ui", "watch"):
        done = run_traceml([command, "--help"], tmp_path)
        assert (done.status, done.stderr) == (0, "")
        assert f"usage: traceml {command}" in done.stdout


@pytest.mark.parametrize(("command", "instead"), [("agent", "run"), ("cell x", "report")])
def test_a_command_of_our_own_is_not_for_people(tmp_path: Path, command: str, instead: str) -> None:
    done = run_traceml(command.split(), tmp_path)
    assert done.status == 2
    assert f"people say `traceml {instead}`" in done.stderr
