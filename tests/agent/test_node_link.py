"""Records on their way from a node's agent to the head's, over real sockets."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest

from factories import make_run
from processes import wait_until
from run_folders import write_run
from traceml.agent import node_link, node_server
from traceml.agent.node_link import BrokenLink, ClockOffset, HeadClient, HeadRefuses, NodeLink
from traceml.agent.node_server import MAX_BODY_BYTES, HeadServer
from traceml.model.node import HeadAddress, Header, NodeState, NodeWay
from traceml.store.line_files import append_lines
from traceml.store.node_folders import NODES, read_node, read_refused, write_node
from traceml.store.node_mirror import CopyListing, FilePiece, list_copy

CERTIFICATE = Path(__file__).parents[1] / "data" / "head_certificate.pem"
ADDRESS = HeadAddress(run_id="run-1", host="127.0.0.1", port=0, token="secret", machine="host-a")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_link, "SEND_EVERY_S", 0.02)
    monkeypatch.setattr(node_link, "MIN_RETRY_S", 0.02)
    monkeypatch.setattr(node_link, "MAX_RETRY_S", 0.05)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return write_run(tmp_path / "head", make_run(ranks=2), is_over=False)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def make_node(folder: Path, node_id: str = "7") -> Path:
    write_run(folder, make_run(ranks=2), is_over=False)
    state = NodeState("run-1", "host-b", node_id=node_id, hostname="host-b", way=NodeWay.HTTP)
    write_node(folder, state)
    return folder


@pytest.fixture
def server(head: Path) -> Iterator[HeadServer]:
    started = HeadServer(head, ADDRESS)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def link(node: Path, server: HeadServer) -> NodeLink:
    made = NodeLink(node, server.address)
    made.start()
    return made


def is_copied(node: Path, copy: Path) -> bool:
    return copy.is_dir() and list_copy(copy) == list_copy(node)


def wait_for_copy(node: Path, head: Path) -> None:
    wait_until(lambda: is_copied(node, head / NODES / "host-b"), "everything is at the head")


def test_what_a_node_records_is_at_the_head_soon(node: Path, head: Path, link: NodeLink):
    wait_for_copy(node, head)
    append_lines(node / "samples.jsonl", b"{}\n")
    wait_for_copy(node, head)
    assert link.finish(60)
    state = read_node(head / NODES / "host-b")
    assert state is not None and state.is_finished
    assert state.clock_offset_s == pytest.approx(0, abs=state.clock_uncertainty_s)
    assert read_refused(head) == {}


def test_a_head_that_ends_as_soon_as_it_has_everything_has_everything(
    node: Path, head: Path, monkeypatch: pytest.MonkeyPatch
):
    take = HeadServer._take

    def take_until_the_node_has_finished(
        server: HeadServer, name: str, body: bytes
    ) -> dict[str, object]:
        state = read_node(head / NODES / name)
        if state is not None and state.is_finished:
            raise ConnectionResetError  # as from a process that is gone
        return take(server, name, body)

    monkeypatch.setattr(HeadServer, "_take", take_until_the_node_has_finished)
    server = HeadServer(head, ADDRESS)
    server.start()
    link = NodeLink(node, server.address)
    link.start()
    assert link.finish(5)
    server.stop()
    assert is_copied(node, head / NODES / "host-b")


def test_a_clock_that_is_minutes_ahead_is_measured(
    node: Path, head: Path, monkeypatch: pytest.MonkeyPatch
):
    def five_minutes_behind(server: HeadServer, body: bytes) -> dict[str, int]:
        return {"unix_ns": time.time_ns() - 300 * 10**9}

    monkeypatch.setattr(HeadServer, "_tell_time", five_minutes_behind)
    server = HeadServer(head, ADDRESS)
    server.start()
    link = NodeLink(node, server.address)
    link.start()
    assert link.finish(60)
    server.stop()
    state = read_node(head / NODES / "host-b")
    assert state is not None and state.clock_uncertainty_s is not None
    assert state.clock_offset_s == pytest.approx(300, abs=state.clock_uncertainty_s)


@pytest.mark.parametrize(("old_s", "measured"), [(0.0, 2), (60.0, 1)], ids=["old", "new"])
def test_a_clock_that_was_measured_long_ago_is_measured_again_at_the_end(
    node: Path, head: Path, server: HeadServer, monkeypatch: pytest.MonkeyPatch, old_s, measured
):
    offsets = [ClockOffset(1.0, 0.001), ClockOffset(2.0, 0.001)]
    taken = iter(offsets)
    monkeypatch.setattr(node_link, "OLD_CLOCK_S", old_s)
    monkeypatch.setattr(HeadClient, "measure_clock", lambda *_: next(taken))
    began_unix_s = time.time()
    link = NodeLink(node, server.address)
    link.start()
    wait_for_copy(node, head)
    assert link.finish(60)
    state = read_node(head / NODES / "host-b")
    assert state is not None and state.clock_unix_s is not None
    assert state.clock_offset_s == offsets[measured - 1].offset_s
    assert began_unix_s <= state.clock_unix_s <= time.time()


def test_a_link_that_breaks_while_the_clock_is_measured_measures_it_again(
    node: Path, server: HeadServer, monkeypatch: pytest.MonkeyPatch
):
    measure, calls = HeadClient.measure_clock, []

    def break_once(self: HeadClient) -> object:
        calls.append(self)
        if len(calls) == 1:
            raise BrokenLink("the head was killed")
        return measure(self)

    monkeypatch.setattr(HeadClient, "measure_clock", break_once)
    link = NodeLink(node, server.address)
    link.start()
    assert link.finish(60)
    state = read_node(node)
    assert state is not None and state.clock_uncertainty_s is not None


def test_two_nodes_with_one_hostname_have_two_folders(
    node: Path, head: Path, tmp_path: Path, server: HeadServer, link: NodeLink
):
    wait_until((head / NODES / "host-b" / "run.json").exists, "the node is there")
    other = NodeLink(make_node(tmp_path / "other", node_id="8"), server.address)
    other.start()
    assert other.finish(60) and link.finish(60)
    found = {path.name: read_node(path) for path in (head / NODES).iterdir() if path.is_dir()}
    assert {name: state.node_id for name, state in found.items()} == {
        "host-b": "7",
        "host-b-2": "8",
    }


def test_a_head_that_is_restarted_goes_on_where_it_was(
    node: Path, head: Path, server: HeadServer, link: NodeLink
):
    wait_for_copy(node, head)
    server.stop()
    append_lines(node / "samples.jsonl", b"{}\n")
    again = HeadServer(head, server.address)  # on the same port
    again.start()
    assert link.finish(60)
    again.stop()
    assert is_copied(node, head / NODES / "host-b")
    assert read_refused(head) == {}


def test_a_link_that_is_cut_loses_nothing(node: Path, head: Path, server: HeadServer):
    with Forwarder(server.address.port) as forwarder:
        link = NodeLink(node, replace(server.address, port=forwarder.port))
        link.start()
        wait_for_copy(node, head)
        forwarder.cut()
        append_lines(node / "samples.jsonl", b"{}\n")
        (node / "agent_saw.json").write_text("{}")
        assert not is_copied(node, head / NODES / "host-b")
        forwarder.mend()
        wait_for_copy(node, head)
        assert link.finish(60)


def test_a_head_that_is_gone_is_waited_for_no_longer_than_asked(
    node: Path, server: HeadServer, link: NodeLink
):
    server.stop()
    began_s = time.monotonic()
    assert not link.finish(0.3)
    assert time.monotonic() - began_s < 60
    state = read_node(node)
    assert state is not None and state.is_finished and not state.is_delivered


def test_a_head_that_shares_the_folder_may_end_as_soon_as_it_reads_that_all_is_there(
    head: Path, server: HeadServer, monkeypatch: pytest.MonkeyPatch
):
    """It needs no port for that: it reads the node's folder."""
    node = make_node(head / NODES / "host-b")
    greet = HeadServer._greet

    async def greet_until_the_node_has_finished(server: HeadServer, *words: object) -> object:
        if is_finished(node):
            raise ConnectionResetError  # as from a process that is gone
        return await greet(server, *words)

    monkeypatch.setattr(HeadServer, "_greet", greet_until_the_node_has_finished)
    link = NodeLink(node, server.address, is_shared=True)
    link.start()
    wait_until(lambda: link._measured_s, "its clock is measured")
    assert link.finish(60)
    assert is_finished(node)


def is_finished(node: Path) -> bool:
    state = read_node(node)
    return state is not None and state.is_finished


def test_a_node_that_was_never_heard_of_holds_up_no_head_that_shares_its_folder(
    head: Path, server: HeadServer
):
    node = make_node(head / NODES / "host-b")
    server.stop()  # nobody can reach its port
    link = NodeLink(node, server.address, is_shared=True)
    link.start()
    with ThreadPoolExecutor() as threads:
        ending = threads.submit(link.finish, 3600)
        wait_until(lambda: is_finished(node), "the node says that all is there")
        assert not ending.done()
        link._over.set()
        assert not ending.result()


def test_while_a_copy_is_listed_the_head_answers_others_and_reads_for_nobody_who_is_gone(
    node: Path, head: Path, server: HeadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a restart of the head all nodes greet it at once, and there are gigabytes to read."""
    begun, go, wanted = Event(), Event(), []
    list_files = CopyListing.files

    def slow(self: CopyListing, copy: Path, is_wanted: Callable[[], bool]) -> object:
        begun.set()
        go.wait(60)
        if copy.name == "gone":
            wait_until(lambda: not is_wanted(), "the head sees that nobody waits for this")
        wanted.append((copy.name, is_wanted()))
        return list_files(self, copy, is_wanted)

    monkeypatch.setattr(CopyListing, "files", slow)
    impatient = HeadClient(server.address)
    with ThreadPoolExecutor() as threads:
        gone = threads.submit(impatient.greet, NodeState("run-1", "gone", node_id="6"))
        begun.wait(60)
        link = NodeLink(node, server.address)
        link.start()
        assert HeadClient(server.address).measure_clock(1).uncertainty_s < 60
        wait_until(lambda: "host-b" in server._heard_s, "the node waits for its turn")
        server._heard_s["host-b"] -= 3600
        assert server.unfinished_nodes()["host-b"] == 0
        impatient._connection.sock.shutdown(socket.SHUT_RDWR)
        go.set()
        assert gone.exception() is not None
    assert link.finish(60)
    assert wanted == [("gone", False), ("host-b", True)]


def test_a_link_that_cannot_begin_says_so_and_is_tried_again(
    node: Path, head: Path, tmp_path: Path
):
    """The variable for the certificate names a file that is on the head only, so far."""
    server = HeadServer(head, ADDRESS, CERTIFICATE)
    server.start()
    said: list[str] = []
    authority = tmp_path / "authority.pem"
    link = NodeLink(
        node, replace(server.address, certificate=""), authority=authority, said=said.append
    )
    link.start()
    wait_until(lambda: bool((found := read_node(node)) and found.trouble), "it is noted")
    assert "No such file" in said[0]
    shutil.copy(CERTIFICATE, tmp_path / "copied.pem").replace(authority)  # at once
    wait_for_copy(node, head)
    assert link.finish(60)
    state = read_node(node)
    assert state is not None and state.trouble is None
    assert len(said) == 1  # though it was tried often
    server.stop()


def test_a_link_goes_on_after_a_failure_that_nobody_expected(
    node: Path, head: Path, server: HeadServer, monkeypatch: pytest.MonkeyPatch
):
    measure, calls, said = HeadClient.measure_clock, [], []

    def fail_once(self: HeadClient, *exchanges: int) -> object:
        calls.append(self)
        return measure(self, *exchanges) if len(calls) > 1 else {}["no such key"]

    monkeypatch.setattr(HeadClient, "measure_clock", fail_once)
    link = NodeLink(node, server.address, said=said.append)
    link.start()
    assert link.finish(60)
    assert link.failures == 1
    assert "no such key" in said[0] and "Traceback" in said[0]
    assert is_copied(node, head / NODES / "host-b")


def test_an_encrypted_link_trusts_the_published_certificate_alone(node: Path, head: Path):
    server = HeadServer(head, ADDRESS, CERTIFICATE)
    server.start()
    try:
        assert len(server.address.certificate) == 64
        link = NodeLink(node, server.address)
        link.start()
        assert link.finish(60)
        forged = HeadClient(replace(server.address, certificate="0" * 64))
        with pytest.raises(BrokenLink, match="another certificate"):
            forged.measure_clock(1)
        named = HeadClient(replace(server.address, certificate=""), authority=CERTIFICATE)
        clock = named.measure_clock(1)
        assert clock.offset_s == pytest.approx(0, abs=clock.uncertainty_s)
        plain = HeadClient(replace(server.address, certificate=""))
        with pytest.raises(BrokenLink):
            plain.measure_clock(1)
    finally:
        server.stop()


def test_a_certificate_that_is_none_is_said_at_once(head: Path, tmp_path: Path):
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises((OSError, ssl.SSLError)):
        HeadServer(head, ADDRESS, tmp_path / "empty.pem").start()


# What is refused


def ask(
    server: HeadServer,
    body: bytes = b"",
    path: str = "/v1/hello",
    length: int | None = None,
    **headers: str,
) -> int:
    """Send one request; returns the status."""
    sent = {
        Header.TOKEN: "Bearer secret",
        Header.RUN: "run-1",
        Header.TRANSPORT: "1",
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
    with closing(connection):
        connection.putrequest("POST", path)
        for name, text in sent.items():
            connection.putheader(name, text)
        connection.putheader(Header.LENGTH, str(len(body) if length is None else length))
        connection.endheaders(body)
        return connection.getresponse().status


def pieces(*found: FilePiece) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(found))


GREETING = json.dumps({"name": "host-b", "node_id": "7"}).encode()
TO_HOST_B = "/v1/pieces?node=host-b"
ONE_FIELD_MORE = b"\x91\x96\xa1a\x00\xc4\x00\xc0\xc2"
NESTED = ONE_FIELD_MORE + b"\x91" * 300_000


@pytest.mark.parametrize(
    ("send", "status", "why"),
    [
        (lambda s: ask(s, GREETING, authorization="Bearer wrong"), 401, "token"),
        (lambda s: ask(s, GREETING, authorization=""), 401, "token"),
        (lambda s: ask(s, GREETING, x_traceml_run="run-2"), 403, "run"),
        (lambda s: ask(s, GREETING, x_traceml_transport="2"), 426, "version"),
        (lambda s: ask(s, length=1 << 30), 413, "size"),
        (lambda s: ask(s, length=MAX_BODY_BYTES + 1), 413, "size"),
        (lambda s: ask(s, zlib.compress(bytes(1 << 24)), TO_HOST_B), 413, "size"),
        (lambda s: ask(s, pieces(FilePiece("../run.json", 0, b"{}")), TO_HOST_B), 400, "path"),
        (lambda s: ask(s, b"neither", TO_HOST_B), 400, "request"),
        (lambda s: ask(s, zlib.compress(NESTED), TO_HOST_B), 400, "request"),
        (lambda s: ask(s, b"[]"), 400, "request"),
        (lambda s: ask(s, b"", "/etc/passwd"), 404, "request"),
        (lambda s: ask(s, pieces(), "/v1/pieces?node=stranger"), 404, "request"),
    ],
    ids=[
        "wrong token",
        "no token",
        "another run",
        "another version",
        "a gigabyte",
        "one byte too many",
        "megabytes once it is unpacked",
        "a name that leaves the folder",
        "no pieces",
        "lists in lists in a piece",
        "no greeting",
        "another page",
        "a node that did not greet",
    ],
)
def test_what_is_refused_is_counted_and_changes_nothing(
    head: Path, server: HeadServer, send: Callable[[HeadServer], int], status: int, why: str
):
    assert ask(server, GREETING) == 200
    before = list_copy(head)
    assert send(server) == status
    assert read_refused(head) == {why: 1}
    assert list_copy(head) == before
    assert ask(server, GREETING) == 200  # the others go on


def test_a_request_without_end_is_refused(head: Path, server: HeadServer):
    with socket.create_connection(("127.0.0.1", server.address.port), 60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"a: " + b"x" * (64 << 10))
        assert connection.recv(64).startswith(b"HTTP/1.1 400")
    assert read_refused(head) == {"request": 1}


def test_a_node_with_a_wrong_token_gives_up_and_says_so(node: Path, server: HeadServer):
    said: list[str] = []
    link = NodeLink(node, replace(server.address, token="wrong"), said=said.append)
    link.start()
    wait_until(lambda: bool(said), "it gives up")
    assert not link.finish(1)
    state = read_node(node)
    assert state is not None and state.trouble is not None and "token" in state.trouble


def test_a_head_of_another_version_says_what_to_do(
    server: HeadServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_link, "TRANSPORT_VERSION", 2)
    with pytest.raises(HeadRefuses, match="install the same TraceML on all nodes"):
        HeadClient(server.address).greet(NodeState("run-1", "host-b"))


def test_bytes_that_the_head_lost_are_sent_again(
    node: Path, head: Path, server: HeadServer, link: NodeLink
):
    copy = head / NODES / "host-b"
    wait_for_copy(node, head)
    (copy / "samples.jsonl").write_bytes(b"")
    append_lines(node / "samples.jsonl", b"{}\n")
    wait_for_copy(node, head)
    assert (copy / "samples.jsonl").read_bytes() == (node / "samples.jsonl").read_bytes()


def test_the_head_knows_who_has_not_finished(
    node: Path, head: Path, server: HeadServer, link: NodeLink
):
    wait_for_copy(node, head)
    assert list(server.unfinished_nodes()) == ["host-b"]
    heard_s = server._heard_s["host-b"]
    wait_until(lambda: server._heard_s["host-b"] > heard_s, "a node with no news gives a sign")
    assert link.finish(60)
    assert server.unfinished_nodes() == {}


@contextmanager
def answering(status: int, body: bytes) -> Iterator[HeadAddress]:
    """A server on this machine that is no head and answers everything so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as foreign:
        foreign.daemon_threads = True
        Thread(target=foreign.serve_forever, daemon=True).start()
        yield replace(ADDRESS, port=foreign.server_address[1])
        foreign.shutdown()


@pytest.mark.parametrize("status", [200, 404, 409])
@pytest.mark.parametrize("body", [b"[]", b'"not found"', b"null", b"{}", b"<html>"])
def test_a_server_that_is_no_head_is_not_taken_for_one(status: int, body: bytes):
    with answering(status, body) as address, closing(HeadClient(address)) as client:
        assert not client.answers()


def test_a_head_is_known_by_its_clock(server: HeadServer):
    with closing(HeadClient(server.address)) as client:
        assert client.answers()
    with closing(HeadClient(replace(server.address, run_id="another"))) as client:
        assert not client.answers()


def test_a_server_that_begins_no_encryption_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_link, "PROBE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(node_link, "REQUEST_TIMEOUT_S", 3600.0)
    found: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = replace(ADDRESS, port=silent.getsockname()[1], certificate="0" * 64)
        with closing(HeadClient(address)) as client:
            Thread(target=lambda: found.append(client.answers()), daemon=True).start()
            wait_until(lambda: bool(found), "the probe ends")
    assert found == [False]


def test_a_port_that_is_taken_is_said(head: Path, server: HeadServer):
    with pytest.raises(OSError):
        HeadServer(head, server.address).start()


def test_a_full_disk_at_the_head_costs_nothing(
    node: Path, head: Path, server: HeadServer, link: NodeLink, monkeypatch: pytest.MonkeyPatch
):
    wait_for_copy(node, head)
    right, tries = node_server.apply_piece, []

    def full(folder: Path, piece: FilePiece) -> None:
        tries.append(piece)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node_server, "apply_piece", full)
    append_lines(node / "samples.jsonl", b"{}\n")
    wait_until(lambda: len(tries) > 1, "it is tried again")
    monkeypatch.setattr(node_server, "apply_piece", right)
    wait_for_copy(node, head)
    copied = (head / NODES / "host-b" / "samples.jsonl").read_bytes()
    assert copied == (node / "samples.jsonl").read_bytes()


class Forwarder:
    """Passes bytes on to a port, until it is cut."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._is_cut = False
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        self._is_cut = True
        for each in self._open:
            each.close()
        self._open = []

    def mend(self) -> None:
        self._is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._to))
            self._open += [near, far]
            Thread(target=self._pass_on, args=(near, far), daemon=True).start()
            Thread(target=self._pass_on, args=(far, near), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(1 << 16):
                target.sendall(content)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
