"""An agent that is the head, or joins it: by the marks that ranks leave, over loopback."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event

import pytest

from factories import make_run
from processes import wait_until
from run_folders import write_run
from traceml.agent import node_duties
from traceml.agent.node_duties import NodeDuties, own_address
from traceml.agent.node_server import HeadServer
from traceml.api.run import RunOptions, new_run
from traceml.model.environment import MOVED_MARK, TROUBLE_MARK
from traceml.model.errors import UsageError
from traceml.model.node import (
    HEAD_MARK,
    HEAD_WANTED_MARK,
    JOIN_MARK,
    JOINED_MARK,
    ORIGIN_MARK,
    HeadAddress,
    NodeWay,
)
from traceml.store import folder as folders
from traceml.store.load import load_run
from traceml.store.node_folders import (
    NODES,
    closing_words,
    leave_head,
    node_folders,
    parse_head,
    read_node,
)
from traceml.store.shared_names import settle
from traceml.trace.marks import write_first_mark


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_duties, "HEAD_WAITS_S", 0.5)
    monkeypatch.setattr(node_duties, "DELIVERY_TIMEOUT_S", 60.0)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[NodeDuties]:
    folder = write_run(tmp_path / "logs" / "job", make_run(ranks=2), is_over=False)
    folders.write_mark(folder, HEAD_WANTED_MARK, json.dumps({"master": "127.0.0.1"}))
    duties = NodeDuties(folder, print)
    duties.look()
    yield duties
    duties.close()


def address_of(head: NodeDuties) -> HeadAddress:
    found = head._read_address(HEAD_MARK)
    assert found is not None
    return found


def join(folder: Path, address: HeadAddress) -> NodeDuties:
    """A node whose rank has found this head."""
    write_run(folder, make_run(ranks=2), is_over=False)
    folders.write_mark(folder, JOIN_MARK, json.dumps(asdict(address)))
    duties = NodeDuties(folder, print)
    duties.look()
    return duties


def test_a_rank_that_wants_a_head_gets_one(head: NodeDuties):
    address = address_of(head)
    assert (address.host, address.machine) == ("127.0.0.1", socket.gethostname())
    assert address.port and len(address.token) > 20
    state = read_node(Path(address.folder))
    assert state is not None and state.way is NodeWay.HEAD
    assert not head.is_joined


def test_an_agent_that_nobody_asks_opens_no_port(tmp_path: Path):
    duties = NodeDuties(write_run(tmp_path / "run", is_over=False), print)
    duties.look()
    assert duties._server is None and not duties.is_joined
    duties.wait_for_nodes()
    duties.close()


def test_a_restarted_agent_has_the_same_address(head: NodeDuties):
    before = address_of(head)
    head.close()
    again = NodeDuties(Path(before.folder), print)
    again.look()
    assert address_of(again) == before
    again.close()


def test_a_restarted_agent_waits_for_the_port_that_the_nodes_know(head: NodeDuties):
    before = address_of(head)
    head.close()
    with socket.create_server((before.host, before.port)) as somebody_else:
        again = NodeDuties(Path(before.folder), print)
        again.look()
        assert not again.is_head
        somebody_else.close()
        again.look()
        assert again.is_head and address_of(again) == before
        again.close()


def test_a_port_that_stays_taken_is_replaced(head: NodeDuties, monkeypatch: pytest.MonkeyPatch):
    before, said = address_of(head), []
    head.close()
    monkeypatch.setattr(node_duties, "PORT_TIMEOUT_S", 0.0)
    with socket.create_server((before.host, before.port)):
        again = NodeDuties(Path(before.folder), said.append)
        again.look()
        assert again.is_head and address_of(again).port != before.port
        again.close()
    assert f"port {before.port} cannot be had" in said[0]


@pytest.mark.parametrize("token", ["secret", "of another job"])
def test_a_second_agent_at_the_address_that_head_names_joins_the_first(tmp_path: Path, token: str):
    """Two launchers of one job on one machine; beside another job, each is a head."""
    named = {"host": "127.0.0.1", "port": 0, "run_id": "run", "token": "secret"}
    agents = []
    for name, its_token in (("first", "secret"), ("second", token)):
        folder = write_run(tmp_path / name / "job", make_run(ranks=2), is_over=False)
        text = json.dumps({**named, "token": its_token})
        folders.write_mark(folder, HEAD_WANTED_MARK, text)
        duties = NodeDuties(folder, print)
        duties.look()
        duties.look()  # it may have found out by then where the head is
        agents.append(duties)
        named["port"] = address_of(agents[0]).port
    first, second = agents
    is_of_job = token == "secret"
    assert first.is_head and (second.is_head, second.is_joined) == (not is_of_job, is_of_job)
    if is_of_job:
        wait_until(lambda: node_folders(tmp_path / "first" / "job"), "its records are there")
        assert second.deliver()
    for duties in agents:
        duties.close()


def test_a_shared_folder_is_moved_into_the_heads_and_stays_where_it_was_for_training(
    head: NodeDuties, tmp_path: Path
):
    node = tmp_path / "logs" / "job.host-b"
    duties = join(node, address_of(head))
    there = Path(address_of(head).folder) / NODES / f"{socket.gethostname()}-2"
    assert node.is_symlink() and node.resolve() == there
    (node / "agent_saw.json").write_text("{}")  # as processes do that know the old path
    assert (there / "agent_saw.json").exists()
    assert duties.deliver()
    state = read_node(there)
    assert state is not None and state.way is NodeWay.SHARED and state.is_finished
    assert settle(node) == there
    assert not os.path.lexists(node)


def test_a_node_that_a_second_head_shares_the_disk_with_sends_its_records_there(
    head: NodeDuties, tmp_path: Path
):
    node = tmp_path / "logs" / "job.host-b"
    first = join(node, address_of(head))
    there = node.resolve()
    second_folder = write_run(tmp_path / "logs" / "again", make_run(ranks=2), is_over=False)
    folders.write_mark(second_folder, HEAD_WANTED_MARK, json.dumps({"master": "127.0.0.1"}))
    second = NodeDuties(second_folder, print)
    second.look()
    folders.write_mark(node, JOIN_MARK, json.dumps(asdict(address_of(second))))
    first.look()
    assert first.deliver()
    state = read_node(node)
    assert state is not None and state.way is NodeWay.HTTP
    (copy,) = node_folders(second_folder)
    assert node.resolve() == there and copy.resolve() != there
    assert [rank.rank.rank for rank in load_run(copy).ranks] == [0, 1]
    second.close()


def test_a_node_that_finds_the_named_head_in_the_jobs_store_too_is_there_once(
    head: NodeDuties, tmp_path: Path
):
    """`--head` says where it is and no folder; the store, which comes later, says that as well."""
    address = address_of(head)
    named = replace(address, folder="", nonce="")
    node = join(tmp_path / "logs" / "job-2", named)
    copies = Path(address.folder)
    wait_until(lambda: node_folders(copies), "its records are there")
    folders.write_mark(node._folder, JOIN_MARK, json.dumps(asdict(address)))
    node.look()
    assert node.deliver()
    assert len(node_folders(copies)) == 1
    node.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_node_whose_disk_is_full_when_it_joins_joins_later(
    head: NodeDuties, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    address = address_of(head)
    node = write_run(tmp_path / "elsewhere" / "run", make_run(ranks=2), is_over=False)
    there = address if is_shared else replace(address, folder="")
    folders.write_mark(node, JOIN_MARK, json.dumps(asdict(there)))
    duties = NodeDuties(node, print)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(node_duties, "write_node", full)
        duties.look()
    assert not duties.is_joined
    duties.look()
    assert duties.deliver()
    (copy,) = (path for path in (Path(address.folder) / NODES).iterdir() if path.is_dir())
    state = read_node(copy)
    assert state is not None and state.is_finished
    assert state.way is (NodeWay.SHARED if is_shared else NodeWay.HTTP)
    assert node.is_symlink() == is_shared


@pytest.mark.parametrize("why", ["another nonce", "another disk", "no folder is named"])
def test_a_folder_that_is_not_shared_is_sent(
    head: NodeDuties, tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
):
    address = address_of(head)
    if why == "another nonce":
        address = replace(address, nonce="of another run")
    elif why == "no folder is named":
        address = replace(address, folder="")
    else:

        def refuse(*_: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(Path, "rename", refuse)
    node = tmp_path / "elsewhere" / "run"
    duties = join(node, address)
    assert duties.deliver()
    assert not node.is_symlink()
    copy = Path(address_of(head).folder) / NODES / f"{socket.gethostname()}-2"
    state = read_node(copy)
    assert state is not None and state.way is NodeWay.HTTP and state.is_finished
    assert "the summary of all machines is" in str(closing_words(node))


def test_the_head_waits_for_nodes_that_send(head: NodeDuties, tmp_path: Path):
    duties = join(tmp_path / "elsewhere" / "run", replace(address_of(head), folder=""))
    assert head._server is not None
    wait_until(head._server.unfinished_nodes, "the node has joined")
    assert duties.deliver()
    assert head._server.unfinished_nodes() == {}


def test_the_head_waits_for_a_node_whose_link_has_only_just_been_mended(
    head: NodeDuties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_duties, "HEAD_WAITS_S", 3600.0)
    monkeypatch.setattr(node_duties, "SILENT_WAIT_S", 3600.0)
    duties = join(tmp_path / "elsewhere" / "run", replace(address_of(head), folder=""))
    assert head._server is not None
    wait_until(head._server.unfinished_nodes, "the node has joined")
    unfinished, looks, has_waited = HeadServer.unfinished_nodes, [], Event()

    def long_silent(server: HeadServer) -> dict[str, float]:
        looks.append(1)
        if len(looks) > 1:
            has_waited.set()
        return dict.fromkeys(unfinished(server), 2 * node_duties.HEAD_SILENCE_S)

    monkeypatch.setattr(HeadServer, "unfinished_nodes", long_silent)
    with ThreadPoolExecutor() as threads:
        delivered = threads.submit(lambda: has_waited.wait() and duties.deliver())
        try:
            head.wait_for_nodes()
            is_waited_for = has_waited.is_set()
        finally:
            has_waited.set()
        assert delivered.result()
    assert is_waited_for


def test_a_link_to_a_head_that_is_another_one_ends(head: NodeDuties, tmp_path: Path):
    folder, address = tmp_path / "elsewhere" / "run", replace(address_of(head), nonce="")
    with socket.create_server(("127.0.0.1", 0)) as somebody_else:  # who does not answer
        wrong = replace(address, port=somebody_else.getsockname()[1], run_id="another")
        duties = join(folder, wrong)
        before = duties._link
        assert before is not None
        somebody_else.accept()
        folders.write_mark(folder, JOIN_MARK, json.dumps(asdict(address)))
        duties.look()
        before.update(trouble="of no interest any more")
        assert duties.deliver()
    wait_until(lambda: not before._thread.is_alive(), "the first link ends")
    state = read_node(folder)
    assert state is not None and (state.run_id, state.trouble) == (address.run_id, None)


@pytest.mark.parametrize(("known_for_s", "is_short"), [(0.0, True), (3600.0, False)])
def test_a_node_that_never_came_is_waited_for_in_a_young_job_alone(
    head: NodeDuties, monkeypatch: pytest.MonkeyPatch, known_for_s: float, is_short: bool
):
    folders.write_mark(Path(address_of(head).folder), JOINED_MARK, "1")
    monkeypatch.setattr(node_duties, "HEAD_WAITS_S", 20.0 if is_short else 3.0)
    monkeypatch.setattr(node_duties, "FIRST_NODE_WAIT_S", 0.1)
    monkeypatch.setattr(node_duties, "KNOWN_FOR_S", known_for_s)
    began_s = time.monotonic()
    head.wait_for_nodes()
    assert (time.monotonic() - began_s < 3.0) == is_short


def test_a_node_whose_head_is_gone_says_how_to_go_on(
    head: NodeDuties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_duties, "DELIVERY_TIMEOUT_S", 0.3)
    node = tmp_path / "elsewhere" / "run"
    address = replace(address_of(head), nonce="")
    head.close()
    assert not join(node, address).deliver()
    assert f"traceml recover {address.folder} run" in str(closing_words(node))
    unknown = tmp_path / "unknown" / "run"  # a head that was named by its address, and refuses us
    assert not join(unknown, replace(address, folder="")).deliver()
    assert "`traceml recover RUN run`" in str(closing_words(unknown))


def test_the_address_is_that_of_the_meeting_point(monkeypatch: pytest.MonkeyPatch):
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") in ("127.0.0.1", "::1")
    monkeypatch.setattr(node_duties, "resolve", {"host-a": "127.0.1.1"}.get)
    monkeypatch.setattr(node_duties, "_address_towards", {"192.0.2.1": "10.0.0.7"}.get)
    assert own_address("host-a") == "10.0.0.7"  # its hosts file calls it loopback
    monkeypatch.setattr(node_duties, "resolve", {"host-b": "10.9.9.9"}.get)
    monkeypatch.setattr(node_duties, "_address_towards", {"10.9.9.9": "10.9.9.1"}.get)
    assert own_address("host-b") == "10.9.9.1"  # the interface that reaches it


# --head


def test_a_head_on_the_command_line_is_wanted_here_and_joined_elsewhere(tmp_path: Path):
    here, there = (write_run(tmp_path / name, is_over=False) for name in ("here", "there"))
    leave_head(here, parse_head("127.0.0.1:7654", "secret"))
    leave_head(there, parse_head("192.0.2.1:7654", "secret"))
    assert folders.read_mark(here, HEAD_WANTED_MARK) is not None
    assert folders.read_mark(here, JOIN_MARK) is None
    assert folders.read_mark(there, JOIN_MARK) is not None
    assert parse_head("[::1]:7654", "secret").host == "::1"


@pytest.mark.parametrize(
    ("text", "token", "words"),
    [
        ("host-a", "secret", "is no address"),
        ("host-a:0", "secret", "is no address"),
        ("host-a:99999", "secret", "is no address"),
        (":7654", "secret", "is no address"),
        ("host-a:7654", "", "needs a token"),
    ],
)
def test_a_wrong_head_is_a_usage_error(text: str, token: str, words: str):
    with pytest.raises(UsageError, match=words):
        parse_head(text, token)


# Names of runs on a logs folder that machines share


def test_machines_that_share_a_logs_folder_do_not_take_each_others_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def start(machine: str, *command: str, nodes: int = 1, node_rank: int = 0) -> str:
        monkeypatch.setattr(socket, "gethostname", lambda: machine)
        options = RunOptions(run_name="job", logs_dir=tmp_path, nodes=nodes, node_rank=node_rank)
        folder = new_run("train.py", list(command), options)
        folders.remove_rings(folders.read_manifest(folder))
        return folder.name

    assert start("host-b", nodes=2, node_rank=1) == "job.host-b"
    assert start("host-a", nodes=2) == "job"
    assert start("host-c", "torchrun", "--nnodes=2") == "job.host-c"  # its ranks know its place
    with pytest.raises(UsageError, match="exists already"):
        start("host-d", "python", "train.py")  # another job
    for name in ("job", "job.host-b"):
        manifest = folders.read_manifest(tmp_path / name)
        long_ago = replace(manifest, started_unix_s=manifest.started_unix_s - folders.YOUNG_S)
        folders.write_manifest(tmp_path / name, long_ago)
    with pytest.raises(UsageError, match="exists already"):
        start("host-c", "torchrun", "--nnodes=2")
    with pytest.raises(UsageError, match="exists already"):
        start("host-b", nodes=2, node_rank=1)
    with pytest.raises(UsageError, match="cannot be a run name"):
        new_run("train.py", [], RunOptions(run_name="a\0b", logs_dir=tmp_path, nodes=2))


@pytest.mark.parametrize("overwrite", [False, True])
def test_containers_with_one_hostname_have_a_run_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
):
    monkeypatch.setattr(socket, "gethostname", lambda: "box")

    def start(name: str, *command: str, **options: int) -> str:
        wanted = RunOptions(run_name=name, logs_dir=tmp_path, overwrite=overwrite, **options)
        folder = new_run("train.py", list(command), wanted)
        folders.remove_rings(folders.read_manifest(folder))
        return folder.name

    ranked = [start("ranked", nodes=3, node_rank=rank) for rank in range(3)]
    assert ranked == ["ranked", "ranked.box", "ranked.box-2"]
    unranked = [start("unranked", "torchrun", "--nnodes=3") for _ in range(3)]
    assert unranked == ["unranked", "unranked.box", "unranked.box-2"]


# A run that a command on another machine began


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return write_run(tmp_path / "head", make_run(ranks=1))


@pytest.fixture
def duties_of_origin(origin: Path) -> Iterator[NodeDuties]:
    """Those of the agent of that command."""
    made = NodeDuties(origin, print)
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, origin: Path) -> Path:
    """The folder of a node on which ranks run, but not the command that began the run."""
    folder = write_run(tmp_path / "node", make_run(ranks=1))
    folders.write_mark(folder, ORIGIN_MARK, str(origin))
    folders.write_mark(folder, HEAD_WANTED_MARK, "{}")  # rank 0 is here
    return folder


def test_the_head_does_not_join_itself(origin: Path, duties_of_origin: NodeDuties):
    """Where rank 0 is on a machine that has joined it, its own ranks find it published."""
    folders.write_mark(origin, HEAD_WANTED_MARK, "{}")
    duties_of_origin.look()
    published = folders.read_mark(origin, HEAD_MARK)
    assert published is not None
    folders.write_mark(origin, JOIN_MARK, published)
    duties_of_origin.look()
    assert not duties_of_origin.is_joined


def test_a_node_joins_the_command_that_began_the_run(
    origin: Path, node: Path, duties_of_origin: NodeDuties
):
    own = NodeDuties(node, print)
    own.look()
    assert folders.read_mark(node, HEAD_MARK) is None  # it waits for that of the command
    duties_of_origin.look()
    own.look()
    assert own.is_joined
    assert len(list((origin / NODES).iterdir())) == 2  # the node, and the mark of a shared folder
    assert own.deliver()


def test_a_command_that_does_not_answer_is_not_waited_for(
    origin: Path, node: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_duties, "ORIGIN_TIMEOUT_S", 0.0)
    own = NodeDuties(node, print)
    own.look()
    assert folders.read_mark(node, HEAD_MARK) is not None
    own.close()


@pytest.mark.parametrize(
    ("nodes", "command"),
    [
        pytest.param(1, "python", id="one machine"),
        pytest.param(1, "torchrun --nnodes=1 --nproc-per-node 4", id="torchrun on one machine"),
        pytest.param(2, "python", id="two machines"),
        pytest.param(0, "torchrun --nnodes 1:4", id="up to four machines"),
    ],
)
def test_a_logs_folder_that_cannot_be_written_costs_a_job_of_several_machines_nothing(
    nodes: int, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its records go to the head; a run of one machine would be found nowhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    options = RunOptions("job", tmp_path / "file" / "logs", nodes=nodes)
    if nodes == 1:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):  # one of two tasks of `mpirun`
            monkeypatch.setenv(name, "0" if name == "RANK" else "2")
        with pytest.raises(OSError):
            new_run("train.py", command.split(), options)
        return
    folder = new_run("train.py", command.split(), options)
    try:
        assert (folder.name, folder.parent.parent) == ("job", tmp_path)
        moved = folders.read_mark(folder, MOVED_MARK)
        assert moved is not None and f"{options.logs_dir} cannot be written here" in moved
        write_first_mark(folder, TROUBLE_MARK, "torch 1.13 is too old")  # its own is free
        assert load_run(folder).notes == (moved, "torch 1.13 is too old")
    finally:
        folders.discard(folder, folders.read_manifest(folder))
