"""Runs the server: finds a port, announces its address, and ends on request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from traceml.model.errors import UsageError
from traceml.web.addresses import DEFAULT_HOST, DEFAULT_PORT, is_loopback
from traceml.web.live_pages import Pages
from traceml.web.security import Policy, chosen_token, new_token
from traceml.web.server import application

PORTS_TRIED = 100
FINISHING_S = 2.0
"""How long the last update of the pages may take when the run is over."""
_CLOSING_S = 1.0
"""How long to wait for open connections at the end."""
_STANDARD_INPUT = 0


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served, and where."""

    logs: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    """The first port that is tried; 0 means any."""
    token: str | None = None
    """For other machines; `None` means that one is generated where it is needed."""
    until_input_ends: bool = False
    """Whether to end with standard input, because the process that started us is gone …"""
    stay_s: float = 0.0
    """… or only when nobody has looked at a page for so many seconds after that; at once where
    nobody has looked so far."""
    staying: Callable[[], None] = lambda: None
    """Called when the server stays."""
    is_read_only: bool = False
    """Whether tags and notes cannot be changed."""


def serve(wanted: Serving, announce: Callable[[str, str | None], None]) -> None:
    """Serves until Ctrl-C, SIGTERM or the end of the input.

    `announce` is called with the address and the token once the server listens. Raises UsageError
    where no port is free, or the token is invalid.
    """
    token = None if is_loopback(wanted.host) else _token(wanted.token)
    listener = listen(wanted.host, wanted.port)
    port = listener.getsockname()[1]
    pages = Pages(wanted.logs)
    write_token = None if wanted.is_read_only else new_token()
    app = application(wanted.logs, Policy(wanted.host, port, token, write_token), pages)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody stands before us whose word would count
        timeout_graceful_shutdown=_CLOSING_S,  # type: ignore[arg-type] # any number will do
        backlog=128,
    )
    server = _Server(config, pages, wanted, lambda: announce(_url(wanted.host, port), token))
    asyncio.run(server.run_here(listener))


def _token(chosen: str | None) -> str:
    return new_token() if chosen is None else chosen_token(chosen)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket at the first free port from this one on."""
    address = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    last = min(port + PORTS_TRIED, 65536) if port else 1
    for tried in range(port, last):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, tried))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"nothing can listen at {host}:{tried} ({error.strerror or error}); expected "
                    "an address of this machine, such as 127.0.0.1, and a port that you may use: "
                    "choose another --host or --port"
                ) from None
    raise UsageError(
        f"no port from {port} to {last - 1} is free at {host}; choose another --port, "
        "or --port 0 for any"
    )


def _url(host: str, port: int) -> str:
    """Returns the address to open; for all interfaces, that with the machine's name."""
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """uvicorn, with our own ways of ending."""

    def __init__(
        self,
        config: uvicorn.Config,
        pages: Pages,
        wanted: Serving,
        announce: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._pages = pages
        self._wanted = wanted
        self._announce = announce
        self._finishing: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run_here`."""
        yield

    async def run_here(self, listener: socket.socket) -> None:
        """Serves until asked to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end)
        if self._wanted.until_input_ends:
            _at_end_of_input(lambda: loop.call_soon_threadsafe(self._finish))
        await self.serve(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and announces it."""
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends; connections that do not read are cut without a log message."""
        logging.getLogger("uvicorn.error").disabled = True
        await super().shutdown(sockets)

    def _end(self) -> None:
        """Ends now: streams are closed at once. The second time, nothing is waited for."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._pages.close()

    def _finish(self) -> None:
        """Ends soon: viewers are sent the last state first."""
        self._finishing = asyncio.ensure_future(self._tell_the_last())

    async def _tell_the_last(self) -> None:
        if self._wanted.stay_s > 0 and self._pages.was_viewed:
            await self._pages.refresh(FINISHING_S)
            self._wanted.staying()
            await self._pages.wait_until_unviewed(self._wanted.stay_s)
        await self._pages.finish(FINISHING_S)
        self.should_exit = True


def _at_end_of_input(call: Callable[[], object]) -> None:
    """Calls a function when standard input ends; the input itself is ignored."""

    def read() -> None:
        with contextlib.suppress(OSError):  # no input at all: as if it had ended
            while os.read(_STANDARD_INPUT, 1 << 12):
                continue
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            call()

    threading.Thread(target=read, name="traceml-input", daemon=True).start()
