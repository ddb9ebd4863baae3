"""A real HTTP server on loopback that keeps what it is sent: a webhook, or a collector."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from processes import wait_until


@dataclass
class ReceivedRequest:
    """One POST."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """What arrived, and how the next requests are answered."""

    url: str = ""
    received: list[ReceivedRequest] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """Of the next answers; 200 afterwards."""
    answers: threading.Event = field(default_factory=threading.Event)
    """Where it is not set, nobody is answered."""

    def wait_for(self, count: int) -> list[ReceivedRequest]:
        wait_until(lambda: len(self.received) >= count, f"{count} requests have arrived")
        return self.received


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A server for the time of a test."""
    receiver = Receiver()
    receiver.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(ReceivedRequest(self.path, headers, body))
            receiver.answers.wait()
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> str:
    """The address of a port at which nobody listens any more."""
    with receiving() as gone:
        return gone.url
