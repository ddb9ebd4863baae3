"""Makes what a notebook cell shows, in a process of its own; for `traceml.show`, not for people."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from traceml.model.errors import TraceMLError, UsageError


def main(words: list[str]) -> int:
    """Reads the request, and answers with HTML and text."""
    if words or sys.stdin is None or sys.stdin.isatty():
        raise UsageError("this is the notebook's own command; people say `traceml report`")
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="traceml-") as place:
        try:
            answer = _answer(request, Path(place))
        except (TraceMLError, OSError) as error:
            answer = {"error": _without(place, str(error), "a dict that was given")}
    json.dump(answer, sys.stdout)
    return 0


def _answer(request: dict[str, Any], place: Path) -> dict[str, str]:
    from traceml.web.report import report
    from traceml.web.report_pages import reported

    os.chdir(request["folder"])  # names of files are meant from there
    words = [
        said if isinstance(said, str) else _as_file(said, place / str(number))
        for number, said in enumerate(request["shown"], start=1)
    ]
    found = reported(words, Path(request["logs_dir"]))
    html, text = (_without(str(place), each) for each in (report(found.pages), found.text))
    return {"html": html, "text": text}


def _without(place: str, text: str, called: str = r"\1") -> str:
    """Returns the text with the run's name instead of our temporary file's."""
    return re.sub(rf"{re.escape(place)}/\d+/(.{{1,200}}?)\.json", called, text)


def _as_file(document: dict[str, Any], folder: Path) -> str:
    """Writes a document to a file that is named after its run."""
    from traceml.store.folder import is_run_name

    meta = document.get("meta")
    name = meta.get("run_name") if isinstance(meta, dict) else None
    folder.mkdir()
    path = folder / f"{name if isinstance(name, str) and is_run_name(name) else 'run'}.json"
    path.write_text(json.dumps(document))
    return str(path)
