"""Web addresses that users configure, of webhooks and collectors: parses them, shows them without
their secret parts, and builds requests to them."""

from __future__ import annotations

import base64
import re
import urllib.request
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def has_scheme(text: str) -> bool:
    """Returns whether a text is an address of any kind: `ftp://…`, too."""
    return _SCHEME.match(text) is not None


def parse_web_address(text: str) -> SplitResult | None:
    """Returns the parts of an `http://` or `https://` address with a host and, if it names one, a
    valid port; `None` for any other text."""
    try:
        parts = urlsplit(text.strip())
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    is_host = has_host and not any(letter.isspace() for letter in parts.netloc)
    return parts if parts.scheme in ("http", "https") and is_host else None


def shown_address(parts: SplitResult) -> str:
    """Returns scheme, host and port of an address: the parts that hold no secret."""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET, or elsewhere: it is an error."""

    def redirect_request(self, *arguments: object) -> None:
        """Refuses every redirect."""
        return


def post_request(address: str, body: bytes) -> urllib.request.Request:
    """Returns a POST of JSON; a name and a password in the address become a header."""
    parts = urlsplit(address)
    headers = {"Content-Type": "application/json", "User-Agent": "traceml"}
    if "@" in parts.netloc:
        word = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(word.encode()).decode()}"
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return urllib.request.Request(urlunsplit(parts), body, headers, method="POST")


def opener() -> urllib.request.OpenerDirector:
    """Returns an opener that sends requests and follows no redirect."""
    return urllib.request.build_opener(_NoRedirect)
