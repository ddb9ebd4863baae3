"""`traceml promote`: registers a run's checkpoint in MLflow's model registry."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traceml.api.fetch_runs import FetchedRuns
from traceml.api.promote import Judged, PromotionRequest, judge, promote
from traceml.cli.parser import CommandParser, add_better, add_logs_dir, higher_is_better, some_text
from traceml.cli.push import SendingProgress, say_problems, sent_words
from traceml.compare.terms import Terms
from traceml.model.errors import UsageError
from traceml.model.printable import printable, printable_lines
from traceml.model.quantities import memory
from traceml.store.mlflow_runs import MlflowRuns
from traceml.store.mlflow_server import split_address

_REFUSED = 1
_EPILOG = """\
The run is one on this machine, which is sent to the server first (traceml push), or mlflow:RUN_ID.
With --against the run is compared with another one: the comparison is attached to the run as text
and JSON, its verdict stands in tags of the model's version, and a run that is worse is not
registered. The metric that decides is the one that stands for what the runs achieved (val/loss,
accuracy), step time where they logged none; --metric names another one.

Exit status: 0 registered; 1 not registered because the run is worse; 2 a usage or input error.
"""


def main(words: list[str]) -> int:
    """Compares, registers, and says what is registered as what."""
    options = _parser().parse_args(words)
    is_about_comparison = options.metric is not None or options.better is not None or options.force
    if options.against is None and is_about_comparison:
        raise UsageError(
            "--metric, --better and --force are about a comparison: name the other run with "
            "--against"
        )
    store, model = _registry(options.to)
    options.run = _at_the_same_server(options.run, options.to)
    if options.against is not None:
        options.against = _at_the_same_server(options.against, options.to)
    with FetchedRuns() as fetched:
        judged = None
        if options.against is not None:
            terms = Terms(metric=options.metric, higher_is_better=higher_is_better(options))
            judged = judge(options.run, options.against, Path(options.logs_dir), terms, fetched)
            print(_verdict_words(judged), flush=True)
            if judged.is_worse and not options.force:
                print(f"traceml promote: {_refusal(judged, options)}", file=sys.stderr)
                return _REFUSED
        _promote(options, store, model, judged, fetched)
    return 0


def _refusal(judged: Judged, options: argparse.Namespace) -> str:
    run, baseline = printable(options.run), printable(options.against)
    if judged.seems_worse:
        said = f"{run} seems worse than {baseline}, which more runs per side would have to show"
    else:
        partly = "partly " if judged.status == "MIXED" else ""
        said = f"{run} is {partly}worse than {baseline}"
    return f"not registered: {said}; --force registers it nevertheless"


def _promote(
    options: argparse.Namespace,
    store: MlflowRuns,
    model: str,
    judged: Judged | None,
    fetched: FetchedRuns,
) -> None:
    request = PromotionRequest(
        options.run, model, options.artifact, options.experiment, options.alias
    )
    progress, logs_dir = SendingProgress(), Path(options.logs_dir)
    done = promote(store, request, logs_dir, judged, options.force, fetched, progress.show)
    progress.clear()
    if done.sent is not None:
        print(f"{printable(options.run)}: {sent_words(done.sent)}")
        say_problems("promote", options.run, done.sent)
    size = "" if done.checkpoint.size_bytes is None else f", {memory(done.checkpoint.size_bytes)}"
    verb = "is now" if done.registered.is_new else "was already"
    alias = f" ({printable(options.alias)})" if options.alias else ""
    print(
        f"{printable(done.checkpoint.name)} ({done.choice}{size}) {verb} version "
        f"{done.registered.version}{alias} of {printable(model)}: {done.registered.link}"
    )


def _registry(word: str) -> tuple[MlflowRuns, str]:
    """Returns the server and the model that `--to` names."""
    if word.startswith(("mlflow:", "mlflow+")):
        uri, model = split_address(word)
        if model:
            return MlflowRuns("mlflow:" if uri is None else f"mlflow+{uri}"), model
    raise UsageError(
        f"{printable(word)!r} names no model; expected mlflow:MODEL, or "
        "mlflow+http://HOST:PORT#MODEL"
    )


def _at_the_same_server(word: str, to: str) -> str:
    """Returns a run's word; `mlflow:RUN` means the server of the model where that is named."""
    uri, _ = split_address(to)
    name = word.removeprefix("mlflow:")
    return word if uri is None or name == word else f"mlflow+{uri}#{name}"


def _verdict_words(judged: Judged) -> str:
    comparison = judged.comparison
    why = printable_lines(comparison.verdict.why)
    return (
        f"{printable(comparison.b)} against {printable(comparison.a)}, by "
        f"{printable(judged.metric or 'step time')}: {judged.status}\n{why}"
    )


def _parser() -> CommandParser:
    parser = CommandParser(
        "promote",
        description="Register a run's checkpoint as a version of a model in MLflow's registry.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run", metavar="RUN", type=some_text, help="a run folder, a run's name, or mlflow:RUN_ID")
    add(
        "--to",
        metavar="MODEL",
        type=some_text,
        required=True,
        help="mlflow:MODEL, or mlflow+http://HOST:PORT#MODEL",
    )
    add("--artifact", metavar="NAME", type=some_text, help="which of several checkpoints")
    add(
        "--against",
        metavar="RUN",
        type=some_text,
        help="the run, or a pattern of runs, that it may not be worse than",
    )
    add("--metric", metavar="NAME", type=some_text, help="what decides which of the two is better")
    add_better(parser)
    add("--force", action="store_true", help="register it although it is worse")
    add("--alias", metavar="NAME", type=some_text, help="point this alias at it, such as champion")
    add("--experiment", metavar="NAME", type=some_text, help="where the run is sent to")
    add_logs_dir(parser)
    return parser
