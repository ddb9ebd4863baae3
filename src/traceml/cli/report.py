"""`traceml report`: a run, or a comparison of runs, as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path

from traceml.api.fetch_runs import FetchedRuns
from traceml.cli.parser import CommandParser, add_logs_dir, some_text
from traceml.model.errors import UsageError
from traceml.model.quantities import memory
from traceml.web.report import report, write_report
from traceml.web.report_pages import reported

_STANDARD_OUTPUT = "-"


def main(words: list[str]) -> int:
    """Writes the report and prints where it is."""
    parser = CommandParser(
        "report",
        description="Write one self-contained HTML file: a run, or the first of up to twenty runs "
        "compared with each of the others.",
        epilog="A run is a run folder, a final_summary.json, or the name of a run under the logs "
        "folder; the JSON file of a comparison will do as well. Without -o the file is "
        "report.html in the run's folder, compare/<a>_vs_<b>.html, or "
        "compare/<a>_and_<n>_more-<hash>.html.",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", type=some_text, help="one run, or the runs to compare")
    add("-o", "--output", metavar="FILE.html", help="where to write it; - for standard output")
    add_logs_dir(parser)
    options = parser.parse_args(words)
    with FetchedRuns() as fetched:
        found = reported(fetched.local_words(options.runs), Path(options.logs_dir))
    if options.output == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(report(found.pages).encode())
        return 0
    path = _file(options.output) if options.output is not None else found.path
    if options.output is None and not path.parent.exists() and len(options.runs) == 1:
        path = Path(f"{path.parent.name}.html")  # the folder of a fetched run is gone
    write_report(found.pages, path)
    print(f"Written to {path} ({memory(path.stat().st_size)})")
    return 0


def _file(word: str) -> Path:
    path = Path(word)
    if not path.name or path.name == ".." or path.is_dir():
        raise UsageError(f"-o {word} is a folder or names no file; give a file such as report.html")
    return path
