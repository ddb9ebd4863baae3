"""`traceml ui`: the dashboard and all runs under a logs folder, in a browser."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from traceml.cli.parser import DEFAULT_LOGS_DIR, CommandParser, add_logs_dir, whole_number
from traceml.launch.display_mode import STAYS
from traceml.model.environment import TOKEN
from traceml.model.errors import UsageError
from traceml.model.printable import shell_word
from traceml.web.addresses import DEFAULT_HOST, DEFAULT_PORT, is_loopback

_NEEDED = ("starlette", "uvicorn")
GRAFANA_DASHBOARD = Path(__file__).parents[1] / "web" / "grafana_dashboard.json"


def main(words: list[str]) -> int:
    """Serves until Ctrl-C."""
    options = _parser().parse_args(words)
    if options.grafana:
        print(GRAFANA_DASHBOARD.read_text(encoding="utf-8"), end="")
        return 0
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the dashboard needs {' and '.join(missing)}, which this Python has not: "
            "pip install 'traceml-insight[web]'"
        )
    logs = _logs_folder(options.logs_dir)
    from traceml.web.serve import Serving, serve

    wanted = Serving(
        logs.absolute(),
        options.host,
        options.port,
        os.environ.get(TOKEN) or None,
        options.until_run_ends,
        options.stay,
        _say_that_it_stays,
        options.read_only,
    )
    serve(wanted, lambda url, token: _announce(options, url, token))
    return 0


def _logs_folder(named: str | None) -> Path:
    """Returns the folder of the runs; one that the user named has to be there.

    The default may come later: with the first run.
    """
    logs = Path(named or DEFAULT_LOGS_DIR)
    if logs.is_dir():
        return logs
    if logs.exists():
        raise UsageError(f"{logs} is a file; expected the folder of the runs; pass it: --logs-dir")
    if named:
        raise UsageError(
            f"there is no folder {logs} (looked from {Path.cwd()}); expected the folder of the "
            "runs; check the spelling, or start a run there first: "
            f"traceml run --logs-dir {shell_word(logs)} train.py"
        )
    return logs


def _parser() -> CommandParser:
    parser = CommandParser(
        "ui",
        description="Serve the dashboard: all runs under a logs folder, live and finished.",
        epilog=f"Another --host than this machine's own needs a token: it is made and printed, "
        f"or taken from {TOKEN}. Ctrl-C ends the server.",
    )
    add = parser.add_argument
    add_logs_dir(parser, default=None)
    add(
        "--host",
        metavar="H",
        type=_host,
        default=DEFAULT_HOST,
        help=f"the address to listen at (default: {DEFAULT_HOST})",
    )
    add(
        "--port",
        metavar="P",
        type=whole_number(0, 65535),
        default=DEFAULT_PORT,
        help=f"the first port to try, 0 for any (default: {DEFAULT_PORT})",
    )
    add("--read-only", action="store_true", help="nobody can change tags and notes in a page")
    add(
        "--grafana",
        action="store_true",
        help="print a Grafana dashboard of the metrics at /metrics, and end",
    )
    # For `traceml run --mode=dashboard` and for notebooks.
    add("--run", metavar="NAME", help=argparse.SUPPRESS)
    add("--until-run-ends", action="store_true", help=argparse.SUPPRESS)
    add("--stay", metavar="SECONDS", type=float, default=0.0, help=argparse.SUPPRESS)
    add("--tell-address", action="store_true", help=argparse.SUPPRESS)
    return parser


def _host(text: str) -> str:
    if not text.strip() or any(character in text for character in "/ \t?#@"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as 127.0.0.1 or 0.0.0.0")
    return text


def _announce(options: argparse.Namespace, url: str, token: str | None) -> None:
    """Prints the address; on stdout where another process asked for it."""
    page = f"{url}runs/{quote(options.run, safe='')}" if options.run else url
    link = f"{page}?token={token}" if token else page
    if options.tell_address:
        print(link, flush=True)
        _say_no_more()
        return
    said = [f"traceml: live at {link}" if options.run else f"traceml: the runs are at {link}"]
    port = url.rstrip("/").rpartition(":")[2]
    if options.port and port != str(options.port):
        said[0] += f" (port {options.port} is taken)"
    if not is_loopback(options.host):
        said.append(
            f"traceml: anyone who has this link can read every run here{_and_tag(options)}, and "
            "the connection is not encrypted; if you can, leave --host out and use a tunnel: "
            f"ssh -L {port}:127.0.0.1:{port} THIS-MACHINE"
        )
    if not options.logs_dir and not Path(DEFAULT_LOGS_DIR).is_dir():
        said.append(
            f"traceml: there is no folder {DEFAULT_LOGS_DIR} here yet: its runs appear when there "
            "are some; where they are elsewhere, pass --logs-dir DIR"
        )
    if not options.until_run_ends:
        said.append("traceml: Ctrl-C ends the server; the runs go on")
    print("\n".join(said), file=sys.stderr, flush=True)


def _and_tag(options: argparse.Namespace) -> str:
    return "" if options.read_only else " and change its tags and note (not with --read-only)"


def _say_that_it_stays() -> None:
    """Tells the launcher, which then leaves us alone, and lets go of its terminal and pipes."""
    with suppress(OSError):  # it was killed: nobody reads
        print(STAYS, flush=True)
    _say_no_more()


def _say_no_more() -> None:
    """Closes stdout: the process that asked for the address reads no further."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
