"""`traceml compare`: what changed between runs."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from traceml.api.compare import (
    compare_runs,
    compare_sides,
    paths_by_name,
    refuse_folder,
    write_code_diff,
    write_comparison,
    write_files,
    write_many,
)
from traceml.api.fetch_runs import FetchedRuns
from traceml.api.find_runs import choose_summaries
from traceml.cli import is_no_room
from traceml.cli.parser import (
    CommandParser,
    add_better,
    add_format,
    add_logs_dir,
    higher_is_better,
    some_text,
)
from traceml.compare.record import Comparison, to_json
from traceml.compare.terms import ENDPOINTS, TOLERANCE, Terms
from traceml.compare.verdict import FAIL_ON, fails_on
from traceml.model.errors import TraceMLError, UsageError, did_you_mean
from traceml.store.logged_samples import is_table
from traceml.summaries.read import known_runs, list_names
from traceml.text.comparison import comparison_text
from traceml.text.many_runs import many_text

_FAILED, _ERROR, _NOTHING_IN_COMMON = 1, 2, 3
_FORMATS = ("text", "json", "markdown", "html")
_TWO, _MANY, _FILES, _ARMS = (
    "two runs or groups",
    "three or more runs",
    "two files of one test set",
    "--arms",
)
_ONLY_FOR = {
    "reach": (_MANY,),
    "ignore": (_MANY,),
    "range": (_ARMS,),
    "artifacts": (_TWO,),
    "code_diff": (_TWO, _MANY),
}
"""Options that only some comparisons use."""
_USAGE = """traceml compare [options] A B [C …]
       traceml compare [options] --a A1 A2 … --b B1 B2 …
       traceml compare [options] A.csv B.csv
       traceml compare [options] --arms FILE [FILE …]"""
_EPILOG = """\
A run is a final_summary.json, a run folder, or the name of a run under the logs folder; or a run of
another tool: mlflow:RUN_ID, mlflow+http://HOST:PORT#RUN_ID, tensorboard:DIR, wandb:DIR. In --a and
--b it may also be a pattern of names ('baseline-*'), what runs were run with
(params.lr=0.1,params.model=small), or a filter of `traceml runs` ('lr < 0.1'). Of several runs on
a side, the run is the unit. Three runs or more, or one pattern of them, are listed side by side,
what differs between them and what each parameter did; A is the baseline ('sweep-*' after the name
of one of them compares all with that), and runs that differ in a logged seed alone are taken
together.

Two CSV or Parquet files with the columns id, scores and perhaps segment are two models on one test
set, compared example by example. --arms compares arms of live traffic (columns arm, outcome and
perhaps time) by intervals that hold however often one looks.

Exit status: 0 compared; 1 --fail-on matched; 2 a usage or input error; 3 nothing in common.
"""


def main(words: list[str]) -> int:
    """Compares, and returns the exit status."""
    return guarded_gate(lambda: _fetch_and_compare(words))


def _fetch_and_compare(words: list[str]) -> int:
    options = _parser().parse_args(words)
    with FetchedRuns() as fetched:
        for side in ("runs", "a", "b"):
            setattr(options, side, fetched.local_words(getattr(options, side) or ()))
        return _compare(options)


def guarded_gate(command: Callable[[], int]) -> int:
    """Returns the status of a command whose status 1 is that of a gate: a bug of ours exits like an
    input error."""
    try:
        return command()
    except (TraceMLError, BrokenPipeError, PermissionError):
        raise
    except Exception as error:  # shown: the status 1 must stay the gate's own
        if is_no_room(error):
            raise
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
        higher_is_better=higher_is_better(options),
        fail_on=options.fail_on,
    )
    logs_dir = Path(options.logs_dir)
    refuse_folder(options.output)
    mode = _mode(options, logs_dir)
    _refuse_unused(options, mode)
    if options.format == "html" and mode in (_ARMS, _FILES):
        raise UsageError(
            f"--format html is for runs, not for {mode}; choose text, json or markdown"
        )
    if mode in (_ARMS, _FILES):
        return _compare_tables(options, terms)
    if mode == _MANY:
        compared = _compare_many(options, logs_dir, terms)
    else:
        compared = _compare_two(options, logs_dir, terms)
    if options.max_regression is not None and not options.fail_on:
        print("traceml compare: nothing fails without --fail-on regression", file=sys.stderr)
    return gate_status(compared)


def _mode(options: argparse.Namespace, logs_dir: Path) -> str:
    """Returns what is compared."""
    if options.arms:
        return _ARMS
    if any(map(is_table, options.runs)):
        return _FILES
    return _MANY if _asks_for_many(options, logs_dir) else _TWO


def _refuse_unused(options: argparse.Namespace, mode: str) -> None:
    """Raises UsageError where an option would do nothing: who gave it expects something."""
    for name, modes in _ONLY_FOR.items():
        value = getattr(options, name)
        if value is not None and value is not False and mode not in modes:
            word = name.replace("_", "-")
            raise UsageError(f"--{word} is for {' or '.join(modes)}, not for {mode}; leave it out")
    if options.better is not None and options.metric is None and mode == _TWO:
        raise UsageError("--better is about a logged metric: name it with --metric")


def _compare_tables(options: argparse.Namespace, terms: Terms) -> int:
    """Compares tables of outcomes: two files of one test set, or arms of live traffic."""
    compared = _compare_arms if options.arms else _compare_samples
    statuses, text, document, base = compared(options, terms)
    show_comparison((), text, document, options.format, overview=text)
    write_files(base, document, text)
    say_written(base, options.format)
    if not statuses:
        return _NOTHING_IN_COMMON
    return _FAILED if any(fails_on(status, terms) for status in statuses) else 0


_Shown = tuple[list[str], str, bytes, Path]
"""Verdicts, none where nothing could be compared; text, JSON, and where both are to be written."""


def _compare_arms(options: argparse.Namespace, terms: Terms) -> _Shown:
    from traceml.api.compare_tables import compare_arm_files

    if options.runs or options.a or options.b:
        raise UsageError("--arms takes all files: say traceml compare --arms FILE [FILE …]")
    bounds = None if options.range is None else (options.range[0], options.range[1])
    found, text, base = compare_arm_files(options.arms, bounds, options.output, terms)
    known = [each.status for each in found.differences.values() if each.delta is not None]
    return known, text, to_json(found), base


def _compare_samples(options: argparse.Namespace, terms: Terms) -> _Shown:
    from traceml.api.compare_tables import compare_sample_files

    if len(options.runs) != 2 or not all(map(is_table, options.runs)):
        raise UsageError("one test set is compared in two files: say traceml compare A.csv B.csv")
    a, b = options.runs
    found, text, base = compare_sample_files(a, b, options.output, terms)
    judged = [found.scores[terms.metric]] if terms.metric else list(found.scores.values())
    known = [score.status for score in judged if score.whole.delta is not None]
    return known, text, to_json(found), base


def _compare_two(
    options: argparse.Namespace, logs_dir: Path, terms: Terms
) -> tuple[Comparison, ...]:
    a, b = _sides(options)
    comparison, base = compare_sides(a, b, logs_dir, options.output, terms, options.artifacts)
    text = comparison_text(comparison, wants_colour(), options.artifacts)
    if options.format == "html":
        from traceml.web.report_pages import sides_html

        _print_whole(sides_html(a, b, logs_dir, terms))
    else:
        show_comparison((comparison,), text, to_json(comparison), options.format)
    write_comparison(comparison, base, options.artifacts)
    if options.code_diff:
        _write_code_diff(a, b, logs_dir, base)
    say_written(base, options.format)
    return (comparison,)


def _asks_for_many(options: argparse.Namespace, logs_dir: Path) -> bool:
    """Returns whether runs are to be listed side by side: three or more, a pattern of them, or one
    and a pattern that it is among, which names the baseline of them all."""
    if options.a or options.b:
        return False
    if len(options.runs) == 1:
        return len(paths_by_name(options.runs, logs_dir)) > 1
    if len(options.runs) == 2:
        first, second = (choose_summaries([word], logs_dir) for word in options.runs)
        return len(first) == 1 and len(second) > 1 and first[0] in second
    return len(options.runs) > 2


def _compare_many(
    options: argparse.Namespace, logs_dir: Path, terms: Terms
) -> tuple[Comparison, ...]:
    ignored = [name.strip() for name in (options.ignore or "").split(",") if name.strip()]
    found, base = compare_runs(
        options.runs, logs_dir, options.output, terms, options.reach, ignored
    )
    text = many_text(found)
    if options.format == "html":
        from traceml.web.report_pages import many_html

        _print_whole(many_html(options.runs, logs_dir, found))
    else:
        show_comparison(found.comparisons, text, to_json(found), options.format, overview=text)
    write_many(found, base)
    if options.code_diff:
        paths = paths_by_name(options.runs, logs_dir)
        sides = [[paths[name] for name in entry.runs] for entry in found.entries]
        for place, side in enumerate(sides[1:], start=1):
            _write_code_diff(sides[0], side, logs_dir, base.with_name(f"{base.name}_{place}"))
    say_written(base, options.format)
    return found.comparisons


def add_gate_options(parser: CommandParser) -> None:
    """Adds what decides whether a change is a regression, and what then fails."""
    add = parser.add_argument
    add(
        "--max-regression",
        metavar="PCT",
        type=percentage,
        help="how much worse B may be before it is a regression, such as 3%%",
    )
    add(
        "--tolerance",
        metavar="PCT",
        type=percentage,
        default=TOLERANCE,
        help="a change shown to be smaller counts as no change (default: 1%%)",
    )
    add(
        "--fail-on",
        metavar="VERDICT",
        type=_fail_on_verdicts,
        default=(),
        help=f"exit with 1 on {' or '.join(FAIL_ON)}, or on both: {','.join(FAIL_ON)}",
    )


def _parser() -> CommandParser:
    parser = CommandParser(
        "compare",
        usage=_USAGE,
        description="Say what changed between runs, by how much, how sure that is, and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        metavar="RUN",
        type=some_text,
        help="the run to compare with, then those compared",
    )
    add("--a", nargs="+", metavar="RUN", type=some_text, help="the runs of the first group")
    add("--b", nargs="+", metavar="RUN", type=some_text, help="the runs of the second group")
    add("--metric", metavar="NAME", type=some_text, help=metric_help())
    add_better(parser)
    _add_table_options(parser)
    _add_many_options(parser)
    add_gate_options(parser)
    add("--code-diff", action="store_true", help="write what changed in the code to BASE.diff")
    add(
        "--artifacts",
        action="store_true",
        help="read logged files of any size, and list all that differs in them",
    )
    add_format(parser, _FORMATS)
    add("--output", metavar="BASE", type=some_text, help="write BASE.json and BASE.txt")
    add_logs_dir(parser)
    return parser


def metric_help() -> str:
    """Returns the help of `--metric`: what a verdict can be given by."""
    words = ", ".join(ENDPOINTS)
    return (
        "what the verdict is given by (default: step_time, then peak_memory): "
        f"{words}, or a metric that the script logged"
    )


def _add_table_options(parser: CommandParser) -> None:
    """Adds what is for tables of outcomes, and not for runs."""
    add = parser.add_argument
    add(
        "--arms",
        nargs="+",
        metavar="FILE",
        type=some_text,
        help="CSV or Parquet files with outcomes per arm",
    )
    add(
        "--range",
        nargs=2,
        type=_finite,
        metavar=("LOW", "HIGH"),
        help="of --arms: the range that an outcome can have",
    )


def _add_many_options(parser: CommandParser) -> None:
    """Adds what is for three or more runs."""
    add = parser.add_argument
    add(
        "--reach",
        metavar="VALUE",
        type=_finite,
        help="of three or more runs: the value of the logged metric whose cost is asked for",
    )
    add(
        "--ignore",
        metavar="PARAMS",
        type=some_text,
        help="of three or more runs: parameters in which runs may differ and still be alike, with "
        "commas; code is the version of the code",
    )


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def percentage(text: str) -> float:
    """Returns a percentage as a share in 0–1."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 10:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage such as 3%")
    return share


def _fail_on_verdicts(text: str) -> tuple[str, ...]:
    """Returns the verdicts that a gate fails on, from words with commas."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    unknown = [word for word in words if word not in FAIL_ON]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is none of {', '.join(FAIL_ON)}{did_you_mean(unknown[0], FAIL_ON)}"
        )
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
        raise _too_few(runs, Path(options.logs_dir))
    return [runs[0]], [runs[1]]


def _too_few(runs: list[str], logs_dir: Path) -> UsageError:
    """The error for fewer than two runs; it names those that could be compared."""
    given, a = (f"only {runs[0]!r} was given", runs[0]) if runs else ("no run was given", "A")
    names = [name for name in known_runs(logs_dir) if name not in runs]
    there = f"runs under {logs_dir}, newest first: {list_names(names)}"
    return UsageError(
        f"{given}; expected two runs or more; say traceml compare {a} B "
        f"({there if names else f'there is no other run under {logs_dir}'})"
    )


def _write_code_diff(a: list[str], b: list[str], logs_dir: Path, base: Path) -> None:
    has_difference = write_code_diff(a, b, logs_dir, base)
    if has_difference:
        said = f"Written to {base}.diff"
    elif has_difference is None:
        said = (
            "traceml compare: the code cannot be compared: no Git repository here has the commits "
            "of both runs, or their uncommitted changes were not kept"
        )
    else:
        said = "traceml compare: the recorded code of both is the same; nothing to write"
    print(said, file=sys.stderr)


def show_comparison(
    found: tuple[Comparison, ...],
    text: str,
    document: bytes,
    form: str,
    overview: str = "",
) -> None:
    """Prints the comparison in the form asked for; `overview` precedes it in markdown.

    It comes before the files are written, so that it is seen where that is not possible.
    """
    if form == "text":
        print(text)
    elif form == "json":
        print(document.decode(), end="")
    else:
        from traceml.text.markdown import all_markdown

        print(all_markdown(found, overview), end="")
    if sys.stdout is not None:
        sys.stdout.flush()  # before what may be said on stderr


def _print_whole(document: str) -> None:
    """Prints an HTML file as it is, whatever the terminal's encoding."""
    sys.stdout.buffer.write(document.encode())
    sys.stdout.flush()


def say_written(base: Path, form: str) -> None:
    """Says where the files are; on stderr where stdout is for a program."""
    written = f"Written to {base}.json and {base}.txt"
    print(written, file=sys.stdout if form == "text" else sys.stderr)


def wants_colour() -> bool:
    """Returns whether to use colour: on a terminal that has it, unless the user opted out
    (no-color.org)."""
    return (
        sys.stdout is not None  # a service may have none
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in (None, "", "dumb")
    )


def gate_status(found: Sequence[Comparison]) -> int:
    """Returns the exit status of comparisons, by their gate."""
    if not all(comparison.has_common_metric for comparison in found):
        return _NOTHING_IN_COMMON
    failed = any(comparison.gate and comparison.gate.failed for comparison in found)
    return _FAILED if failed else 0
