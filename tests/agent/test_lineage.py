"""Where a run comes from is captured piece by piece, and completely in real runs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import STEPS, TORCH_STEPS, Finished, run_traceml
from repositories import git, make_repository
from traceml.agent import lineage as capture
from traceml.agent.lineage import LineageCapture
from traceml.compare.lineage import compare_lineages
from traceml.compare.script_identity import script_of
from traceml.model.environment import INTERPRETER_MARK, MARKS, TRAINER_MARK
from traceml.model.interpreter import Interpreter
from traceml.model.lineage import Lineage
from traceml.model.run import Manifest
from traceml.store.lineage import read_lineage
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at in this process may take as long as a busy machine needs for it."""
    monkeypatch.setattr(capture, "PIECE_S", 60.0)
    monkeypatch.setattr(capture, "CLOSING_S", 60.0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a script and data, and a run folder in it."""
    folder = tmp_path / "project"
    make_repository(folder, train="1")
    (folder / "data").mkdir()
    (folder / "data" / "a").write_text("1")
    (folder / "logs" / "run").mkdir(parents=True)
    return folder


def _manifest(project: Path, *words: str) -> Manifest:
    return Manifest("run", time.time(), ("python", *words), working_folder=str(project))


def _captured(
    project: Path, *words: str, said: Callable[[LineageCapture], None] | None = None
) -> Lineage:
    """What is captured of a run that is over by the time anybody looks."""
    run = project / "logs" / "run"
    capturing = LineageCapture(run, _manifest(project, *words))
    if said is not None:
        said(capturing)
    capturing.close()
    for piece in capturing.pieces():
        piece()
    found = read_lineage(run)
    assert found is not None
    return found


def _introduce(project: Path, mark: str, **known: object) -> None:
    packages = project / "packages"
    (packages / "torch-2.11.0.dist-info").mkdir(parents=True, exist_ok=True)
    interpreter = Interpreter(
        executable="/usr/bin/python",
        version="3.12.1",
        path=(str(packages),),
        argv=("train.py",),
        folder=str(project),
        variables={"OMP_NUM_THREADS": "1"},
        torch="2.11.0",
    )._replace(**known)
    marks = project / "logs" / "run" / MARKS
    marks.mkdir(exist_ok=True)
    (marks / mark).write_text(json.dumps(interpreter))


def test_the_start_of_a_run_is_captured_whatever_becomes_of_it(project: Path) -> None:
    (project / "train.py").write_text("2")
    found = _captured(project, "train.py", "--data", "data", "--lr", "0.1")
    assert found.code is not None and found.command is not None and found.data is not None
    assert found.code.commit == git(project, "rev-parse", "HEAD")
    assert "+2" in (project / "logs" / "run" / "diff.patch").read_text()
    assert found.command.script == "train.py"
    assert found.command.arguments == ("--data", "data", "--lr", "0.1")
    assert found.data.paths["data"].files == 1
    assert found.hardware is not None and found.hardware.threads == os.cpu_count()
    assert (found.packages, found.variables) == (None, None)  # no interpreter said anything


def test_an_edit_right_after_a_commit_is_seen(project: Path) -> None:
    """Of the same size and in the same second: git tells it by the time of its index alone."""
    script, index = project / "train.py", project / ".git" / "index"
    git(project, "config", "core.trustctime", "false")  # a change of it cannot be undone here
    os.utime(script, (1e9, 1e9))
    git(project, "update-index", "--refresh")
    script.write_text("2")
    for path in (script, index):
        os.utime(path, (1e9, 1e9))
    _captured(project, "train.py")
    assert "+2" in (project / "logs" / "run" / "diff.patch").read_text()


def test_an_interpreter_that_trains_replaces_the_launchers(project: Path) -> None:
    _introduce(project, INTERPRETER_MARK, argv=("torchrun", "train.py"))
    _introduce(project, TRAINER_MARK, argv=("train.py", "--data", "data"))
    found = _captured(project, "-m", "torch.distributed.run", "train.py", "--data", "data")
    assert found.command is not None and found.environment is not None
    assert (found.command.script, found.command.arguments) == ("train.py", ("--data", "data"))
    assert (found.environment.python, found.environment.torch) == ("3.12.1", "2.11.0")
    assert found.packages == {"torch": "2.11.0"}
    assert found.variables == {"OMP_NUM_THREADS": "1"}


def test_the_script_decides_which_repository_it_is(project: Path, tmp_path: Path) -> None:
    """The command was a shell's, which went elsewhere."""
    other = make_repository(tmp_path / "other", train="2")
    _introduce(project, TRAINER_MARK, folder=str(tmp_path / "other"))
    found = _captured(project, "run.sh")
    assert found.code is not None
    assert found.code.commit == other


def test_a_launcher_in_a_repository_says_nothing_of_a_script_outside_it(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "train.py").write_text("1")
    (project / "train.py").write_text("2")
    _introduce(project, INTERPRETER_MARK)

    def train(capturing: LineageCapture) -> None:
        pieces = capturing.pieces()
        for _ in range(4):  # code, data, hardware, and the launcher's own interpreter
            next(pieces)()
        assert (project / "logs" / "run" / "diff.patch").exists()
        _introduce(project, TRAINER_MARK, folder=str(tmp_path / "outside"))

    found = _captured(project, "-m", "launcher", said=train)
    assert found.code is None
    assert not (project / "logs" / "run" / "diff.patch").exists()


def test_data_that_the_script_logs_is_looked_at(project: Path) -> None:
    message = b'{"kind":"params","values":{"dataset":"data","lr":0.1}}'
    found = _captured(project, "train.py", said=lambda each: each.note([b"{}", message]))
    assert found.data is not None
    assert list(found.data.paths) == ["data"]


def test_an_agent_that_died_is_not_contradicted_by_the_next(project: Path) -> None:
    first = _captured(project, "train.py")
    (project / "train.py").write_text("changed since")
    _introduce(project, TRAINER_MARK)
    second = _captured(project, "train.py")
    assert second.code == first.code
    assert second.packages == {"torch": "2.11.0"}


def test_a_piece_that_fails_holds_up_no_other(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("a bad disk")

    monkeypatch.setattr(capture, "look_at_hardware", fail)
    capturing = LineageCapture(project / "logs" / "run", _manifest(project, "train.py"))
    capturing.close()
    failures = 0
    for piece in capturing.pieces():
        try:
            piece()
        except OSError:
            failures += 1
    found = read_lineage(project / "logs" / "run")
    assert failures == 1
    assert found is not None
    assert found.code is not None and found.data is not None and found.hardware is None


def test_the_script_is_known_by_its_content(project: Path) -> None:
    (project / "new.py").write_text("unknown to git")
    expected = hashlib.sha256(b"unknown to git").hexdigest()
    _introduce(project, TRAINER_MARK, argv=("new.py",))
    found = _captured(project, "run.sh")
    assert found.command is not None and found.command.script_sha256 == expected


def test_a_script_behind_a_link_is_known_by_its_own_path(project: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    found = _captured(project, str(tmp_path / "link" / "train.py"))
    assert found.command is not None and found.command.script_path == str(project / "train.py")
    identity = script_of(found)
    assert identity is not None and identity.name == "train.py"


def test_what_is_no_file_has_no_path(project: Path) -> None:
    _introduce(project, TRAINER_MARK, argv=("-c",))
    found = _captured(project, "-c", "train()")
    assert found.command is not None and found.command.script_path is None


def test_all_of_one_look_has_one_deadline(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git took its time: nothing else is asked, and the machine is still described."""
    now_s = 100.0
    monkeypatch.setattr(capture.time, "monotonic", lambda: now_s)

    def slow(*_: object) -> tuple[None, str]:
        nonlocal now_s
        now_s += capture.PIECE_S
        return None, ""

    monkeypatch.setattr(capture, "look_at_code", slow)
    capturing = LineageCapture(project / "logs" / "run", _manifest(project, "train.py", "data"))
    for piece, _ in zip(capturing.pieces(), range(3), strict=False):
        piece()
    found = read_lineage(project / "logs" / "run")
    assert found is not None and found.data is not None and found.hardware is not None
    assert found.data.paths == {}
    assert now_s <= 100.0 + 2 * capture.PIECE_S


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        pytest.param({"a": "1", "nvidia-cudnn-cu13": "9.19.0.56"}, "9.19.0.56", id="a package"),
        pytest.param({"torch": "2.11"}, None, id="none"),
        pytest.param(None, None, id="unknown"),
    ],
)
def test_cudnn_is_known_by_its_package(
    packages: dict[str, str] | None, version: str | None
) -> None:
    assert capture._cudnn_version(packages) == version


# Real runs

UNTIL_CAPTURED = """
import json, os, pathlib, time
captured = pathlib.Path(os.environ["TRACEML_RUN_FOLDER"]) / "lineage.json"
give_up = time.monotonic() + 60
def is_whole():
    known = json.loads(captured.read_bytes()) if captured.exists() else {}
    return all(known.get(name) is not None for name in ("code", "data", "hardware", "packages"))
while not is_whole() and time.monotonic() < give_up:
    time.sleep(0.01)
"""
"""A script that ends only when its lineage has been captured: not at the end of a long run."""
ARGUMENTS = ["--args", "--data", "data", "--lr", "0.1", "--api-key", "hunter2"]


def _summary(done: Finished, name: str) -> Summary:
    assert done.status == 0, done.stderr
    return read_summary(done.cwd / "logs" / name / "final_summary.json")


def test_two_runs_of_one_command_are_identical_until_something_changes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("1")
    (tmp_path / ".gitignore").write_text("std*\n")
    make_repository(tmp_path, train=TORCH_STEPS + "take_steps(3)\n" + UNTIL_CAPTURED)

    def run(name: str, **env: str) -> Summary:
        command = ["run", "--run-name", name, "train.py", *ARGUMENTS]
        return _summary(run_traceml(command, tmp_path, env=env), name)

    first, second = run("first"), run("second")
    assert compare_lineages([first], [second]).identical
    lineage = first.lineage
    assert lineage is not None and lineage.environment is not None
    assert lineage.packages is not None and "torch" in lineage.packages
    assert lineage.environment.torch is not None
    assert lineage.environment.torch.startswith(lineage.packages["torch"].partition("+")[0])
    manifest = json.loads((tmp_path / "logs" / "first" / "run.json").read_bytes())
    assert lineage.captured_unix_s is not None
    assert lineage.captured_unix_s >= manifest["started_unix_s"]
    stored = [path for path in (tmp_path / "logs" / "first").rglob("*") if path.is_file()]
    assert [path for path in stored if b"hunter2" in path.read_bytes()] == []

    (tmp_path / "data" / "a").write_text("22")
    (tmp_path / "train.py").write_text((tmp_path / "train.py").read_text() + "# slower\n")
    found = compare_lineages([first], [run("third", OMP_NUM_THREADS="3")])
    names = {group: [each.name for each in rows] for group, rows in found.differences.items()}
    assert names == {
        "code": ["dirty", "changes"],
        "command": ["script content"],
        "data": ["data"],
        "settings": ["cpu_threads"],
        "variables": ["OMP_NUM_THREADS"],
    }


def test_a_run_without_git_or_torch_has_what_there_is(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    script = STEPS + "take_steps(2)\n"
    done = run_traceml(
        ["run", "--run-name", "r", "train.py"], tmp_path, script, env={"PATH": str(bare)}
    )
    lineage = _summary(done, "r").lineage
    assert lineage is not None and lineage.command is not None
    assert lineage.code is None
    assert lineage.command.script == "train.py"
