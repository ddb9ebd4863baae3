"""Bad input is one clear line and status 2, before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from processes import TRACEML, Finished, run_traceml, started
from traceml.launch import command as commands
from traceml.model.errors import UsageError

SCRIPT = "open('started', 'w').close()"


def _refuse(arguments: list[str], cwd: Path, env: dict[str, str] | None = None) -> Finished:
    """Run what must not run; the one line says why."""
    if not (cwd / "train.py").exists():
        (cwd / "train.py").write_text(SCRIPT)
    done = run_traceml(["run", *arguments], cwd, env=env)
    assert done.status == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("traceml run: ")
    assert not (cwd / "started").exists()
    return done


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["gone.py"], "there is no script 'gone.py' (found nothing", id="no script"),
        pytest.param(["."], "there is no script '.' (found a folder", id="a folder"),
        pytest.param([], "nothing to run", id="nothing"),
        pytest.param(["--"], "nothing to run", id="an empty command"),
        pytest.param(["--", "gone"], "the command 'gone' is not on the PATH", id="no command"),
        pytest.param(["--", "./train.py"], "'./train.py' is a Python script", id="no program"),
        pytest.param(["train.py", "--", "x"], "a script (train.py) and a command", id="both"),
        pytest.param(["train.py", "--no-such"], "'--no-such' is not an option", id="no option"),
        pytest.param(["train.py", "--lr", "1"], "arguments go after --args", id="forgot --args"),
        pytest.param(["train.py", "data"], "arguments go after --args", id="forgot it too"),
        pytest.param(["train.py", "--run-name"], "expected one argument", id="no value"),
        pytest.param(
            ["train.py", "--mode", "x"], "'x' is none of auto, summary", id="no such mode"
        ),
        pytest.param(
            ["train.py", "--nproc-per-node", "0"], "'0' is not a whole number", id="no processes"
        ),
        pytest.param(
            ["train.py", "--trace-max-steps", "ten"], "'ten' is not a whole number", id="no number"
        ),
        pytest.param(
            ["train.py", "--kineto", "0"],
            "--kineto: '0' is not a whole number from 1 to 20",
            id="no step to trace",
        ),
        pytest.param(
            ["--nproc-per-node", "2", "--", "python", "train.py"],
            "give them to the command",
            id="processes of a command",
        ),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in _refuse(arguments, tmp_path).stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


def test_a_head_does_not_take_the_port_at_which_the_ranks_meet(tmp_path: Path) -> None:
    where = ["--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=7654"]
    token = {"TRACEML_TOKEN": "a-token"}
    done = _refuse([*where, "--head=localhost:7654", "train.py"], tmp_path, token)
    assert "--head localhost:7654 is where the ranks themselves meet" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", ".", "..", "../x", "a/b", "/tmp/x", "a\\b", ".hidden", "-x", " a", "a "),
        *("a\nb", "a\tb", "\x1b[31m", "a\x7f", "a" * 201, "ü" * 101),
    ],
    ids=repr,
)
def test_a_name_that_is_no_folders_name_is_refused(tmp_path: Path, name: str) -> None:
    done = _refuse(["train.py", f"--run-name={name}"], tmp_path)
    assert "cannot be a run name" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


@pytest.mark.parametrize("name", ["lr=1e-3, bs=32", "größe", "a.b", "run(1)", "a" * 200, "日本"])
def test_a_name_that_people_give_is_taken(tmp_path: Path, name: str) -> None:
    done = run_traceml(["run", "--run-name", name, "train.py"], tmp_path, "")
    assert done.status == 0
    assert done.folder.name == done.summary["meta"]["run_name"] == name


def test_a_name_that_is_taken_is_refused_and_the_way_on_is_said(tmp_path: Path) -> None:
    first = run_traceml(["run", "--run-name", "a", "train.py"], tmp_path, "print(1)")
    summary = first.summary
    (tmp_path / "train.py").write_text(SCRIPT)
    done = _refuse(["--run-name", "a", "train.py"], tmp_path)
    assert "a run named 'a' exists already" in done.stderr
    assert "--run-name" in done.stderr
    assert "--overwrite" in done.stderr
    assert done.summary == summary


def test_overwrite_replaces_a_run(tmp_path: Path) -> None:
    first = run_traceml(["run", "--run-name", "a", "train.py"], tmp_path, "")
    before = first.summary["generated_at"]
    (first.folder / "output.log").touch()
    again = run_traceml(["run", "--run-name", "a", "--overwrite", "train.py"], tmp_path)
    assert again.status == 0
    assert not (again.folder / "output.log").exists()
    assert again.summary["generated_at"] > before


@pytest.mark.parametrize("kind", ["a folder of the user's", "a file", "a link to a run"])
def test_overwrite_replaces_nothing_but_a_run(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "logs" / "a"
    place.parent.mkdir()
    if kind == "a file":
        place.write_text("thesis")
    elif kind == "a link to a run":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "run.json").write_text("{}")
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        (place / "thesis.tex").write_text("thesis")
    done = _refuse(["--run-name", "a", "--overwrite", "train.py"], tmp_path)
    assert "it is not a run that --overwrite may replace" in done.stderr
    assert place.exists()


def test_a_run_of_a_folder_that_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text("print('in')")
    done = run_traceml(["run", "program"], tmp_path)
    assert (done.status, done.stdout) == (0, "in\n")


def test_a_script_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root everything can be read: the system's answer is put in its mouth."""
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match=r"cannot be read; check its permissions"):
        commands.for_script(str(script), [], commands.Cluster())


def test_of_two_runs_with_one_name_exactly_one_wins(tmp_path: Path) -> None:
    script = "import os; open(f'ran-{os.getpid()}', 'w').close()"
    (tmp_path / "train.py").write_text(script)
    command = [TRACEML, "run", "--run-name", "a", "train.py"]
    with started(command, tmp_path) as one, started(command, tmp_path) as two:
        statuses = sorted([one.finish().status, two.finish().status])
    assert statuses == [0, 2]
    assert len(list(tmp_path.glob("ran-*"))) == 1
    one.assert_nothing_is_left()


def test_two_runs_go_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = [TRACEML, "run", "train.py"]
    with started(command, tmp_path) as one, started(command, tmp_path) as two:
        assert [one.finish().status, two.finish().status] == [0, 0]
    assert len(one.folders) == 2
    assert all((folder / "final_summary.json").exists() for folder in one.folders)
    one.assert_nothing_is_left()
