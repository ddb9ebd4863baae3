"""A run's summary as plain text of at most 80 columns: verdict, why and next first."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from traceml.model.finding import COMPUTE_CAUSES, Kind, consequence
from traceml.model.metric import GPU_COUNTERS
from traceml.model.metric_segments import segments_by_metric, split_segment
from traceml.model.phase import COMPUTE, COMPUTE_PART, PHASES
from traceml.model.printable import one_line, printable, printable_lines, shorten
from traceml.model.quantities import (
    count,
    duration,
    last_logged,
    memory,
    milliseconds,
    param_words,
    percent,
    rate,
)
from traceml.model.run import status_words
from traceml.summaries.own_time import own_ms
from traceml.summaries.record import (
    ArtifactSummary,
    Issue,
    KindScore,
    MetricSummary,
    PrimaryDiagnosis,
    RankRow,
    SectionSummary,
    Summary,
    WhatIfSummary,
)
from traceml.summaries.step_parts import step_parts
from traceml.summaries.tables import by_coordinate, mean_metrics, place_words
from traceml.text.goodput import analysed_words, attempt_lines, goodput_words
from traceml.text.host_time import host_time_lines
from traceml.text.layers import layer_lines
from traceml.text.nodes import node_lines, rank_distribution
from traceml.text.phases import gpu_idle_words, phase_tree
from traceml.text.settings import settings_line
from traceml.text.step_traces import OPEN_WORDS, choice_words, file_words

WIDTH = 80
TITLE_BEGIN = "TraceML · "
"""How a summary begins."""
LABEL = 9
MAX_RANKS = 8
LARGE_SHARE = 0.25  # of the wall time: evaluation or checkpoints that take it are worth a line
MAX_NAMED = 6
MAX_TRACEBACK_LINES = 16
FRAME = re.compile(r'(?P<before>[ |+-]*File ")(?P<path>.+)(?P<after>", line \d+(?:, in .*)?)')
"""A line of a traceback that says where: its end, the line number, is what it is read for."""
UNEVEN = 1.05  # times the median: below this it does not matter which rank it was

_SEVERITY = {"crit": " (critical)", "warn": " (warning)"}
_CALM = ("STABLE", "NO_DATA")
_RANK_CELL, _RANKS_WIDTH = 11, 72
_MIN_CELL = 7  # of the numbers; beside narrower ones the ranks' places are left out
_MAX_PLACE = 28


def summary_text(summary: Summary) -> str:
    """Returns the whole summary, ending in a newline."""
    blocks = (
        _heading(summary),
        _verdict(summary),
        _traceback(summary),
        _step_time(summary),
        node_lines(summary),
        _ranks(summary.step_time),
        host_time_lines(summary.host_time),
        layer_lines(summary.layers),
        _step_traces(summary),
        _goodput(summary),
        _machine(summary),
        _settings(summary),
        _regions(summary),
        _logged(summary),
        _also(summary),
        _tracer(summary),
    )
    return printable_lines("\n\n".join("\n".join(block) for block in blocks if block) + "\n")


def _labelled(label: str, text: str) -> list[str]:
    """Returns a label and its text, wrapped beside it."""
    return textwrap.wrap(
        one_line(text),
        WIDTH,
        initial_indent=f"  {label:<{LABEL}}",
        subsequent_indent=" " * (2 + LABEL),
        break_on_hyphens=False,  # a path with a hyphen is copied whole
    )


def _joined(parts: Iterable[str | None]) -> str:
    return " · ".join(part for part in parts if part)


def _heading(summary: Summary) -> list[str]:
    steps = None if summary.step_time is None else summary.step_time.metadata.training_total_steps
    size = summary.meta.world_size
    facts = _joined(
        (
            _rank_count(summary, size),
            count(summary.meta.gpus_observed, "GPU") if summary.meta.gpus_observed else None,
            None if steps is None else count(steps, "step"),
            None if summary.duration_s is None else duration(summary.duration_s),
        )
    )
    name = one_line(summary.meta.run_name or "", WIDTH - len(f"{TITLE_BEGIN} · {facts}"))
    return [_joined((TITLE_BEGIN.removesuffix(" · "), name, facts)), "─" * WIDTH]


def _rank_count(summary: Summary, size: int | None) -> str | None:
    """Returns the number of ranks and, where only a part of the job is here, how many of its ranks
    are."""
    if size is None:
        return None
    seen = None if summary.step_time is None else summary.step_time.metadata.global_ranks_seen
    return f"{seen:,} of {count(size, 'rank')}" if seen and seen < size else count(size, "rank")


def _verdict(summary: Summary) -> list[str]:
    primary = summary.primary_diagnosis
    verdict = (primary.status or primary.kind or "n/a") + _SEVERITY.get(primary.severity or "", "")
    lines = _labelled("Verdict", verdict)
    if primary.summary:
        lines += _labelled("Why", primary.summary)
    for cause in _compute_causes(summary):
        said = "" if cause.action == primary.action else cause.action
        lines += _labelled("Cause", f"{cause.status or cause.kind}: {cause.summary} {said}")
    if primary.action:
        lines += _labelled("Next", primary.action)
    predicted = next((each for each in summary.what_if if each.kind == primary.kind), None)
    if predicted is not None and predicted.summary:
        lines += _labelled("If fixed", predicted_words(predicted))
    if summary.exit_status:
        lines += _labelled("Ended", f"with exit {status_words(summary.exit_status)}")
    return lines


def predicted_words(found: WhatIfSummary) -> str:
    """Returns a prediction, and how earlier ones of its kind came out where that is known."""
    past = "" if found.score is None else f"; {past_words(found.score)}"
    return f"{found.summary or ''}{past}"


def past_words(score: KindScore | None) -> str:
    """Returns how earlier predictions of the same kind came out."""
    if score is None:
        return "no earlier prediction of this kind could be scored"
    if score.predictions == 1:
        return f"an earlier fix saved {percent(score.median_saved_share)} of what was predicted"
    low, high = percent(score.min_saved_share), percent(score.max_saved_share)
    return (
        f"{score.predictions} earlier fixes saved {percent(score.median_saved_share)} of what was "
        f"predicted (median; {low} to {high})"
    )


def _compute_causes(summary: Summary) -> list[Issue]:
    """Returns why compute takes the time, where that is the verdict."""
    if summary.step_time is None or summary.primary_diagnosis.kind != Kind.COMPUTE_BOUND.value:
        return []
    return [issue for issue in summary.step_time.issues if issue.kind in COMPUTE_CAUSES]


def _step_time(summary: Summary) -> list[str]:
    section = summary.step_time
    if section is None or section.global_.average.get("step_time_ms") is None:
        return []
    times, window = section.global_.average, section.global_.window
    warmup = f" after {count(window.warmup_steps, 'warm-up step')}" if window.warmup_steps else ""
    clock = (
        f", {one_line(window.diagnosis_clock, 8).upper()} clock" if window.diagnosis_clock else ""
    )
    lines = [f"  Where a step goes (mean of {count(window.steps_analyzed, 'step')}{warmup}{clock})"]
    lines += phase_tree(times, _guilty(summary.primary_diagnosis, section))
    lines += textwrap.wrap(
        gpu_idle_words(times), WIDTH, initial_indent="  ", subsequent_indent=" " * 11
    )
    lines += textwrap.wrap(
        analysed_words(section), WIDTH, initial_indent="  ", subsequent_indent="  "
    )
    points = [
        f"{point} {milliseconds(value)}"
        for point in ("p50", "p95", "p99")
        if (value := times.get(f"step_time_{point}_ms")) is not None
    ]
    several = " per rank" if len(section.groups.rows) > 1 else ""
    samples = times.get("samples_per_s")
    speeds = [
        rate(times["steps_per_s"], "steps") if times.get("steps_per_s") is not None else None,
        None if samples is None else rate(samples, "samples") + several,
    ]
    lines += [f"  {line}" for line in (_joined(points), _joined(speeds)) if line]
    series = summary.steps
    if series is not None and series.slowdown_step is not None and series.slowdown_ratio:
        lines.append(
            f"  slower from step {count(series.slowdown_step)} on: "
            f"{series.slowdown_ratio:.2f} times as long as before"
        )
    return lines


def _guilty(primary: PrimaryDiagnosis, section: SectionSummary) -> str | None:
    """Returns the phase that the verdict is about."""
    found = section.diagnosis
    return found.phase if found is not None and found.kind == primary.kind else None


def _rank_columns() -> Iterator[tuple[str, str]]:
    """What the columns of the table of ranks are called, and the part of a step in each."""
    for phase, entry in PHASES.items():
        yield entry.column, phase.value
        if phase is COMPUTE[-1]:
            yield "graphs", COMPUTE_PART


def _ranks(section: SectionSummary | None) -> list[str]:
    if section is None or len(section.groups.rows) < 2:
        return []
    rows = sorted(
        ((name, row.metrics) for name, row in section.groups.rows.items()),
        key=lambda row: -(own_ms(row[1]) or 0.0),
    )
    parts = {name: step_parts(metrics) for name, metrics in rows}
    shown = {
        title: part
        for title, part in _rank_columns()
        if any(part in of_rank for of_rank in parts.values())
    }
    names = {name: _rank_name(name, section.groups.rows[name]) for name, _ in rows[:MAX_RANKS]}
    first = max(6, *map(len, names.values()))
    if (_RANKS_WIDTH + 6 - first) // (len(shown) + 1) < _MIN_CELL:  # no room for their places
        names, first = {name: one_line(name, 6) for name in names}, 6
    width = min(_RANK_CELL, (_RANKS_WIDTH + 6 - first) // (len(shown) + 1))
    title = f"the slowest {MAX_RANKS} of {count(len(rows))}" if len(rows) > MAX_RANKS else "in ms"
    lines = [
        f"  Ranks ({title})",
        f"  {'rank':>{first}}" + "".join(f"{title:>{width}}" for title in ("step", *shown)),
    ]
    table = [(names[name], metrics, parts[name]) for name, metrics in rows[:MAX_RANKS]]
    if len(rows) > MAX_RANKS:
        means = {
            words: mean_metrics(members)
            for words, members in by_coordinate(section.groups.rows).items()
        }
        table += [(one_line(words, first), each, step_parts(each)) for words, each in means.items()]
    for words, metrics, of_rank in table:
        found = (metrics.get("step_time_ms"), *map(of_rank.get, shown.values()))
        cells = (milliseconds(value).removesuffix(" ms") for value in found)
        lines.append(f"  {words:>{first}}" + "".join(f"{cell:>{width}}" for cell in cells))
    return lines + (rank_distribution(section) if len(rows) > MAX_RANKS else [])


def _rank_name(name: str, row: RankRow) -> str:
    """Returns a rank's number and its place in the device mesh, where it has one."""
    place = place_words(row.identity)
    return one_line(name, 6) + (f" ({one_line(place, _MAX_PLACE)})" if place else "")


def _step_traces(summary: Summary) -> list[str]:
    """Returns which steps were recorded with torch's profiler, and where their traces are."""
    found = summary.kineto
    if found is None:
        return []
    lines = _labelled("Traces", " ".join(choice_words(found)))
    for words in file_words(found):
        lines += _labelled("", words)
    if found.traces:
        lines += _labelled("", f"In the run folder. {OPEN_WORDS}")
    for note in found.notes:
        lines += _labelled("", f"{note[:1].upper()}{note[1:]}.")
    return lines


def _goodput(summary: Summary) -> list[str]:
    said = goodput_words(summary.goodput)
    lines = _labelled("Goodput", said) if said else []
    for number, words in enumerate(attempt_lines(summary.attempts)):
        lines += _labelled("" if number else "Attempts", words)
    return lines


def _machine(summary: Summary) -> list[str]:
    """Returns one line each for memory, system and processes, with what was measured."""
    lines: list[str] = []
    for label, text in (
        ("Memory", _memory(summary.step_memory)),
        ("System", _system(summary.system)),
        ("Process", _process(summary.process)),
    ):
        if text:
            lines += _labelled(label, text)
    return lines


def _memory(section: SectionSummary | None) -> str:
    if section is None:
        return ""
    parts = []
    for key, words in (
        ("peak_reserved_bytes", "GPU peak {} reserved"),
        ("peak_allocated_bytes", "{} allocated"),
        ("peak_rss_bytes", "host peak {} resident"),
    ):
        worst, median = section.global_.worst.get(key), section.global_.median.get(key)
        if worst is not None and worst.value is not None:
            uneven = median is not None and worst.value > UNEVEN * (median.value or 0.0)
            where = f" (rank {one_line(worst.idx or '', 6)})" if uneven else ""
            parts.append(words.format(memory(worst.value)) + where)
    return _joined(parts)


def _system(section: SectionSummary | None) -> str:
    if section is None:
        return ""
    found = section.global_.average

    def share(key: str) -> str:
        value = found.get(key)
        return "" if value is None else percent(value / 100)

    def amount(key: str, of_total: str) -> str:
        value, part = found.get(key), share(of_total)
        return "" if value is None else memory(value) + (f" ({part})" if part else "")

    throttled = found.get("cpu_throttled_percent") or 0.0
    warmth, power = found.get("gpu_temp_c"), found.get("gpu_power_w")
    named = {
        "CPU": share("cpu_percent"),
        "CPU throttled": share("cpu_throttled_percent") if throttled >= 1 else "",
        "RAM": amount("ram_bytes", "ram_percent"),
        "GPU": _gpu_use(share("gpu_util_percent"), found),
        "GPU memory": amount("gpu_mem_bytes", "gpu_mem_percent"),
    }
    return _joined(
        (
            *(f"{name} {value}" for name, value in named.items() if value),
            None if warmth is None else f"{warmth:.0f} °C",
            None if power is None else f"{power:.0f} W",
        )
    )


def _gpu_use(used: str, found: Mapping[str, float | None]) -> str:
    """Returns how long the GPU had work, and what it did with it."""
    parts = [
        f"{metric.short} {percent(value)}"
        for metric in GPU_COUNTERS
        if metric.short and (value := found.get(metric.key)) is not None
    ]
    return f"{used} ({', '.join(parts)})" if used and parts else used


def _process(section: SectionSummary | None) -> str:
    if section is None:
        return ""
    found = section.global_.average
    cores, resident, workers = (found.get(key) for key in ("cpu_percent", "ram_bytes", "workers"))
    return _joined(
        (
            None if cores is None else f"{cores / 100:.1f} cores",
            None if resident is None else f"{memory(resident)} resident",
            count(round(workers), "worker") if workers else None,
        )
    )


def _settings(summary: Summary) -> list[str]:
    said = settings_line(summary.settings)
    return _labelled("Settings", said) if said else []


def _regions(summary: Summary) -> list[str]:
    if not summary.regions:
        return []
    lines = [f"  {'Named regions':<34}{'calls':>10}{'mean':>14}{'total':>16}"]
    for region in summary.regions[:MAX_NAMED]:
        lines.append(
            f"  {one_line(region.name, 33):<34}{count(region.calls):>10}"
            f"{duration(region.mean_ms / 1e3):>14}{duration(region.total_ms / 1e3):>16}"
        )
    return lines + _more(summary.regions)


def _more(things: Sequence[object]) -> list[str]:
    hidden = len(things) - MAX_NAMED
    return [f"  … and {count(hidden)} more"] if hidden > 0 else []


def _logged(summary: Summary) -> list[str]:
    lines: list[str] = []
    for label, is_taken in (("Params", False), ("Args", True)):
        params = [
            f"{name}={param_words(value)}"
            for name, value in summary.params.items()
            if (name in summary.param_sources) is is_taken
        ]
        if params:
            lines += _labelled(label, ", ".join(_listed(params)))
    if summary.metrics:
        metrics = [
            f"{name} {last_logged(metric.last)}"
            for name, metric in summary.metrics.items()
            if split_segment(name) is None
        ]
        metrics += _segments(summary.metrics)
        lines += _labelled("Metrics", " · ".join(_listed(metrics)))
    if summary.artifacts:
        artifacts = [_artifact(name, found) for name, found in summary.artifacts.items()]
        lines += _labelled("Artifact", "; ".join(_listed(artifacts)))
        for note in _artifact_notes(summary.artifacts)[:MAX_NAMED]:
            lines += _labelled("", note)
    return lines


def _segments(metrics: Mapping[str, MetricSummary]) -> list[str]:
    """Returns of each metric with segments the lowest and the highest last value, and whose."""
    said = []
    for metric, names in segments_by_metric(metrics).items():
        last = {
            place.segment: value
            for name in names
            if (place := split_segment(name)) and (value := metrics[name].last) is not None
        }
        in_order = sorted(last, key=last.__getitem__)
        ends = dict.fromkeys((*in_order[:1], *in_order[-1:]))
        shown = [f"{last[segment]:.4g} ({segment})" for segment in ends]
        many = count(len(names), "segment")
        said.append(f"{metric} {' to '.join(shown) or 'n/a'} in {many}")
    return said


def _artifact(name: str, found: ArtifactSummary) -> str:
    """Returns a logged file's name, and what is known of it: kind, size and version."""
    size = None if found.size_bytes is None else memory(found.size_bytes)
    version = f"version {count(found.version)}" if found.version > 1 else None
    facts = ", ".join(fact for fact in (found.kind, size, version) if fact)
    return f"{one_line(name, 30)} ({facts})" if facts else one_line(name, 30)


def _artifact_notes(artifacts: Mapping[str, ArtifactSummary]) -> list[str]:
    """Returns what could not be kept of logged files, one sentence each."""
    notes = []
    for name, found in artifacts.items():
        if found.note:
            notes.append(f"{one_line(name, 30)}: {found.note}.")
        lost = [version.note for version in found.earlier if version.stored is None]
        if lost:
            many = f"{count(len(lost), 'earlier version')} not kept"
            notes.append(f"{one_line(name, 30)}: {many}; of the last of them, {lost[-1]}.")
    return notes


def _listed(things: Sequence[str]) -> list[str]:
    hidden = len(things) - MAX_NAMED
    shown = [one_line(thing, 60) for thing in things[:MAX_NAMED]]
    return [*shown, f"and {count(hidden)} more"] if hidden > 0 else shown


def _also(summary: Summary) -> list[str]:
    """Returns the other findings: warnings of every section, and remarks about the step.

    What ended the run or will end it comes first, then the more severe.
    """
    primary, beside = summary.primary_diagnosis, _compute_causes(summary)
    told = []
    for name in ("stability", "step_time", "step_memory", "system", "process"):
        section: SectionSummary | None = getattr(summary, name)
        for issue in () if section is None else section.issues:
            is_primary = issue.kind == primary.kind and name == primary.section
            further = issue.severity != "info" or (name == "step_time" and issue.phase is not None)
            further = further or (name == "stability" and issue.kind not in _CALM)
            further = further or issue.kind in COMPUTE_CAUSES
            further = further or (name == "step_time" and (issue.share_pct or 0) >= LARGE_SHARE)
            if further and not is_primary and issue not in beside:
                told.append(issue)
    told.sort(key=_reading_order)
    lines, actions = [], {primary.action}
    for issue in told:
        is_new = issue.action not in actions
        actions.add(issue.action)
        lines += _labelled("Also", _finding(issue, with_action=is_new))
    return lines


def _reading_order(issue: Issue) -> tuple[int, int]:
    weights = {"crit": 0, "warn": 1}
    return consequence(issue.kind, issue.severity), weights.get(issue.severity or "", 2)


def _traceback(summary: Summary) -> list[str]:
    """Returns the last lines of the traceback; the whole of it is in `final_summary.json`."""
    found = None if summary.failure is None else summary.failure.traceback
    if not found:
        return []
    lines = [
        _as_printed(line)
        for line in found.splitlines()
        if line.strip() and not _points_beyond(line.expandtabs(4))
    ]
    if len(lines) > MAX_TRACEBACK_LINES:
        last = lines[2 - MAX_TRACEBACK_LINES :]
        hidden = len(lines) - 1 - len(last)
        lines = [lines[0], f"  … {count(hidden, 'line')} left out …", *last]
    return ["  Traceback", *(f"    {line}" for line in lines)]


def _points_beyond(line: str) -> bool:
    """Returns whether the line only marks a part of the one before that is cut off."""
    marks = line.lstrip(" |+-")
    return not marks.strip("^~") and len(line) - len(marks) >= WIDTH - 5


def _as_printed(line: str) -> str:
    """Returns a line with its indentation, without control characters and no wider than the text.

    Of a long path the beginning is cut, so that the line number after it can be read.
    """
    line, width = printable(line.expandtabs(4)), WIDTH - 4
    frame = FRAME.fullmatch(line)
    if frame is not None and len(line) > width:
        path = frame["path"]
        kept = max(0, len(path) - (len(line) - width) - 1)
        line = f"{frame['before']}…{path[len(path) - kept :]}{frame['after']}"
    return shorten(line, width)


def _finding(issue: Issue, with_action: bool = True) -> str:
    """A finding in words; what to do about it is left out where that is said already."""
    severity = _SEVERITY.get(issue.severity or "", "")
    action = f" {issue.action}" if with_action and issue.action else ""
    return f"{issue.status or issue.kind}{severity}: {issue.summary or ''}{action}"


def _tracer(summary: Summary) -> list[str]:
    """Returns what the tracer could not do; empty where it did everything."""
    tracer = summary.tracer
    if tracer is None:
        return []
    failed = f" (last: {one_line(tracer.last_failure, 120)})" if tracer.last_failure else ""
    refused = tracer.values_refused
    problems = _joined(
        (
            count(tracer.steps_aborted, "step") + " aborted" if tracer.steps_aborted else None,
            count(tracer.steps_lost, "step") + " lost" if tracer.steps_lost else None,
            count(tracer.failures, "tracer failure") + failed if tracer.failures else None,
            count(tracer.messages_lost, "message") + " lost" if tracer.messages_lost else None,
            f"{count(refused, 'logged value')} not recorded or cut" if refused else None,
        )
    )
    lines = _labelled("Tracer", problems) if problems else []
    for note in tracer.notes:
        lines += _labelled("Note", note)
    return lines
