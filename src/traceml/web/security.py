"""Access control: the right host name, no foreign page, no path outside the logs folder."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from traceml.model.environment import TOKEN
from traceml.model.errors import RunNotFound, UsageError
from traceml.store.folder import MANIFEST, is_right_in, is_run_name
from traceml.store.regular_files import stat_regular
from traceml.summaries.read import FILE_NAME
from traceml.web.addresses import is_loopback

READS = ("GET", "HEAD")
WRITABLE = re.compile(r"/api/runs/[^/]+/tags")
"""What can be written to, with POST."""
WRITE_HEADER = "x-traceml-token"
READ_ONLY = "this server was started with --read-only: tags and notes cannot be changed here"
_LOCAL = ("127.0.0.1", "localhost")
_SAME = ("same-origin", "none")
"""`Sec-Fetch-Site` values of requests from our own pages, or typed by a person."""
_FRAMED_BY = "http://127.0.0.1:* http://localhost:*"
"""Notebooks on this machine."""

CONTENT_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        f"frame-ancestors {_FRAMED_BY}",
    ]
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""On every response."""


def new_token() -> str:
    """Returns a random token for a link."""
    return secrets.token_urlsafe(24)


def chosen_token(word: str) -> str:
    """Returns a token that the user chose; raises UsageError where a link or cookie cannot hold
    it."""
    if re.fullmatch(r"[\w.~-]{1,200}", word, re.ASCII) is None:
        raise UsageError(
            f"the token in {TOKEN} fits no link: expected up to 200 letters, digits and any of "
            "-._~; choose another, or leave it out and one is made"
        )
    return word


def run_folder(logs: Path, name: str) -> Path:
    """Returns the folder of a run by its name; raises RunNotFound for a name that leads
    elsewhere."""
    if not is_run_name(name):
        raise RunNotFound(
            f"{name[:80]!r} cannot be a run's name: a run is a folder right under {logs}; "
            "choose one from the list of runs"
        )
    folder = logs / name
    if not (is_right_in(logs, name) and _holds_a_run(folder)):
        raise RunNotFound(
            f"there is no run {name!r} under {logs}; it may have been deleted: "
            "choose one from the list of runs"
        )
    return folder


def _holds_a_run(folder: Path) -> bool:
    return any(stat_regular(folder / file) is not None for file in (MANIFEST, FILE_NAME))


@dataclass(frozen=True, slots=True)
class Policy:
    """What a request must have to be answered."""

    host: str
    """The address that the server is bound to."""
    port: int
    token: str | None = None
    """Required where other machines can reach the server."""
    write_token: str | None = None
    """Required for changes, which our own pages are told; `None`: nothing can be changed here."""

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Returns why a request is refused, as a status and a sentence; `None` where it is
        allowed."""
        is_write = scope["method"] == "POST" and WRITABLE.fullmatch(scope["path"]) is not None
        if scope["method"] not in READS and not is_write:
            return 405, f"{scope['method']} is not understood here: pages are only read, with GET"
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 403, self._wrong_host(hosts)
        sent = {name: value.decode("latin-1") for name, value in headers}
        origin = sent.get(b"origin")
        if origin is not None and origin != f"http://{hosts[0]}":
            return 403, f"a page of {origin[:80]!r} asked; only pages of this server may"
        is_visit = sent.get(b"sec-fetch-mode") == "navigate"
        if not is_visit and sent.get(b"sec-fetch-site", "none") not in _SAME:
            return 403, "another site's page asked; only pages of this server may"
        if self.token is not None and not self._has_token(scope, sent):
            return 401, (
                "a token is needed from other machines: open the address that `traceml ui` "
                "printed, with its ?token=…"
            )
        return self._write_refusal(sent) if is_write else None

    def _write_refusal(self, sent: Mapping[bytes, str]) -> tuple[int, str] | None:
        """Returns why a change is refused. A foreign page can send a form without asking, but
        neither this header nor this type of content, and it cannot read the token."""
        if self.write_token is None:
            return 403, READ_ONLY
        if sent.get(b"sec-fetch-mode") == "navigate":
            return 403, "a page is not changed by a form or a link; only pages of this server may"
        if sent.get(b"content-type", "").partition(";")[0].strip() != "application/json":
            return 415, "changes are sent as application/json"
        found = sent.get(WRITE_HEADER.encode(), "")
        if not secrets.compare_digest(found.encode(), self.write_token.encode()):
            return 403, (
                f"a change needs the token that /api/writing tells, as the header {WRITE_HEADER}; "
                "the server may have been started anew: reload the page"
            )
        return None

    def cookie(self, scope: Scope) -> str | None:
        """Returns the cookie that keeps the token of an opened link; `None` without a token."""
        if self.token is None or not self._is_token(_token_in(scope)):
            return None
        return f"{self._cookie_name}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    @property
    def _cookie_name(self) -> str:
        return f"traceml-{self.port}"  # browsers do not tell cookies of two ports apart

    def _has_token(self, scope: Scope, sent: Mapping[bytes, str]) -> bool:
        bearer = sent.get(b"authorization", "").removeprefix("Bearer ")
        return any(
            self._is_token(each)
            for each in (_token_in(scope), self._kept(sent.get(b"cookie", "")), bearer)
        )

    def _kept(self, header: str) -> str:
        """Returns our cookie's value; cookies of other servers on this host may be malformed."""
        for cookie in header.split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._cookie_name:
                return value
        return ""

    def _is_token(self, found: str) -> bool:
        assert self.token is not None
        return secrets.compare_digest(found.encode(), self.token.encode())

    def _is_ours(self, host: str) -> bool:
        """Returns whether the host is our port under a name that foreign DNS cannot point here."""
        name, port = _split(host)
        if port != self.port:
            return False
        if name in _LOCAL or name == self.host.lower():
            return True
        if is_loopback(self.host):
            return False
        return _is_address(name) or name in _own_names()

    def _wrong_host(self, hosts: list[str]) -> str:
        found = hosts[0][:80] if hosts else "none"
        expected = f"{self.host}:{self.port}" if not is_loopback(self.host) else ""
        names = [f"{name}:{self.port}" for name in _LOCAL] + [expected] * bool(expected)
        return (
            f"this server is not called {found!r}: expected {' or '.join(names)}; "
            "open the address that it printed (through a tunnel: with the same port on both sides)"
        )


def _split(host: str) -> tuple[str, int | None]:
    """Returns the name and port of a Host header; port 80 by default."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or host.endswith("]"):
        return host.lower().strip("[]"), 80
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    return name.strip("[]"), int(port) if is_number else None


def _is_address(name: str) -> bool:
    """Returns whether the name is an IP address, for which no DNS is asked."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@cache
def _own_names() -> set[str]:
    """Returns this machine's names; looked up once, because DNS may be slow."""
    return {socket.gethostname().lower(), socket.getfqdn().lower()}


def _token_in(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get("token", [""])[0]


class Guard:
    """Middleware that refuses requests, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            return
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message.get("headers", ())}
                added = [pair for pair in headers if pair[0] not in own]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        refused = self._policy.refusal(scope)
        if refused is not None:
            await _refuse(send_guarded, *refused)
            return
        cookie = self._policy.cookie(scope)
        if cookie is not None:
            headers.append((b"set-cookie", cookie.encode()))
        await self._app(scope, receive, send_guarded)


async def _refuse(send: Send, status: int, why: str) -> None:
    body = msgspec.json.encode({"error": why})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *([(b"allow", b"GET, HEAD")] if status == 405 else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
