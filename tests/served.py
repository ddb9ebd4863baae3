"""A real server and its readers: `traceml ui` in a process, asked over plain HTTP."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from processes import PATIENCE_S, TRACEML, Running, started, wait_until
from traceml.web.delta import apply

Headers = dict[str, str]


@dataclass
class Answer:
    """What the server said."""

    status: int
    headers: Headers
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Why it refused."""
        error: str = self.json["error"]
        return error


@dataclass
class Served:
    """A server that listens."""

    running: Running
    address: str

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask once; `Host` is the right one unless it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            for name, value in {"Host": f"127.0.0.1:{self.port}", **named}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: bytes, **headers: str) -> Answer:
        """Send something; the headers are those of a page of the server unless they are given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        usual = {
            "Content-Type": "application/json",
            "Origin": f"http://127.0.0.1:{self.port}",
            "Sec-Fetch-Site": "same-origin",
        }
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request("POST", path, body, {**usual, **named})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def raw(self, request: bytes) -> bytes:
        """Send bytes as they are; everything that comes back before the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as connection:
            connection.sendall(request)
            received = b""
            while piece := connection.recv(1 << 16):
                received += piece
        return received

    @contextmanager
    def viewer(self, page: str) -> Iterator[Viewer]:
        """Look at a page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", f"/api/events?page={page}")
        try:
            yield Viewer(connection.getresponse())
        finally:
            connection.close()


class Viewer:
    """What a browser does with the stream of a page."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        assert answer.status == 200, answer.read()
        self._answer = answer
        self.page: Any = None

    def next(self) -> tuple[str, Any]:
        """The next event, applied to the page; `end` where the stream ends."""
        name, deadline = "", time.monotonic() + PATIENCE_S
        while line := self._answer.readline():
            assert time.monotonic() < deadline, "nothing but heart-beats came"
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name != "beat":
                return name, self._take(name, json.loads(value))
        return "end", None

    def _take(self, name: str, data: Any) -> Any:
        if name == "page":
            self.page = data
        elif name == "delta":
            self.page = apply(self.page, data)
        return data


@contextmanager
def serving(logs: Path, *options: str, cwd: Path | None = None, **more: Any) -> Iterator[Served]:
    """Start a server for a logs folder, at any free port unless one is given.

    A folder that is not there yet can only be the default one, `logs`.
    """
    words = [TRACEML, "ui", *(["--logs-dir", logs] if logs.exists() else []), *options]
    if "--port" not in options:
        words += ["--port", "0"]
    with started(words, cwd or logs.parent, **more) as running:
        yield Served(
            running, wait_until(lambda: address_in(running), "the server says where it is")
        )


def address_in(running: Running) -> str | None:
    """Where a server says that it is, once it does."""
    said = running.stderr_path.read_text()
    found = re.search(r"http://\S+", said)
    assert found or running.process.poll() is None, said
    return found[0] if found and "\n" in said else None
