"""A run over several machines on one logs folder gets the name that the user wanted, whichever of
them was first to take it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from factories import make_run
from run_folders import write_run
from traceml.agent.close import recover
from traceml.agent.node_duties import NodeDuties
from traceml.api.find_runs import find_folder, view
from traceml.api.run import RunOptions, new_run
from traceml.model.errors import UsageError
from traceml.model.node import HEAD_MARK, HEAD_WANTED_MARK, JOIN_MARK
from traceml.store import folder as folders
from traceml.store.folder_versions import scan_runs
from traceml.store.node_folders import NODES, read_node
from traceml.store.shared_names import settle, take_wanted_name

TORCHRUN = ("torchrun", "--nnodes", "2", "--rdzv-backend=c10d", "train.py")


def start(logs: Path, machine: str, *command: str, **more: object) -> Path:
    """Begin a run named `job` on a machine, with steps of two ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: machine)
        patch.setattr(folders, "boot_id", lambda: machine)
        folder = new_run("train.py", [*command], RunOptions("job", logs, **more))  # type: ignore[arg-type]
    manifest = folders.read_manifest(folder)
    folders.remove_rings(manifest)
    records = write_run(logs / ".records" / folder.name, make_run(ranks=2), is_over=False)
    shutil.copytree(records, folder, dirs_exist_ok=True)
    folders.write_manifest(folder, manifest)
    return folder


def join_on_shared_folder(head: Path, node: Path) -> NodeDuties:
    """Make one run the head, and let the other move into it; returns the head's duties."""
    folders.write_mark(head, HEAD_WANTED_MARK, json.dumps({"master": "127.0.0.1"}))
    duties = NodeDuties(head, print)
    duties.look()
    folders.write_mark(node, JOIN_MARK, folders.read_mark(head, HEAD_MARK) or "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: node.name.replace("job", "host-b"))
        other = NodeDuties(node, print)
        other.look()
    assert node.is_symlink() and node.resolve().parent == head / NODES
    assert other.deliver()
    return duties


def test_the_bare_name_goes_to_the_machine_that_the_launcher_calls_the_first(tmp_path: Path):
    for words in (("--node-rank=1",), ("--node_rank", "1")):
        logs = tmp_path / words[0]
        second = start(logs, "host-b", "torchrun", "--nnodes=2", *words, "train.py")
        first = start(logs, "host-a", "torchrun", "--nnodes=2", "--node-rank", "0", "train.py")
        assert (second.name, first.name) == ("job.host-b", "job")
    script = ("python", "train.py", "--nnodes", "2", "--node-rank", "1")
    alone = start(tmp_path, "host-a", *script)
    assert alone.name == "job"  # an option of the script's own


@pytest.mark.parametrize("is_node_first", [True, False], ids=["node ends first", "head ends first"])
def test_the_run_gets_the_name_that_a_node_of_it_was_first_to_take(
    tmp_path: Path, is_node_first: bool
):
    node, head = start(tmp_path, "host-b", *TORCHRUN), start(tmp_path, "host-a", *TORCHRUN)
    assert (node.name, head.name) == ("job", "job.host-a")
    duties = join_on_shared_folder(head, node)
    ends = [lambda: settle(node), lambda: take_wanted_name(head)]
    for end in ends if is_node_first else reversed(ends):
        end()
    duties.close()
    assert (tmp_path / "job").readlink() == Path("job.host-a")
    assert find_folder("job", tmp_path).resolve() == head
    folders.write_ending(head, folders.Ending(folders.read_manifest(head).started_unix_s + 9, 0))
    assert recover(head).meta.run_name == "job"
    assert json.loads(view("job", tmp_path, "json"))["meta"]["run_name"] == "job"
    assert [*scan_runs(tmp_path).versions] == ["job"]
    settle(head)
    assert head.is_dir()


def test_a_node_that_was_lost_needs_the_name_no_more(tmp_path: Path):
    node, head = start(tmp_path, "host-b", *TORCHRUN), start(tmp_path, "host-a", *TORCHRUN)
    join_on_shared_folder(head, node).close()
    state = read_node(node)
    assert state is not None
    (node / "node.json").write_text(json.dumps({**asdict(state), "is_finished": False}))
    take_wanted_name(head)
    assert (tmp_path / "job").resolve() == head


def test_a_name_that_another_run_has_stays_its_own(tmp_path: Path):
    other, head = start(tmp_path, "host-b", *TORCHRUN), start(tmp_path, "host-a", *TORCHRUN)
    take_wanted_name(head)
    assert not other.is_symlink()
    assert folders.read_manifest(head).run_name == "job.host-a"


def test_a_link_of_a_persons_own_is_not_followed_to_the_run_that_it_names(tmp_path: Path):
    folder = write_run(tmp_path / "exp.v2", make_run())
    (tmp_path / "exp").symlink_to("exp.v2")
    assert "exp.v2" in scan_runs(tmp_path).versions
    with pytest.raises(UsageError, match="not a run that --overwrite may replace"):
        folders.create(tmp_path, "exp", overwrite=True)
    assert folders.is_run(folder)


def test_the_link_of_a_run_that_was_removed_blocks_its_name_no_more(tmp_path: Path):
    (tmp_path / "job").symlink_to("job.host-a")
    with pytest.raises(UsageError, match="pass --overwrite"):
        folders.create(tmp_path, "job", overwrite=False)
    assert not folders.create(tmp_path, "job", overwrite=True).is_symlink()


def test_a_run_that_a_link_names_can_be_replaced(tmp_path: Path):
    node, head = start(tmp_path, "host-b", *TORCHRUN), start(tmp_path, "host-a", *TORCHRUN)
    join_on_shared_folder(head, node).close()
    settle(node)
    (tmp_path / "latest").symlink_to("job.host-a")  # a person's own
    with pytest.raises(UsageError, match="exists already"):
        folders.create(tmp_path, "job", overwrite=False)
    for path in head.iterdir():
        os.utime(path, (1, 1))
    folders.write_ending(head, folders.Ending(1.0, 0))
    new = folders.create(tmp_path, "job", overwrite=True)
    assert new.is_dir() and not new.is_symlink()
    assert not head.exists()
