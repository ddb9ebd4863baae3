"""The viewer's files and the page around them, for the server and for the one-file report."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from html import escape
from pathlib import Path

from traceml.model.errors import TraceMLError

STATIC = Path(__file__).with_name("static")
SCRIPT, STYLE = "viewer.js", "viewer.css"
_TYPES = {SCRIPT: "text/javascript; charset=utf-8", STYLE: "text/css; charset=utf-8"}

NOT_BUILT = (
    "the viewer is not built in this checkout: its files are missing "
    "(web/static/viewer.js and viewer.css); `pip install -e .` in the checkout builds them, "
    "`pip install traceml-insight` brings them along"
)


class ViewerMissing(TraceMLError):
    """The viewer's files were not built."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    content: bytes
    zipped: bytes
    kind: str
    version: str
    """A hash of its content: a URL with it can be cached for ever."""

    @property
    def tag(self) -> str:
        """The ETag."""
        return f'"{self.version}"'


def load() -> dict[str, Asset]:
    """Returns the viewer's files by name; raises ViewerMissing where it was not built."""
    try:
        return {name: _asset((STATIC / name).read_bytes(), kind) for name, kind in _TYPES.items()}
    except FileNotFoundError:
        raise ViewerMissing(NOT_BUILT) from None


def _asset(content: bytes, kind: str) -> Asset:
    version = hashlib.sha256(content).hexdigest()[:16]
    return Asset(content, gzip.compress(content, 9, mtime=0), kind, version)


def shell(assets: dict[str, Asset]) -> str:
    """Returns the one HTML page of the server; the viewer decides by the URL what to show."""
    script, style = (f"/static/{name}?v={assets[name].version}" for name in (SCRIPT, STYLE))
    return f"""\
{_BEGIN}<title>TraceML</title>
<link rel="icon" href="{_ICON}">
<link rel="stylesheet" href="{style}">
<script src="{script}" defer></script>
</head>
<body>
<div id="app"></div>
<noscript>TraceML's pages are drawn by a script: allow it for this address.</noscript>
</body>
</html>
"""


def sorry() -> str:
    """Returns the page that says that the viewer was not built."""
    return f"""\
{_BEGIN}<title>TraceML</title>
</head>
<body>
<h1>No viewer</h1>
<p>The server runs, but {escape(NOT_BUILT)}.</p>
<p>Meanwhile <a href="/api/runs">/api/runs</a> answers as JSON, and
<code>traceml view RUN</code> prints a run.</p>
</body>
</html>
"""


def document(
    title: str,
    data: str,
    assets: dict[str, Asset],
    navigation: str = "",
    choosing: str = "",
    choices: str = "",
) -> str:
    """Returns a whole report: the viewer and its data in one page that loads nothing else.

    `data` is markup: script elements that hold pages. Where there are several, `navigation` offers
    them, `choosing` is the script that hands the viewer one of them, and `choices` its style.
    """
    scripts = [choosing, inline(assets[SCRIPT].content.decode(), "script")]
    styles = [inline(assets[STYLE].content.decode(), "style"), choices]
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""\
{_BEGIN}<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<link rel="icon" href="{_ICON}">
{_elements("style", styles)}
</head>
<body>
{navigation}
<div id="app"></div>
<noscript>This report is drawn by a script inside it: allow it for this file.</noscript>
{data}
{_elements("script", scripts)}
</body>
</html>
"""


def _elements(name: str, contents: list[str]) -> str:
    return "\n".join(f"<{name}>{content}</{name}>" for content in contents if content)


def _hashes(contents: list[str]) -> str:
    return " ".join(_hash(content) for content in contents if content)


def inline(content: str, element: str) -> str:
    """Returns code that can stand inside an HTML element without ending it.

    The added backslash changes nothing inside strings and regular expressions. Line ends are
    normalised as a browser does before it computes the hash of the code.
    """
    content = content.replace("\r\n", "\n").replace("\r", "\n")
    for name in (element, element.upper()):
        content = content.replace(f"</{name}", f"<\\/{name}")
    if "<!--" in content and f"<{element}" in content.lower():
        raise ViewerMissing(
            f"the viewer's {element} holds words that HTML takes for its own (<!-- and <{element}):"
            " build it again, without them"
        )
    return content


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


_ICON = (
    "data:image/svg+xml,"
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='3' fill='%230072b2'/%3E"
    "%3Cpath d='M3 11l3-4 3 2 4-6' stroke='white' stroke-width='2' fill='none'/%3E%3C/svg%3E"
)
_BEGIN = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""
