"""Command lines that people get wrong: one line that says what was found and what to do instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import pytest

from processes import Finished, run_traceml
from traceml.cli import COMMANDS, main
from traceml.model.errors import nearest

LONG = "a" * 300
"""More letters than a file's name may have."""


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script, a package, files that are neither, and three runs' summaries."""
    place = tmp_path_factory.mktemp("wrong")
    for name in ("train.py", "eval.py"):
        (place / name).write_text("open('started', 'w').close()")
    (place / "notes.txt").write_text("hello notes\n")
    (place / "cells.ipynb").write_text('{"cells": []}')
    (place / "s.sh").write_text("#!/bin/sh\ntouch started\n")
    (place / "folder").mkdir()
    (place / "unreadable.json").write_text("{")
    for age, name in enumerate(["after", "before", "größe"]):
        run = place / "logs" / name
        run.mkdir(parents=True)
        (run / "final_summary.json").write_text("{}")
        os.utime(run / "final_summary.json", (1000 - age, 1000 - age))
    return place


def refused(words: list[str], cwd: Path) -> Finished:
    """What the real command says of words that it must not carry out."""
    done = run_traceml(words, cwd)
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (cwd / "started").exists()
    return done


PEER_SUMMARIES = [str(path) for path in sorted(Path(__file__).parents[1].glob("data/peer/*.json"))]

SAID = {
    "a tracker mistyped": (
        ["run", "--log-to", "wandb,mlfow", "train.py"],
        "no tracker 'mlfow' (did you mean mlflow?); expected one or more of wandb, mlflow, "
        "tensorboard, trackio",
    ),
    "a command mistyped": (["runn"], "no command 'runn' (did you mean run?)"),
    "a command in capitals": (["Compare"], "(did you mean compare?)"),
    "a script for a command": (
        ["train.py", "--lr", "1"],
        "(did you mean traceml run train.py --args --lr 1?)",
    ),
    "a launcher for a command": (
        ["torchrun", "train.py"],
        "(did you mean traceml run -- torchrun train.py?)",
    ),
    "a run for a command": (["logs/after"], "(did you mean traceml view logs/after?)"),
    "an option for a command": (["--mode=cli", "train.py"], "options follow the command"),
    "an unknown word": (["xyzzy"], "the commands are run, compare"),
    "a word too long for a file": ([LONG], "the commands are run, compare"),
    "no word of ours at all": (["größe"], "no command 'größe'"),
    "python for a script": (
        ["run", "python", "eval.py", "--lr", "3"],
        "'python' is a program and no Python script; expected a script; "
        "a whole command goes after --: traceml run -- python eval.py --lr 3",
    ),
    "python alone": (["run", "python"], "traceml run -- python"),
    "a module": (["run", "-m", "pkg", "--lr", "3"], "traceml run -- python -m pkg --lr 3"),
    "an option of Python's": (["run", "-u", "train.py"], "traceml run -- python -u train.py"),
    "an option mistyped": (["run", "--nnode", "2", "train.py"], "(did you mean --nnodes?)"),
    "half an option": (["run", "--nproc", "2", "train.py"], "(did you mean --nproc-per-node?)"),
    "an option of torchrun's": (
        ["run", "--rdzv_backend=c10d", "train.py"],
        "traceml run -- torchrun --rdzv_backend=c10d train.py",
    ),
    "processes in torchrun's words": (
        ["run", "--nproc_per_node=gpu", "train.py"],
        "'gpu' is not a whole number of at least 1; for torchrun's other forms say traceml run --",
    ),
    "the script's own arguments": (
        ["run", "train.py", "--lr", "1", "--mode", "summary"],
        "the script's own arguments go after --args: traceml run train.py --args --lr 1",
    ),
    "machines that would wait": (
        ["run", "--nnodes", "2", "train.py"],
        "--nnodes 2 without --node-rank and --master-addr would wait for the other machines",
    ),
    "machines without an address": (
        ["run", "--nnodes=2", "--node-rank=1", "train.py"],
        "--nnodes 2 without --master-addr would wait",
    ),
    "a machine too many": (
        ["run", "--nnodes=2", "--node-rank=2", "--master-addr=a", "train.py"],
        "there is no machine 2 of 2; expected --node-rank 0 to 1",
    ),
    "one of no machines": (["run", "--node-rank", "1", "train.py"], "--nnodes is 1"),
    "a machine below zero": (["run", "--node-rank", "-1", "train.py"], "'-1' is not a whole"),
    "a port too high": (["run", "--master-port", "99999", "train.py"], "from 1 to 65535"),
    "no script mistyped": (["run", "trian.py"], "(did you mean train.py?)"),
    "an empty script": (["run", ""], "'' is empty; expected a name or a path"),
    "a script's name too long": (["run", LONG], "File name too long"),
    "text": (["run", "notes.txt"], "'notes.txt' is not Python (invalid syntax at line 1)"),
    "a notebook": (["run", "cells.ipynb"], "call traceml.init() in its first cell"),
    "a shell script": (["run", "s.sh"], "traceml run -- sh s.sh"),
    "a folder": (["run", "folder"], "found a folder without a __main__.py"),
    "a program without permission": (
        ["run", "--", "./s.sh"],
        "the command './s.sh' is not executable; expected a program after --; make it so "
        "(chmod +x ./s.sh), or name its interpreter: -- sh ./s.sh",
    ),
    "a program of this folder": (["run", "--", "s.sh"], "a file of this folder is called ./s.sh"),
    "a script for a program": (
        ["run", "--", "train.py", "3"],
        "leave -- out: traceml run train.py --args 3",
    ),
    "a folder for a program": (["run", "--", "./folder"], "'./folder' is a folder"),
    "an empty program": (["run", "--", ""], "is an empty name"),
    "a path to no program": (["run", "--", "./gone"], "is not there (looked from"),
    "an empty logs folder": (["run", "--logs-dir=", "train.py"], "--logs-dir: '' is empty"),
    "one run to compare": (
        ["compare", "before"],
        "only 'before' was given; expected two runs or more; say traceml compare before B "
        "(runs under logs, newest first: after, größe)",
    ),
    "no run to compare": (["compare"], "newest first: after, before, größe"),
    "a mistyped option without a run": (["view", "--log-dir", "x"], "(did you mean --logs-dir?)"),
    "a run mistyped": (["compare", "before", "aftre"], "(did you mean after?)"),
    "a metric mistyped": (
        ["compare", "--metric=steptime", *PEER_SUMMARIES],
        "did you mean 'step_time'",
    ),
    "a verdict mistyped": (
        ["compare", "--fail-on", "regresion", "a", "b"],
        "(did you mean regression?)",
    ),
    "a format that is none": (["compare", "--format=xml", "a", "b"], "text, json, markdown"),
    "a share below zero": (["compare", "--tolerance", "-3", "a", "b"], "'-3' is not a percentage"),
    "a folder that is no run": (["view", "folder"], "folder holds no final_summary.json"),
    "a file that is no run": (["view", "notes.txt"], "notes.txt is not a run summary"),
    "a run's name too long": (["view", LONG], "cannot be looked up"),
    "a folder's name too long": (["recover", LONG], "cannot be looked up"),
    "a mistyped run's records": (["watch", "y"], "neither y nor logs/y holds a run.json"),
    "a logs folder that is not there": (
        ["ui", "--logs-dir", "nope"],
        "there is no folder nope (looked from",
    ),
    "a logs folder that is a file": (["ui", "--logs-dir", "notes.txt"], "notes.txt is a file"),
    "a port that is none": (["ui", "--port", "-1"], "'-1' is not a whole number from 0 to 65535"),
    "an option of ui mistyped": (["ui", "--prt", "3"], "(did you mean --port?)"),
    "an argument too many": (["view", "before", "after"], "'after' is one argument too many"),
    "a folder for a report": (["report", "before", "-o", "folder"], "-o folder is a folder"),
}


@pytest.mark.parametrize(("words", "said"), SAID.values(), ids=SAID.keys())
def test_what_was_found_and_what_to_do_is_said_in_one_line(
    cwd: Path, words: list[str], said: str
) -> None:
    assert said in refused(words, cwd).stderr


NEEDS_A_RUN = ("view", "recover", "watch", "report")


@pytest.mark.parametrize("command", NEEDS_A_RUN)
@pytest.mark.parametrize(
    ("words", "said"),
    [([], "no RUN was given"), ([""], "RUN: '' is empty"), (["gone"], "no run 'gone'")],
    ids=["nothing", "an empty name", "no run"],
)
def test_commands_for_a_run_refuse_alike(
    cwd: Path, command: str, words: list[str], said: str
) -> None:
    assert said in refused([command, *words], cwd).stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_an_unknown_option_in_one_style(cwd: Path, command: str) -> None:
    stderr = refused([command, "--no-such-option"], cwd).stderr
    assert stderr.startswith(f"traceml {command}: ")
    assert "--no-such-option" in stderr
    assert ": error:" not in stderr  # argparse's own style


@pytest.mark.parametrize("command", COMMANDS)
def test_help_for_a_command_can_be_asked_for_in_either_order(tmp_path: Path, command: str) -> None:
    done = run_traceml(["help", command], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: traceml {command}")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--run_name", "a", "train.py"],
        ["run", "--nproc_per_node=1", "--nnodes=1", "--node_rank=0", "train.py"],
        ["run", "--run-name", "gone", "--run-name", "a", "train.py"],
        ["run", "program"],
        ["run", "data.v2"],
    ],
    ids=["underscores", "torchrun's spelling", "an option twice", "no suffix", "another suffix"],
)
def test_what_is_right_in_its_own_way_runs(tmp_path: Path, words: list[str]) -> None:
    for name in ("train.py", "program", "data.v2"):
        (tmp_path / name).write_text("print('ran')")
    done = run_traceml(words, tmp_path)
    assert (done.status, done.stdout) == (0, "ran\n"), done.stderr
    if "a" in words:
        assert done.folder.name == "a"


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("runn", ["run", "view"], "run"),
        ("VIEW", ["run", "view"], "view"),
        ("--nproc", ["--nproc-per-node", "--nnodes"], "--nproc-per-node"),
        ("xyzzy", ["run", "view"], None),
        ("", ["run", "view"], None),
        ("r", ["report"], None),
        ("run", [], None),
    ],
)
def test_only_what_is_near_is_named(word: str, known: list[str], found: str | None) -> None:
    assert nearest(word, known) == found


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "--logs-dir", "{closed}"],
        ["history", "--logs-dir", "{closed}"],
        ["compare", "base-*", "b", "--logs-dir", "{closed}"],
        ["compare", "lr=1", "b", "--logs-dir", "{closed}"],
        ["mcp", "--code-dir", "{closed}"],
    ],
    ids=" ".join,
)
def test_a_path_that_may_not_be_entered_is_one_line(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forbid_entry: Callable[[Path], None],
    capfd,
):
    """Before Python 3.14, asking whether there is something raises."""
    outer = tmp_path / "outer"
    closed = outer / "closed"
    closed.mkdir(parents=True)

    def asks(is_so: Callable[[int], bool]) -> Callable[[Path], bool]:
        def ask(path: Path) -> bool:
            try:
                return is_so(path.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

        return ask

    monkeypatch.chdir(tmp_path)
    forbid_entry(outer)
    monkeypatch.setattr(Path, "exists", asks(lambda mode: True))
    monkeypatch.setattr(Path, "is_dir", asks(S_ISDIR))
    monkeypatch.setattr(Path, "is_file", asks(S_ISREG))
    assert main([word.format(closed=closed) for word in words]) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said and "Permission denied" in said and said.count("\n") == 1
