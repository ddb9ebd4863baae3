"""What a run is listed and queried by: facts, parameters and metrics under the keys of the index.

Every fact is taken from where the run's page and the comparison take it. Keys begin with `facts.`,
`params.` and `metrics.` (a metric's last value), `min.`, `max.` and `mean.` (over all its values);
`best.` where the script or the metric's name says whether more is better, and `higher_is_better.`
where the script does. Of a metric per segment (`accuracy[cat]`) there is the last value alone, as
there may be thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from traceml.compare.lineage import flat_params
from traceml.compare.measured import values as section_values
from traceml.compare.parameter_groups import CODE, params_of
from traceml.compare.script_identity import script_of
from traceml.compare.terms import ENDPOINTS
from traceml.facts.history import History
from traceml.figures.head import RunStanding, elapsed_s, steps_taken
from traceml.figures.verdict import primary_of, run_verdict
from traceml.model.finding import Section
from traceml.model.lineage import Code, Command, Environment, Hardware, Lineage
from traceml.model.metric import METRICS
from traceml.model.metric_direction import direction_of
from traceml.model.metric_segments import metric_of, split_segment
from traceml.model.printable import shorten
from traceml.model.run_values import RunValue, number_of
from traceml.summaries.record import MetricSummary, Summary

VERSION = 7
"""Of the columns of a run; a change makes the index read all runs again."""
MAX_TEXT_CHARS = 1000
"""A longer text is cut, with an ellipsis at its end."""

_NO_HISTORY = History()
_SECTIONS = (Section.STEP_TIME, Section.STEP_MEMORY, Section.SYSTEM)
"""The sections whose metrics are facts; those of the process share names with the system's."""


@dataclass(frozen=True, slots=True)
class RunFact:
    """One fact about a run."""

    name: str
    """Its end says the unit: `_ms`, `_s`, `_bytes`."""
    doc: str


FACTS: Mapping[str, RunFact] = MappingProxyType(
    {
        fact.name: fact
        for fact in (
            RunFact("name", "the run's name"),
            RunFact("run_id", "the run's id at the store that it was listed from (`--store`)"),
            RunFact("status", "`live`, `finished`, `failed` or `lost` (its end was not recorded)"),
            RunFact("exit_status", "the training command's exit status"),
            RunFact("verdict", "what is read first, in words: `INPUT-BOUND`, `OUT OF MEMORY`"),
            RunFact("severity", "of the verdict: `crit`, `warn`, `info`, `good` or `muted`"),
            RunFact("why", "what the verdict says, in a sentence"),
            RunFact("diagnosis", "the kind of the primary diagnosis: `INPUT_BOUND`"),
            RunFact("failure", "the kind of failure that ended the run: `OUT_OF_MEMORY`"),
            RunFact("started", 'when it started; in filters a date: `started > "2026-11-16"`'),
            RunFact("duration_s", "how long it lasted"),
            RunFact("steps", "training steps taken"),
            RunFact("goodput", "share of the wall time in productive steps, 0–1"),
            RunFact("restarts", "how often its ranks were started again after a failure"),
            RunFact("throughput", "samples per second and rank; steps where samples are unknown"),
            RunFact("peak_memory_bytes", "peak GPU memory of the worst rank"),
            RunFact("world_size", "ranks"),
            RunFact("nodes", "machines"),
            RunFact("gpus", "GPUs that were seen"),
            RunFact("gpu_names", "their models, each once"),
            RunFact("user", "the account that ran it"),
            RunFact("host", "the machine that it was started on"),
            RunFact("tags", 'the tags of `traceml tag`; `tags contains "good"`'),
            RunFact("note", "the note of `traceml tag`"),
            RunFact("command", "the command, without secrets"),
            RunFact("script", "the script"),
            RunFact("script_path", "its path in its git repository or environment, else absolute"),
            RunFact("script_sha256", "the hash of its content"),
            RunFact("folder", "the working folder"),
            RunFact("commit", "the git commit"),
            RunFact("branch", "the git branch"),
            RunFact("dirty", "whether tracked files differed from the commit"),
            RunFact("code_changes", "hash of what was not committed"),
            RunFact("python", "Python's version"),
            RunFact("torch", "torch's version"),
            RunFact("cuda", "CUDA's version"),
            RunFact("mode", "how the run was shown: `summary`, `cli`, `dashboard`"),
            RunFact("traceml_version", "the version that traced it"),
            RunFact("problem", "why the summary could not be read"),
            RunFact("names_not_indexed", "how many of its names had no room in the index"),
            *(RunFact(metric.key, metric.doc) for metric in METRICS if metric.section in _SECTIONS),
        )
    }
)
"""By name."""


def run_values(
    summary: Summary | None,
    standing: RunStanding,
    tags: Sequence[str] = (),
    note: str | None = None,
) -> dict[str, RunValue]:
    """Returns all that is known of a run, by key; what was not measured is left out."""
    found: dict[str, RunValue] = {}
    facts = {**dict(_measured(summary)), **dict(_facts(summary, standing))}
    facts |= {"tags": tuple(tags), "note": note}
    for name in FACTS:  # in their order
        fact = storable(facts.get(name))
        if fact is not None and fact not in ("", ()):
            found[f"facts.{name}"] = fact
    if summary is not None:
        for name, value in listed_params(summary):
            if (kept := storable(value)) is not None:
                found[f"params.{name}"] = kept
        for name, metric in summary.metrics.items():
            found.update(metric_columns(name, metric))
    return found


def _facts(summary: Summary | None, standing: RunStanding) -> Iterator[tuple[str, object]]:
    manifest = standing.manifest
    verdict = run_verdict(summary, standing, _NO_HISTORY)
    primary = None if summary is None else primary_of(summary)
    yield "name", manifest.run_name
    yield "status", standing.state
    yield "exit_status", standing.exit_status
    yield "verdict", verdict.status
    yield "severity", verdict.severity
    yield "why", verdict.why
    yield "diagnosis", None if primary is None else primary.kind
    yield "failure", summary.failure.kind if summary and summary.failure else None
    yield "started", manifest.started_unix_s
    yield "duration_s", elapsed_s(summary, standing)
    yield "steps", steps_taken(summary, _NO_HISTORY)
    goodput = None if summary is None else summary.goodput
    yield "goodput", None if goodput is None else goodput.share
    yield "restarts", None if goodput is None else goodput.restarts
    meta = None if summary is None else summary.meta
    yield "world_size", (meta and meta.world_size) or manifest.expected_world_size
    yield "nodes", (meta and meta.nodes_observed) or manifest.nodes
    yield "gpus", meta and meta.gpus_observed
    yield "user", manifest.user
    yield "command", " ".join(manifest.command)
    yield "folder", manifest.working_folder
    yield "mode", manifest.mode
    yield "traceml_version", manifest.traceml_version
    yield "problem", "; ".join(standing.notes)
    lineage = (summary and summary.lineage) or Lineage()
    hardware = lineage.hardware or Hardware()
    yield "host", manifest.hostname or hardware.hostname
    yield "gpu_names", tuple(dict.fromkeys(gpu.name for gpu in hardware.gpus))
    yield from _origin(lineage)


def _origin(lineage: Lineage) -> Iterator[tuple[str, object]]:
    code, command = lineage.code or Code(), lineage.command or Command()
    environment = lineage.environment or Environment()
    script = script_of(lineage)
    yield "script", command.script
    yield "script_path", script and script.name
    yield "script_sha256", command.script_sha256
    yield "commit", code.commit
    yield "branch", code.branch
    yield "dirty", code.dirty
    yield "code_changes", code.changes.sha256 if code.changes else None
    yield "python", environment.python
    yield "torch", environment.torch
    yield "cuda", environment.cuda


def _measured(summary: Summary | None) -> Iterator[tuple[str, object]]:
    """Yields the metrics by which runs are compared; memory is the worst rank's."""
    if summary is None:
        return
    known: dict[str, float | None] = {}
    for section in _SECTIONS:
        known.update(section_values(section, summary))
    yield from known.items()
    for word, name in (("throughput", "throughput"), ("peak_memory", "peak_memory_bytes")):
        keys = ENDPOINTS[word].metrics
        yield name, next((known[key] for key in keys if known.get(key) is not None), None)


def listed_params(summary: Summary) -> Iterator[tuple[str, object]]:
    """Yields the logged parameters, and the options of the command line that none of them holds."""
    logged = dict(flat_params(summary.params))
    yield from logged.items()
    (known,) = params_of([summary])
    for name, value in known.items():
        is_option = name != CODE and " " not in name  # "argument 1" is a place, and no option
        if is_option and name not in logged:
            yield name, _as_number(value) if isinstance(value, str) else value


def _as_number(text: str) -> RunValue:
    """Returns an option's text as the number that it says, so that it can be sorted by."""
    try:
        return int(text)
    except ValueError:
        number = number_of(text)
        return text if number is None else number


def metric_columns(name: str, metric: MetricSummary) -> Iterator[tuple[str, RunValue]]:
    """Yields the columns of a metric; the extremes of a single value are that value.

    JSON has no NaN and no infinity: a last value that is missing was one of them. Extremes that
    are not finite are those of no value.
    """
    if not metric.count:
        return
    yield f"metrics.{name}", math.nan if metric.last is None else metric.last
    said = metric.higher_is_better
    if said is not None:
        yield f"higher_is_better.{metric_of(name)}", said
    if split_segment(name) is not None:
        return
    only = metric.last if metric.count == 1 else None
    statistics = {
        "min": _finite(metric.min),
        "max": _finite(metric.max),
        "mean": _finite(metric.mean),
    }
    higher = direction_of(name, said).higher_is_better
    if higher is not None:
        statistics["best"] = statistics["max" if higher else "min"]
    for key, value in statistics.items():
        known = only if value is None else value
        if known is not None and math.isfinite(known):
            yield f"{key}.{name}", known


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def storable(value: object) -> RunValue | None:
    """Returns a value as the index keeps it; `None` where it is missing."""
    if isinstance(value, str):
        return shorten(value, MAX_TEXT_CHARS)
    if isinstance(value, tuple):
        return tuple(shorten(str(each), MAX_TEXT_CHARS) for each in value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else float(value)
    return shorten(str(value), MAX_TEXT_CHARS)
