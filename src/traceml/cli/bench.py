"""`traceml bench`: two commands, or one at two commits, in turn until the answer is clear."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from traceml.api.bench import (
    Bench,
    BenchPlan,
    BenchSide,
    TooFewSteps,
    ended_like_interrupted,
    require_logs_folder,
)
from traceml.api.bench_checkouts import WORKTREE, Checkout, Repository
from traceml.api.compare import refuse_folder, write_comparison
from traceml.cli.compare import (
    add_gate_options,
    gate_status,
    guarded_gate,
    metric_help,
    say_written,
    show_comparison,
    wants_colour,
)
from traceml.cli.parser import (
    CommandParser,
    add_better,
    add_format,
    add_logs_dir,
    higher_is_better,
    some_text,
    whole_number,
)
from traceml.compare.logged_metrics import PREFIX
from traceml.compare.record import BenchStop, Comparison, to_json
from traceml.compare.sequential_looks import RunPlan
from traceml.compare.terms import ENDPOINTS, Terms
from traceml.launch.command import require_command
from traceml.model.errors import UsageError, misspelt
from traceml.model.printable import printable_lines
from traceml.model.quantities import count
from traceml.model.secrets import masked
from traceml.text.comparison import comparison_text

DEFAULT_MAX_RUNS = 8
DEFAULT_MAX_MINUTES = 30
DEFAULT_REF = "HEAD"
_FORMATS = ("text", "json", "markdown")
_NOTHING_MEASURED, _INTERRUPTED = 3, 130
_USAGE = """traceml bench [options] --a-ref REF [--b-ref REF] --a "COMMAND" [--b "COMMAND"]
       traceml bench [options] --a "COMMAND" --b "COMMAND\""""
_EPILOG = """\
A command is given as one word in quotes. With refs, each commit is checked out into a temporary git
worktree, in which the command runs; your own working tree is neither used nor changed, and data
that git does not track has to be named by an absolute path. --b-ref WORKTREE is your working tree
with what is not committed. Without refs, both commands run in the current folder.

Both sides run in turn (A B B A …) and are judged after 3, 5, 8, … runs per side, until there is a
verdict or a limit is reached. All looks together find a change where there is none in at most 5 of
100 cases. Every run stays in the logs folder.

Exit status: 0 compared; 1 --fail-on matched; 2 a usage error, or a command failed; 3 a command took
too few training steps, or nothing was measured on both sides; 130 interrupted.
"""


def main(words: list[str]) -> int:
    """Benchmarks; returns the exit status."""
    return guarded_gate(lambda: _bench(_parser().parse_args(words)))


def _bench(options: argparse.Namespace) -> int:
    refuse_folder(options.output)
    with ExitStack() as stack:
        stack.enter_context(ended_like_interrupted())
        try:
            plan = _plan(options)
            bench = Bench(_sides(options, stack), plan, _say)
            require_logs_folder(plan.logs_dir)
            comparison = bench.run()
        except TooFewSteps as error:
            print(f"traceml bench: {printable_lines(str(error))}", file=sys.stderr)
            return _NOTHING_MEASURED
    if comparison is None:
        if bench.was_interrupted:
            _say(f"nothing to compare: it was interrupted after {bench.runs_made()}")
            return _INTERRUPTED
        _say(
            f"nothing to compare: --max-minutes {options.max_minutes} was over after "
            f"{bench.runs_made()}; allow more time, or let the commands take fewer steps"
        )
        return _NOTHING_MEASURED
    return _tell(comparison, options, plan.name)


def _tell(comparison: Comparison, options: argparse.Namespace, name: str) -> int:
    """Prints and writes the comparison; returns the exit status."""
    base = Path(options.output or Path("compare") / name)
    text = comparison_text(comparison, wants_colour())
    show_comparison((comparison,), text, to_json(comparison), options.format)
    write_comparison(comparison, base)
    say_written(base, options.format)
    if options.max_regression is not None and not options.fail_on:
        _say("nothing fails without --fail-on regression")
    is_interrupted = (
        comparison.bench is not None and comparison.bench.stopped == BenchStop.INTERRUPTED.value
    )
    return _INTERRUPTED if is_interrupted else gate_status((comparison,))


def _plan(options: argparse.Namespace) -> BenchPlan:
    terms = Terms(
        tolerance=options.tolerance,
        max_regression=options.max_regression,
        metric=_metric(options),
        higher_is_better=higher_is_better(options),
        fail_on=options.fail_on,
    )
    logs_dir = Path(options.logs_dir).resolve()  # commands run in other folders
    name = time.strftime("bench-%Y%m%d-%H%M%S")
    if options.runs is not None and options.max_runs is not None:
        raise UsageError("--runs is the exact number and --max-runs the largest; give one of them")
    if options.runs is None:
        runs = RunPlan.until_clear(options.max_runs or DEFAULT_MAX_RUNS, terms)
    else:
        runs = RunPlan.of_fixed_size(options.runs, terms)
    return BenchPlan(runs, 60.0 * options.max_minutes, logs_dir, name)


def _metric(options: argparse.Namespace) -> str | None:
    """Returns the metric that decides; raises UsageError for a misspelt one of TraceML's.

    What else a script logs is known after the first run only.
    """
    name: str | None = options.metric
    if name is None:
        if options.better is not None:
            raise UsageError("--better is about a logged metric: name it with --metric")
        return None
    if name not in ENDPOINTS and not name.startswith(PREFIX):
        meant = misspelt(name, ENDPOINTS)
        if meant:
            raise UsageError(
                f"--metric {name}: TraceML measures no such metric (did you mean {meant}?); "
                f"a logged metric of this name is --metric {PREFIX}{name}"
            )
    return name


def _sides(options: argparse.Namespace, stack: ExitStack) -> dict[str, BenchSide]:
    """Returns what is to be run on both sides; the stack removes temporary worktrees."""
    if options.a is None:
        raise UsageError(
            "nothing to run: --a is missing; "
            'say traceml bench --a-ref main --b-ref HEAD --a "python train.py"'
        )
    commands = [_words(options.a, "--a"), _words(options.b or options.a, "--b")]
    if options.a_ref is None:
        if options.b_ref is not None or options.b is None:
            raise UsageError(
                "there is one side only: expected --a-ref and --b-ref, or two commands; say "
                'traceml bench --a-ref main --a "COMMAND", or --a "COMMAND" --b "COMMAND"'
            )
        for command in commands:
            require_command(command)
        here = [Checkout(shlex.join(masked(command)), Path.cwd()) for command in commands]
    else:
        here = _checkouts([options.a_ref, options.b_ref or DEFAULT_REF], stack)
    return {
        side: BenchSide(command, checkout)
        for side, command, checkout in zip("ab", commands, here, strict=True)
    }


def _checkouts(refs: list[str], stack: ExitStack) -> list[Checkout]:
    repository = Repository(Path.cwd())
    for ref in refs:
        if ref != WORKTREE:
            repository.commit(ref)  # all refs are known before the first one is checked out
    changed = repository.changed_files()
    if changed and WORKTREE not in refs:
        _say(
            f"uncommitted changes in {count(changed, 'file')} are not measured, because what is "
            f"measured is the commit; --b-ref {WORKTREE} measures your files as they are"
        )
    return [stack.enter_context(repository.checked_out(ref)) for ref in refs]


def _words(text: str, option: str) -> list[str]:
    """Returns the words of a command; raises UsageError where its quotes do not match."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r} is no command: {error}; expected words as in a shell"
        ) from None


def _say(text: str) -> None:
    print(f"traceml bench: {printable_lines(text)}", file=sys.stderr, flush=True)


def _parser() -> CommandParser:
    parser = CommandParser(
        "bench",
        usage=_USAGE,
        description="Run two commands, or one at two commits, in turn until it is clear which is "
        "faster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--a", metavar="COMMAND", type=some_text, help="the command of side A, as one word")
    add("--b", metavar="COMMAND", type=some_text, help="that of side B (with refs, default: A's)")
    add("--a-ref", metavar="REF", type=some_text, help="the commit, branch or tag of side A")
    add(
        "--b-ref",
        metavar="REF",
        type=some_text,
        help=f"that of side B, or {WORKTREE} (default: {DEFAULT_REF})",
    )
    add("--runs", metavar="N", type=whole_number(2), help="exactly so many runs per side")
    add(
        "--max-runs",
        metavar="N",
        type=whole_number(2),
        help=f"at most so many runs per side (default: {DEFAULT_MAX_RUNS})",
    )
    add(
        "--max-minutes",
        metavar="N",
        type=whole_number(1),
        default=DEFAULT_MAX_MINUTES,
        help=f"no longer than that altogether (default: {DEFAULT_MAX_MINUTES})",
    )
    add("--metric", metavar="NAME", type=some_text, help=metric_help())
    add_better(parser)
    add_gate_options(parser)
    add_format(parser, _FORMATS)
    add(
        "--output",
        metavar="BASE",
        type=some_text,
        help="write BASE.json and BASE.txt (default: compare/bench-TIME)",
    )
    add_logs_dir(parser)
    return parser
