"""The head's side of a run over several machines: takes the records of other nodes' agents.

A small HTTP server in a thread of the head's agent, on one address and only while ranks span
machines. Every request carries the run's token; what has none, or is too large, is refused before
its body is read, and counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec

from traceml.model.node import TRANSPORT_VERSION, HeadAddress, Header
from traceml.store import folder as folders
from traceml.store.node_folders import (
    NODES,
    free_name,
    node_folders,
    node_name,
    read_node,
    read_refused,
    write_refused,
)
from traceml.store.node_mirror import (
    MAX_PIECES_BYTES,
    CopyListing,
    FilePiece,
    ForgedPiece,
    MissingBytes,
    apply_piece,
)

MAX_BODY_BYTES = 2 * MAX_PIECES_BYTES
"""Of a request, compressed or not: random bytes grow a little when they are compressed."""
MAX_HEADER_BYTES = 8 << 10
MAX_CONNECTIONS = 2_048
BACKLOG = 1_024
"""Nodes that may ask for a connection at one moment: all come back at once to a restarted head."""
REQUEST_TIMEOUT_S = 30.0
"""How long the parts of one request may take to arrive."""
IDLE_TIMEOUT_S = 120.0
"""How long a connection stays open without a request."""
_OVERHEAD_BYTES = 64 << 10
"""Names and places of the pieces of one request."""

_Answer = dict[str, Any] | Awaitable[dict[str, Any]]

_pieces = msgspec.msgpack.Decoder(list[FilePiece])


class RefusedRequest(Exception):
    """A request that is answered with an error; `why` is counted."""

    def __init__(self, status: HTTPStatus, why: str | None, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True)
class _Request:
    """The first lines of a request."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def body_bytes(self) -> int:
        length = self.headers.get(Header.LENGTH, "0")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 16 else -1


class HeadServer:
    """Takes the records of a run's other nodes into `nodes/` of the head's folder."""

    def __init__(self, folder: Path, address: HeadAddress, certificate: Path | None = None) -> None:
        """`address` says where to listen; its port may be 0, for any that is free."""
        self._folder = folder
        self.address = address
        self._certificate = certificate
        self._names: dict[str, str] = {}
        """By the nodes' own random numbers."""
        self._heard_s: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        """How many requests of each node wait for the listing of its copy."""
        self._refused: Counter[str] = Counter(read_refused(folder))
        self._ready = Event()
        self._problem: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = Thread(target=self._run, name="head", daemon=True)
        self._connections = 0
        self._listing = CopyListing()
        self._lister = ThreadPoolExecutor(1, "listing")
        """Reads the copies of nodes that begin anew: gigabytes, during which the others go on."""

    def start(self) -> None:
        """Listens; raises OSError where that is not possible, also for a bad certificate."""
        (self._folder / NODES).mkdir(folders.PRIVATE, exist_ok=True)
        self._thread.start()
        self._ready.wait(REQUEST_TIMEOUT_S)
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Closes the port and all connections."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(5.0)

    @property
    def node_count(self) -> int:
        """How many other nodes have been heard of."""
        return len(set(self._heard_s) | {path.name for path in node_folders(self._folder)})

    def unfinished_nodes(self) -> dict[str, float | None]:
        """Returns the nodes that joined and have not sent everything, with the seconds since each
        was last heard of.

        It is 0 for a node that waits for our answer, and `None` for one that shares the folder and
        cannot reach our port.
        """
        now_s, found = time.monotonic(), dict(self._heard_s)
        found |= {name: now_s for name, requests in [*self._waiting.items()] if requests}
        names = set(found) | {path.name for path in node_folders(self._folder)}
        waits: dict[str, float | None] = {}
        for name in names:
            state = read_node(self._folder / NODES / name)
            if state is None or not state.is_finished:
                waits[name] = now_s - found[name] if name in found else None
        return waits

    # The thread

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            context = self._tls()
            if self._certificate is not None:
                shown = fingerprint(self._certificate)
                self.address = replace(self.address, certificate=shown)
            server = await asyncio.start_server(
                self._connected,
                self.address.host,
                self.address.port,
                limit=MAX_HEADER_BYTES,
                backlog=BACKLOG,
                ssl=context,
                reuse_address=True,
            )
        except OSError as error:  # also of a certificate that cannot be read
            self._problem = error
            self._ready.set()
            return
        port = server.sockets[0].getsockname()[1]
        self.address = replace(self.address, port=port)
        self._ready.set()
        await self._stopping.wait()
        server.close()  # connections end with the loop: nobody waits for them
        self._lister.shutdown(wait=False, cancel_futures=True)

    def _tls(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        return context

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            while self._is_open() and await self._answer_one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ssl.SSLError):
            pass  # the other side is gone, or takes too long: it connects again
        except asyncio.CancelledError:
            pass  # we end, and so does every connection
        finally:
            self._connections -= 1
            writer.close()

    def _is_open(self) -> bool:
        is_ending = self._stopping is None or self._stopping.is_set()
        return not is_ending and self._connections <= MAX_CONNECTIONS

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers the next request; returns whether another one may follow."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_TIMEOUT_S)
        except asyncio.LimitOverrunError:
            await self._reply(writer, HTTPStatus.BAD_REQUEST, {}, why="request")
            return False
        try:
            request = _parse(head)
            act = self._checked(request, reader)
            body = await asyncio.wait_for(reader.readexactly(request.body_bytes), REQUEST_TIMEOUT_S)
            answer = act(body)
            if not isinstance(answer, dict):
                answer = await answer
        except RefusedRequest as error:
            await self._reply(writer, error.status, {"error": str(error)}, error.why)
            return False  # a body that was not read would be taken for the next request
        except MissingBytes as missing:
            content = {"name": missing.name, "size": missing.size}
            await self._reply(writer, HTTPStatus.CONFLICT, content)
            return True
        except OSError as error:  # the head's disk is full, say: the node keeps what it has
            await self._reply(writer, HTTPStatus.INSUFFICIENT_STORAGE, {"error": str(error)})
            return True
        await self._reply(writer, HTTPStatus.OK, answer)
        return True

    async def _reply(
        self,
        writer: asyncio.StreamWriter,
        status: HTTPStatus,
        content: dict[str, Any],
        why: str | None = None,
    ) -> None:
        if why is not None:
            self._refused[why] += 1
            write_refused(self._folder, self._refused)
        body = json.dumps(content).encode()
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)

    # Requests

    def _checked(
        self, request: _Request, reader: asyncio.StreamReader
    ) -> Callable[[bytes], _Answer]:
        """Returns what answers a request, which may be read; raises RefusedRequest."""
        given = request.headers.get(Header.TOKEN, "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.address.token}".encode()):
            raise RefusedRequest(HTTPStatus.UNAUTHORIZED, "token", "this is not the run's token")
        if request.headers.get(Header.RUN) != self.address.run_id:
            raise RefusedRequest(HTTPStatus.FORBIDDEN, "run", "this is the head of another run")
        version = request.headers.get(Header.TRANSPORT, "")
        if version != str(TRANSPORT_VERSION):
            raise RefusedRequest(
                HTTPStatus.UPGRADE_REQUIRED,
                "version",
                f"the head speaks version {TRANSPORT_VERSION} of the transport, and this node "
                f"version {version[:20]!r}: install the same TraceML on all nodes",
            )
        if not 0 <= request.body_bytes <= MAX_BODY_BYTES:
            raise RefusedRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "size",
                f"a request may have {MAX_BODY_BYTES} bytes",
            )
        place, _, name = request.path.partition("?node=")
        if (request.method, place) == ("GET", "/v1/clock"):
            return self._tell_time
        if (request.method, place) == ("POST", "/v1/hello"):
            return lambda body: self._greet(body, reader)
        if (request.method, place) == ("POST", "/v1/pieces") and name in self._heard_s:
            return lambda body: self._take(name, body)
        raise RefusedRequest(HTTPStatus.NOT_FOUND, "request", "the head has no such page")

    def _tell_time(self, _: bytes) -> dict[str, Any]:
        return {"unix_ns": time.time_ns()}

    async def _greet(self, body: bytes, reader: asyncio.StreamReader) -> dict[str, Any]:
        """A node's agent begins, or begins anew: tell it its name, and what is here of it."""
        try:
            said = json.loads(body)
            name = node_name(str(said["name"]))
            node_id, is_shared = str(said["node_id"])[:64], said.get("is_shared", False)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RefusedRequest(
                HTTPStatus.BAD_REQUEST, "request", "no greeting of an agent's"
            ) from None
        name = self._name_for(node_id, name)
        self._names[node_id] = name
        self._heard_s[name] = time.monotonic()
        files = {} if is_shared else await self._list_copy(name, reader)
        machine, folder = self.address.machine, self.address.folder
        return {"name": name, "files": files, "machine": machine, "folder": folder}

    async def _list_copy(
        self, name: str, reader: asyncio.StreamReader
    ) -> dict[str, tuple[int, int]]:
        """Returns what is here of a node; nothing is read for one that asks no longer."""

        def is_wanted() -> bool:
            return self._is_open() and not reader.at_eof()

        copy, loop = self._folder / NODES / name, asyncio.get_running_loop()
        self._waiting[name] += 1
        try:
            return await loop.run_in_executor(self._lister, self._listing.files, copy, is_wanted)
        finally:
            self._waiting[name] -= 1
            self._heard_s[name] = time.monotonic()

    def _name_for(self, node_id: str, name: str) -> str:
        """Returns a node's name here: the one it has, or that of its machine, made unique."""
        if node_id in self._names:
            return self._names[node_id]
        state = read_node(self._folder / NODES / name)
        if state is not None and state.node_id == node_id:
            return name
        return free_name(self._folder / NODES, name, self._heard_s)

    def _take(self, name: str, body: bytes) -> dict[str, Any]:
        self._heard_s[name] = time.monotonic()
        copy = self._folder / NODES / name
        copy.mkdir(folders.PRIVATE, exist_ok=True)
        for piece in _unpack(body):
            try:
                apply_piece(copy, piece)
            except ForgedPiece as error:
                raise RefusedRequest(HTTPStatus.BAD_REQUEST, "path", str(error)) from None
        return {}


def _parse(head: bytes) -> _Request:
    lines = head.decode("latin-1").split("\r\n")
    method, _, rest = lines[0].partition(" ")
    path, _, version = rest.rpartition(" ")
    if not version.startswith("HTTP/1."):
        raise RefusedRequest(HTTPStatus.BAD_REQUEST, "request", "this is no HTTP")
    headers = (line.partition(":") for line in lines[1:] if line)
    return _Request(method, path, {name.strip().lower(): text.strip() for name, _, text in headers})


def _unpack(body: bytes) -> list[FilePiece]:
    """Returns the pieces of a request; raises RefusedRequest, also for a few bytes that would
    become gigabytes."""
    most = MAX_PIECES_BYTES + _OVERHEAD_BYTES
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(body, most)
        if unpacker.unconsumed_tail:
            raise RefusedRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "size", f"pieces may have {most} bytes"
            )
        return _pieces.decode(content)
    except (zlib.error, msgspec.MsgspecError, RecursionError):  # the last for lists in lists
        raise RefusedRequest(HTTPStatus.BAD_REQUEST, "request", "no pieces of files") from None


def fingerprint(certificate: Path) -> str:
    """Returns the SHA-256 of the first certificate in a PEM file, in hexadecimal."""
    text = certificate.read_text()
    end = "-----END CERTIFICATE-----"
    begin = text.find("-----BEGIN CERTIFICATE-----")
    if begin < 0 or end not in text:
        raise OSError(
            f"{certificate} holds no certificate; expected a PEM file with it and its key"
        )
    encoded = text[begin : text.index(end, begin) + len(end)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(encoded)).hexdigest()
