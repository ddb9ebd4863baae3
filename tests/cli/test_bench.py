"""`traceml bench` as people type it: what it measures, and what it says where it cannot.

A whole benchmark of two commits is in `tests/examples/test_ci.py`.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from paced_training import paced_training
from processes import TORCH_STEPS, TRACEML, run_traceml, started
from repositories import git, make_repository
from traceml.cli import main
from traceml.cli.schema import published_schema

STEP_S = 0.03
"""So long that the pauses of a busy machine are a small part of sixty of them."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, which is the current folder."""
    make_repository(tmp_path, train=paced_training(STEP_S))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "--a is missing", id="nothing"),
        pytest.param(["--a", "true"], "there is one side only", id="one command"),
        pytest.param(["--a", "true", "--b-ref", "HEAD"], "there is one side only", id="one commit"),
        pytest.param(
            ["--a", "true", "--b", "true", "--runs", "3", "--max-runs", "4"],
            "give one of them",
            id="two numbers of runs",
        ),
        pytest.param(["--a", "true 'x", "--b", "true"], "No closing quotation", id="open quotes"),
        pytest.param(["--a", "no-such", "--b", "true"], "'no-such'", id="no such command"),
        pytest.param(
            ["--a-ref", "nope", "--a", "true"], "git knows no commit 'nope'", id="no such commit"
        ),
        pytest.param(
            ["--a-ref", "--help", "--a", "true"],
            "expected one argument",
            id="an option as a commit",
        ),
        pytest.param(
            ["--a", "true", "--b", "true", "--metric", "step_tim"],
            "did you mean step_time?",
            id="a misspelt metric",
        ),
        pytest.param(
            ["--a", "true", "--b", "true", "--better", "lower"],
            "name it with --metric",
            id="a direction of nothing",
        ),
    ],
)
@pytest.mark.slow
def test_wrong_words_are_refused_before_anything_runs(
    repository: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (repository / "logs").exists()


@pytest.mark.slow
def test_commits_need_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["bench", "--a-ref", "main", "--a", "true"]) == 2
    assert "is in no git repository" in capsys.readouterr().err


def test_commits_need_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["bench", "--a-ref", "main", "--a", "true"]) == 2
    assert "there is no git on this machine" in capsys.readouterr().err


def temporary_worktrees(folder: Path) -> list[str]:
    return git(folder, "worktree", "list").splitlines()[1:]


def test_a_command_that_fails_is_shown_and_nothing_is_claimed(repository: Path):
    words = ["bench", "--a-ref", "main", "--a", "python train.py many"]
    done = run_traceml(words, repository)
    assert done.status == 2
    assert "A failed: 'python train.py many' at main (" in done.stderr
    assert "  | ValueError: invalid literal for int()" in done.stderr
    assert "Verdict" not in done.stderr, "the run's summary takes the error's room"
    assert done.stdout == "" and not (repository / "compare").exists()
    assert temporary_worktrees(repository) == []


def test_a_hook_of_git_may_call_it(repository: Path):
    """Git tells its hooks the repository and its index: what is about to be committed stays."""
    (repository / "train.py").write_text("staged = True\n")
    git(repository, "add", "train.py")
    staged = git(repository, "diff", "--cached")
    environment = {"GIT_INDEX_FILE": str(repository / ".git" / "index"), "GIT_DIR": ".git"}
    shown = "echo of ${GIT_DIR-none} and ${GIT_INDEX_FILE-none}; exit 7"
    words = ["bench", "--a-ref", "main", "--a", f"sh -c '{shown}'"]
    done = run_traceml(words, repository, env=environment)
    assert "exited with 7" in done.stderr
    assert "| of none and none" in done.stderr, "the worktree is another one"
    assert git(repository, "diff", "--cached") == staged
    assert git(repository, "diff") == ""
    assert temporary_worktrees(repository) == []


def test_a_command_without_a_commit_is_named_once(repository: Path):
    done = run_traceml(["bench", "--a", "false", "--b", "true"], repository)
    assert "A failed: 'false' exited with 1, so there is no verdict" in done.stderr


def test_a_command_that_hardly_trains_is_refused_after_one_run(repository: Path):
    done = run_traceml(
        ["bench", "--a", "python train.py 2", "--b", "python train.py 2"], repository
    )
    assert done.status == 3
    assert "A took too few training steps" in done.stderr
    assert len(done.folders) == 1


def test_nobody_is_notified_of_the_single_runs(repository: Path):
    told = repository / "told"
    words = ["bench", "--a", "python train.py 2", "--b", "python train.py 2"]
    done = run_traceml(words, repository, env={"TRACEML_NOTIFY": f"cat >> {told}"})
    assert len(done.folders) == 1
    assert not told.exists()


@pytest.mark.slow
def test_a_logs_folder_that_cannot_be_is_refused_before_anything_runs(
    repository: Path, capsys: pytest.CaptureFixture[str]
):
    (repository / "file").touch()
    words = ["--a", "touch ran", "--b", "true", "--logs-dir", "file/logs"]
    assert main(["bench", *words]) == 2
    said = capsys.readouterr().err
    assert f"the runs cannot be kept in {repository}/file/logs (Not a directory)" in said
    assert not (repository / "ran").exists()


def test_a_run_without_a_summary_shows_what_was_printed(repository: Path):
    gone = "sh -c 'rm -r logs/*; echo I took the logs away'"
    done = run_traceml(["bench", "--a", gone, "--b", "true"], repository)
    assert done.status == 2
    assert "A ended without an error, but there is no final_summary.json in" in done.stderr
    assert "  | I took the logs away" in done.stderr


def test_two_commands_in_the_working_tree_with_a_fixed_number_of_runs(repository: Path):
    (repository / "slow.py").write_text(paced_training(2 * STEP_S))
    words = ["--a", "python train.py 60", "--b", "python slow.py 60", "--runs", "2"]
    done = run_traceml(["bench", *words, "--format", "json"], repository)
    assert done.status == 0, done.stderr
    comparison: dict[str, Any] = json.loads(done.stdout)
    schema = json.loads(published_schema("comparison"))
    Draft202012Validator(schema).validate(comparison)
    assert (comparison["a"], comparison["b"]) == ("python train.py 60", "python slow.py 60")
    assert comparison["verdict"]["ratio"] == pytest.approx(2, rel=0.1)
    assert comparison["bench"]["looks"] == [2] and comparison["bench"]["a_commit"] is None
    (text,) = (repository / "compare").glob("*.txt")
    assert ": as many as were planned." in " ".join(text.read_text().split())


FIT = (
    TORCH_STEPS
    + """
import sys
import traceml
for group in optimizer.param_groups:
    group["lr"] = float(sys.argv[1])
torch.nn.init.ones_(model.weight)
torch.nn.init.zeros_(model.bias)
for step in range(60):
    optimizer.zero_grad()
    loss = (model(torch.ones(2, 4)) ** 2).mean()
    loss.backward()
    optimizer.step()
traceml.log_metrics({"loss": loss + 0.001 * torch.rand(())})
"""
)


def test_a_training_with_torch_is_judged_by_what_it_logs(tmp_path: Path):
    (tmp_path / "fit.py").write_text(FIT)
    words = ["--a", "python fit.py 0.0001", "--b", "python fit.py 0.1", "--runs", "2"]
    done = run_traceml(["bench", *words, "--metric", "loss", "--format", "json"], tmp_path)
    assert done.status == 0, done.stderr
    verdict = json.loads(done.stdout)["verdict"]
    assert (verdict["metric"], verdict["status"]) == ("loss", "IMPROVEMENT")
    assert verdict["p"] < 0.05


def test_a_metric_that_nobody_logs_is_refused_after_one_run(repository: Path):
    commands = ["--a", "python train.py 60", "--b", "python train.py 60"]
    done = run_traceml(["bench", *commands, "--metric", "accuracy"], repository)
    assert done.status == 2
    assert "there is no metric 'accuracy'" in done.stderr
    assert len(done.folders) == 1


def test_a_time_that_is_too_short_for_a_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run_out(command: list[str], *_: Any) -> int:
        raise subprocess.TimeoutExpired(command, 60.0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("traceml.api.bench.run_until", run_out)
    assert main(["bench", "--a", "true", "--b", "true", "--max-minutes", "1"]) == 3
    said = capsys.readouterr().err
    assert "--max-minutes 1 was over after 0 runs of A and 0 runs of B; allow more time" in said


ENDLESS = """\
import os
import pathlib
if os.environ["TRACEML_RUN_FOLDER"].endswith("-b2"):
    pathlib.Path("endless").touch()
    sys.argv[1] = 10**9
"""
"""Put into a training: the second run of B does not end by itself."""


def test_an_interrupted_benchmark_tells_what_it_has_and_leaves_nothing(repository: Path):
    script = paced_training(STEP_S).replace("train(int(", f"{ENDLESS}train(int(")
    words = ["bench", "--a-ref", "main", "--b-ref", "WORKTREE", "--a", "python train.py 60"]
    with started([TRACEML, *words], repository, script) as bench:
        bench.wait_for("endless")
        bench.send(signal.SIGINT)
        done = bench.finish()
    assert done.status == 130, done.stderr
    assert "1 + 1 runs in turn" in done.stdout and "when it was interrupted" in done.stdout
    assert "B: the working tree" in done.stdout
    assert temporary_worktrees(repository) == []
    done.wait_until_none_is_left()
