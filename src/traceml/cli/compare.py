"""`traceml compare`: what changed between runs."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from traceml.api.compare import compare_runs, compare_sides, refuse_folder, write_code_diff
from traceml.compare.many_record import many_to_json
from traceml.compare.record import Comparison, to_json
from traceml.compare.terms import ENDPOINTS, TOLERANCE, Terms
from traceml.compare.verdict import FAIL_ON
from traceml.model.errors import TraceMLError, UsageError
from traceml.text.comparison import comparison_text
from traceml.text.many_runs import many_text

_FAILED, _ERROR, _NOTHING_IN_COMMON = 1, 2, 3
_USAGE = """traceml compare [options] A B [C …]
       traceml compare [options] --a A1 A2 … --b B1 B2 …"""
_EPILOG = """\
A run is a final_summary.json, a run folder, or the name of a run under the logs folder. In --a and
--b it may also be a pattern of names ('baseline-*') or what runs were run with
(params.lr=0.1,params.model=small). Of several runs on a side, the run is the unit. Three runs or
more are listed side by side, what differs between them and what each parameter did; A is the
baseline, and runs that differ in a logged seed alone are taken together.

Exit status: 0 compared; 1 --fail-on matched; 2 a usage or input error; 3 nothing in common.
"""


def main(words: list[str]) -> int:
    """Compares; a bug of ours exits like an input error, because 1 is the status of the gate."""
    try:
        return _compare(_parser().parse_args(words))
    except (TraceMLError, BrokenPipeError):
        raise
    except Exception:  # noqa: BLE001 - shown; the status 1 must stay the gate's own
        from traceback import print_exc

        print_exc()
        return _ERROR


def _compare(options: argparse.Namespace) -> int:
    """Compares, writes the files, and prints what was asked for."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has a ±
    terms = Terms(
        tolerance=options.tolerance,
        max_regression=options.max_regression,
        metric=options.metric,
        higher_is_better=None if options.better is None else options.better == "higher",
        fail_on=options.fail_on,
    )
    logs_dir = Path(options.logs_dir)
    refuse_folder(options.output)
    if len(options.runs) > 2 and not (options.a or options.b):
        compared = _compare_many(options, logs_dir, terms)
    else:
        compared = _compare_two(options, logs_dir, terms)
    if options.max_regression is not None and not options.fail_on:
        print("traceml compare: nothing fails without --fail-on regression", file=sys.stderr)
    return _exit_status(compared)


def _compare_two(
    options: argparse.Namespace, logs_dir: Path, terms: Terms
) -> tuple[Comparison, ...]:
    if options.reach is not None:
        raise UsageError("--reach is for three or more runs; name them one after the other")
    a, b = _sides(options)
    comparison, base = compare_sides(a, b, logs_dir, options.output, terms)
    if options.code_diff:
        _write_code_diff(a, b, logs_dir, base)
    text = comparison_text(comparison, _wants_colour())
    _show((comparison,), text, to_json(comparison), base, options.format)
    return (comparison,)


def _compare_many(
    options: argparse.Namespace, logs_dir: Path, terms: Terms
) -> tuple[Comparison, ...]:
    found, base = compare_runs(options.runs, logs_dir, options.output, terms, options.reach)
    if options.code_diff:
        for place, entry in enumerate(found.entries[1:], start=1):
            pair = base.with_name(f"{base.name}_{place}")
            _write_code_diff(list(found.entries[0].runs), list(entry.runs), logs_dir, pair)
    text = many_text(found)
    _show(found.comparisons, text, many_to_json(found), base, options.format, overview=text)
    return found.comparisons


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="traceml compare",
        usage=_USAGE,
        description="Say what changed between runs, by how much, how sure that is, and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="the run to compare with, then those compared")
    add("--a", nargs="+", metavar="RUN", help="the runs of the first group")
    add("--b", nargs="+", metavar="RUN", help="the runs of the second group")
    add("--metric", metavar="NAME", help=_metric_help())
    add(
        "--better",
        choices=("higher", "lower"),
        help="which way a logged metric improves, where neither script nor name says",
    )
    add(
        "--reach",
        metavar="VALUE",
        type=float,
        help="of three or more runs: the value of the logged metric whose cost is asked for",
    )
    add(
        "--max-regression",
        metavar="PCT",
        type=_share,
        help="how much worse is still no regression, such as 3%%",
    )
    add(
        "--tolerance",
        metavar="PCT",
        type=_share,
        default=TOLERANCE,
        help="a change shown to be smaller is none (default: 1%%)",
    )
    add(
        "--fail-on",
        metavar="VERDICT",
        type=_fail_on,
        default=(),
        help=f"exit with 1 on {' or '.join(FAIL_ON)}, or on both: {','.join(FAIL_ON)}",
    )
    add("--code-diff", action="store_true", help="write what changed in the code to BASE.diff")
    add("--format", choices=("text", "json", "markdown"), default="text", help="what is printed")
    add("--output", metavar="BASE", help="write BASE.json and BASE.txt")
    add("--logs-dir", metavar="DIR", default="logs", help="where runs are kept (default: logs)")
    return parser


def _metric_help() -> str:
    words = ", ".join(ENDPOINTS)
    return (
        "what the verdict is given by (default: step_time, then peak_memory): "
        f"{words}, or a metric that the script logged"
    )


def _share(text: str) -> float:
    """Returns a percentage as a share in 0–1."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 10:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage such as 3%")
    return share


def _fail_on(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    unknown = [word for word in words if word not in FAIL_ON]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(FAIL_ON)}")
    return words


def _sides(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the runs of both sides, as the user names them."""
    runs: list[str] = options.runs
    if options.a or options.b:
        if runs or not (options.a and options.b):
            raise UsageError(
                "two groups need both --a and --b, and no run besides them; "
                "say traceml compare --a A1 A2 --b B1 B2"
            )
        return options.a, options.b
    if len(runs) < 2:
        raise UsageError(f"there is nothing to compare with: {len(runs)} given, two runs expected")
    return [runs[0]], [runs[1]]


def _write_code_diff(a: list[str], b: list[str], logs_dir: Path, base: Path) -> None:
    has_difference = write_code_diff(a, b, logs_dir, base)
    if has_difference:
        said = f"Written to {base}.diff"
    elif has_difference is None:
        said = (
            "traceml compare: the code cannot be compared: no repository at hand knows the commits "
            "of both runs, or what was not committed is not kept"
        )
    else:
        said = "traceml compare: the code of both is on record as the same; nothing to write"
    print(said, file=sys.stderr)


def _show(
    found: tuple[Comparison, ...],
    text: str,
    document: bytes,
    base: Path,
    form: str,
    overview: str = "",
) -> None:
    """Prints the comparison in the form asked for; `overview` precedes it in markdown."""
    written = f"Written to {base}.json and {base}.txt"
    if form == "text":
        print(text)
        print(written)
        return
    if form == "json":
        print(document.decode(), end="")
    else:
        from traceml.text.markdown import all_markdown

        print(all_markdown(found, overview), end="")
    print(written, file=sys.stderr)


def _wants_colour() -> bool:
    """Returns whether to use colour: on a terminal that has it, unless the user opted out
    (no-color.org)."""
    return (
        sys.stdout is not None  # a service may have none
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in (None, "", "dumb")
    )


def _exit_status(found: Sequence[Comparison]) -> int:
    if not all(comparison.has_common_metric for comparison in found):
        return _NOTHING_IN_COMMON
    failed = any(comparison.gate and comparison.gate.failed for comparison in found)
    return _FAILED if failed else 0
