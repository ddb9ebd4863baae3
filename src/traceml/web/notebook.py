"""`traceml.show`: a run or a comparison in a notebook cell, live while the notebook trains.

The notebook's process may be the training's: everything beyond the standard library runs in another
process, and no thread stays here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from traceml.model.environment import RUN_FOLDER
from traceml.model.errors import TraceMLError, UsageError

HEIGHT = "min(85vh, 900px)"
_FRAME = f"width: 100%; height: {HEIGHT}; border: 1px solid #8884; resize: vertical"

_PROGRAM = """\
import sys
sys.path[:] = [sys.argv[1], *filter(None, sys.path)]
from traceml.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""Runs our package without loading anything from the notebook's folder."""

_Said = str | Path | Mapping[str, Any]


class NotebookView:
    """What `traceml.show` returns: HTML in a notebook, text anywhere else."""

    def __init__(self, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def show(
    run_or_comparison: _Said | Sequence[_Said] | None = None, *, logs_dir: str | Path = "logs"
) -> NotebookView:
    """Shows a run, or what changed between runs, in a notebook.

    A run is its name under `logs_dir`, its folder, or its summary as a file or a dict; a comparison
    is what `traceml compare` wrote, as a file or a dict, or a list of runs: the first is compared
    with each of the others.
    """
    if run_or_comparison is None:
        return _live()
    asked = [run_or_comparison]
    if isinstance(run_or_comparison, Sequence) and not isinstance(run_or_comparison, str):
        asked = list(run_or_comparison)
    request = {
        "logs_dir": str(Path(logs_dir).absolute()),
        "folder": str(Path.cwd()),
        "shown": [_in_words(each) for each in asked],
    }
    answer = _ask(request)
    frame = (
        f'<iframe title="TraceML" sandbox="allow-scripts" style="{_FRAME}" '
        f'srcdoc="{_attribute(answer["html"])}"></iframe>'
    )
    return NotebookView(answer["text"], frame)


def _attribute(document: str) -> str:
    """Returns a whole page as the value of an HTML attribute, independent of the encoding."""
    return escape(document).encode("ascii", "xmlcharrefreplace").decode()


def _in_words(said: object) -> str | dict[str, Any]:
    if isinstance(said, Mapping):
        return dict(said)
    if isinstance(said, (str, os.PathLike)):
        return os.fsdecode(said)
    raise UsageError(
        f"a {type(said).__name__} cannot be shown; pass a run's name or folder, a summary or a "
        "comparison as a file or a dict, or a list of runs to compare"
    )


def _ask(request: Mapping[str, Any]) -> dict[str, str]:
    """Has another process make it."""
    try:
        asked = json.dumps(request).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"a dict here is neither a summary nor a comparison: it holds what JSON cannot "
            f"({error}); pass one as TraceML made it"
        ) from None
    done = subprocess.run(_command("cell"), input=asked, capture_output=True, cwd="/")
    try:
        answer: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TraceMLError(
            f"the page could not be made: its process ended with status {done.returncode} "
            f"({last or 'without a word'}); `traceml report` may say more"
        ) from None
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", _PROGRAM, str(Path(__file__).parents[2]), *words]


# The live view


class _RunServer:
    """A server for the run of this process; it ends when our pipe to it closes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = ("ui", "--logs-dir", str(folder.parent), "--run", folder.name, "--port", "0")
        self._process = subprocess.Popen(
            _command(*words, "--until-run-ends", "--tell-address"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is not its business
            cwd="/",  # a module of the user's must not stand in for one of ours
        )
        assert self._process.stdout is not None
        last = ""
        with self._process.stdout as said:
            for line in said:  # to the address, past whatever a library has to warn of
                last = line.decode(errors="replace").strip()
                if last.startswith("http://"):
                    break
        self.address = last
        if not last.startswith("http://"):
            self._process.wait()
            why = last or f"it ended with status {self._process.returncode}"
            raise UsageError(f"no live view: {why.removeprefix('traceml ui: ')}")

    def is_alive(self) -> bool:
        return self._process.poll() is None


_server: _RunServer | None = None


def _live() -> NotebookView:
    global _server
    where = os.environ.get(RUN_FOLDER)
    if not where:
        raise UsageError(
            "there is no run in this process to show; call traceml.init() first for a live view, "
            "or pass a run: traceml.show('name')"
        )
    folder = Path(where)
    if _server is None or _server.folder != folder or not _server.is_alive():
        _server = _RunServer(folder)
    address = escape(_server.address)
    return NotebookView(
        f"the run {folder.name!r}, live at {_server.address}",
        f'<iframe title="TraceML, live" src="{address}" style="{_FRAME}"></iframe>\n'
        f'<div><a href="{address}" target="_blank" rel="noopener">{address}</a>: '
        "live, on the machine where this notebook runs</div>",
    )
