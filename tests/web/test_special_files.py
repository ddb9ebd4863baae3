"""Pipes, devices and links where a run's files should be: nobody waits, and no link is followed.

A real server and real commands: each of these once waited for ever, or read what it should not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import run_traceml
from run_folders import write_run
from served import Served, serving
from traceml.model.run import Ending

SECRET = "not-for-the-browser"
FILES = (
    "final_summary.json",
    "live.json",
    "ending.json",
    "lineage.json",
    "samples.jsonl",
    "stack_samples.jsonl",
    "agent_saw.json",
    "artifacts.json",
    "output.log",
    "rank-0-9.messages",
    "rank-0-9.0000.steps",
    "rank-0-9.v3.blocks",
    "rank-0-9.ring",
)
"""Every name that some reader of a run folder opens, the manifest aside."""
ENDED = Ending(1_800_000_100.0, 0)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole runs; one whose files are pipes, one whose files are links to a secret."""
    logs = tmp_path_factory.mktemp("special") / "runs"
    for name in ("a", "b"):
        write_run(logs / name, ending=ENDED)
    secret = logs.parent / "secret.json"
    summary = (logs / "a" / "final_summary.json").read_text()
    secret.write_text(summary.replace('"params": {', f'"params": {{"{SECRET}": 1'))
    assert SECRET in secret.read_text()
    for name in ("pipes", "links"):
        (logs / name).mkdir()
        (logs / name / "run.json").write_bytes((logs / "a" / "run.json").read_bytes())
    for file in FILES:
        os.mkfifo(logs / "pipes" / file)
        (logs / "links" / file).symlink_to(secret)
    (logs / "whole-link").mkdir()
    for file in ("run.json", "final_summary.json"):
        (logs / "whole-link" / file).symlink_to(secret)
    return logs


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Served]:
    with serving(logs) as served:
        yield served


@pytest.mark.parametrize("name", ["pipes", "links"])
def test_a_server_shows_such_a_run_as_one_without_files(server: Served, name: str) -> None:
    for _ in range(3):  # more often than the server has threads
        answer = server.get(f"/api/runs/{name}")
        assert answer.status == 200, answer.body
        assert SECRET not in answer.body.decode()


def test_a_server_compares_and_lists_beside_them(server: Served) -> None:
    """A comparison looks at all earlier runs of the same command, and those are pipes here."""
    compared = server.get("/api/compare?a=a&b=b")
    assert compared.status == 200, compared.body
    listed = server.get("/api/runs")
    assert listed.status == 200, listed.body
    assert {row["name"] for row in listed.json["rows"]} == {"a", "b", "pipes", "links"}
    assert SECRET not in listed.body.decode()


def test_a_server_does_not_compare_through_a_link(server: Served) -> None:
    answer = server.get("/api/compare?a=a&b=links")
    assert answer.status == 404
    assert "it is a symbolic link, expected a regular file" in answer.error
    assert SECRET not in answer.body.decode()


def test_a_folder_of_nothing_but_links_is_no_run(server: Served) -> None:
    answer = server.get("/api/runs/whole-link")
    assert answer.status == 404
    assert "there is no run 'whole-link'" in answer.error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["view", "runs/pipes/final_summary.json"], "it is a named pipe, expected a regular file"),
        (["view", "zero.json"], "it is a device, expected a regular file"),
        (["compare", "runs/a", "runs/pipes/final_summary.json"], "it is a named pipe"),
        (["recover", "runs/pipes"], None),
    ],
    ids=["view a pipe", "view a device", "compare a pipe", "recover pipes"],
)
def test_commands_end_and_say_what_they_found(
    logs: Path, words: list[str], said: str | None
) -> None:
    if words[-1] == "zero.json" and not (logs.parent / "zero.json").is_symlink():
        (logs.parent / "zero.json").symlink_to("/dev/zero")
    done = run_traceml(words, logs.parent)
    if said is None:
        assert done.status == 0, done.stderr
    else:
        assert (done.status, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_link_that_the_user_names_is_followed(logs: Path) -> None:
    link = logs.parent / "baseline.json"
    link.symlink_to(logs / "a" / "final_summary.json")
    done = run_traceml(["view", "baseline.json"], logs.parent)
    assert done.status == 0, done.stderr
    assert "Verdict" in done.stdout
