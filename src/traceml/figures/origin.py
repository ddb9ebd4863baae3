"""The parts of the page on a run's lineage, what it logged, and what could not be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from traceml.figures.head import RunStanding
from traceml.figures.page import Part, Row, Table
from traceml.figures.words import cell, joined
from traceml.model.lineage import Code, Gpu, Hardware, Lineage
from traceml.model.quantities import count, duration, memory, percent
from traceml.summaries.record import Summary, TracerSummary
from traceml.text.settings import setting_rows

MAX_ROWS = 60
COMMIT_LETTERS = 12


def origin_part(summary: Summary | None, standing: RunStanding) -> Part | None:
    """Returns code, command and machine; settings, parameters and regions as tables."""
    tables = [_origin(summary, standing)]
    if summary is not None:
        tables += [_settings(summary), _params(summary)]
        tables += [_regions(summary), _code(summary)]
    shown = tuple(table for table in tables if table.rows)
    return Part("origin", "Where it comes from", tables=shown) if shown else None


def tracer_part(summary: Summary | None) -> Part | None:
    """Returns what the tracer could not do; `None` where it did everything."""
    tracer = None if summary is None else summary.tracer
    rows = () if tracer is None else tuple(Row((name, text)) for name, text in _problems(tracer))
    if not rows:
        return None
    table = Table("tracer-table", "Tracer", ("", "What happened"), rows)
    return Part("tracer", "What the tracer could not do", tables=(table,))


def _origin(summary: Summary | None, standing: RunStanding) -> Table:
    manifest = standing.manifest
    found = {
        "Command": " ".join(manifest.command) or None,
        "Folder": manifest.working_folder or None,
        "Host": manifest.hostname or None,
    }
    if summary is not None and summary.lineage is not None:
        found.update(_lineage(summary.lineage))
    if summary is not None and summary.producer.version:
        found["Summary by"] = f"{summary.producer.name or 'traceml'} {summary.producer.version}"
    rows = tuple(Row((name, cell(value))) for name, value in found.items() if value)
    return Table("origin-table", "Code, command and machine", ("", "What"), rows)


def _lineage(lineage: Lineage) -> Iterator[tuple[str, str | None]]:
    if lineage.code is not None:
        yield "Commit", _commit(lineage.code)
        changes = lineage.code.changes
        if changes is not None:
            lines = f"+{count(changes.added)} -{count(changes.removed)} lines"
            yield "Not committed", f"{count(changes.file_count, 'file')}, {lines}"
    if lineage.environment is not None:
        found = lineage.environment
        named = {"Python": found.python, "torch": found.torch, "CUDA": found.cuda}
        yield "Environment", joined(f"{name} {text}" for name, text in named.items() if text)
    if lineage.hardware is not None:
        yield from _hardware(lineage.hardware)


def _commit(code: Code) -> str | None:
    if code.commit is None:
        return None
    return joined(
        (
            code.commit[:COMMIT_LETTERS],
            code.branch,
            "with changes that are not committed" if code.dirty else None,
        )
    )


def _hardware(found: Hardware) -> Iterator[tuple[str, str | None]]:
    usable = found.usable_cores
    yield (
        "CPU",
        joined(
            (
                found.cpu,
                None if found.cores is None else count(found.cores, "core"),
                None if usable is None else f"{usable:g} usable",
            )
        ),
    )
    limit = found.memory_limit_bytes
    yield (
        "Memory",
        joined(
            (
                None if found.ram_bytes is None else memory(found.ram_bytes),
                None if limit is None else f"limit {memory(limit)}",
            )
        ),
    )
    yield (
        "GPUs",
        ", ".join(
            f"{times} × {name}" if times > 1 else name
            for name, times in Counter(map(_gpu, found.gpus)).items()
        ),
    )
    yield "System", joined((found.system, found.kernel, found.container))


def _gpu(gpu: Gpu) -> str:
    return gpu.name if gpu.memory_bytes is None else f"{gpu.name} ({memory(gpu.memory_bytes)})"


def _settings(summary: Summary) -> Table:
    rows = tuple(Row((cell(name), cell(value))) for name, value in setting_rows(summary.settings))
    return Table("settings-table", "Settings", ("Setting", "Value"), rows)


def _params(summary: Summary) -> Table:
    """Returns the parameters, those that the script logged itself first, and their sources."""
    sources = summary.param_sources
    names = sorted(summary.params, key=lambda name: name in sources)[:MAX_ROWS]
    rows = tuple(
        Row((cell(name), cell(summary.params[name]), cell(sources.get(name, "log_params"))))
        for name in names
    )
    more = _more(len(summary.params))
    return Table("params-table", "Parameters", ("Parameter", "Value", "From"), rows, more)


def _regions(summary: Summary) -> Table:
    rows = tuple(
        Row(
            (
                cell(region.name),
                count(region.calls),
                duration(region.mean_ms / 1e3),
                duration(region.longest_ms / 1e3),
                duration(region.total_ms / 1e3),
            )
        )
        for region in summary.regions[:MAX_ROWS]
    )
    columns = ("Region", "Calls", "Mean", "Longest", "Total")
    return Table("region-table", "Named regions", columns, rows, _more(len(summary.regions)))


def _code(summary: Summary) -> Table:
    """Returns the functions and lines of user code at which the training thread was sampled."""
    seen = summary.user_time
    rows = tuple(
        Row(
            (
                cell(phase),
                cell(f"{place.function} ({place.file}:{place.line})"),
                percent(place.share),
                "n/a" if place.per_step_ms is None else duration(place.per_step_ms / 1e3),
                count(place.looks),
            )
        )
        for phase, code in ({} if seen is None else seen.phases).items()
        for place in code.places
    )
    columns = ("Phase", "Function and line", "Share of the phase", "Per step", "Looks")
    return Table("code-table", "Where your code spends the time", columns, rows)


def _more(number: int) -> str | None:
    return f"{count(number - MAX_ROWS)} more are in the summary." if number > MAX_ROWS else None


def _problems(tracer: TracerSummary) -> Iterator[tuple[str, str]]:
    """Returns the problems in the words of the text summary."""
    counted = (
        (tracer.steps_aborted, "step", "aborted"),
        (tracer.steps_lost, "step", "lost"),
        (tracer.failures, "tracer failure", ""),
        (tracer.messages_lost, "message", "lost"),
        (tracer.values_refused, "logged value", "not recorded or cut"),
    )
    for number, noun, verb in counted:
        if number:
            yield "Tracer", f"{count(number, noun)} {verb}".strip()
    if tracer.last_failure:
        yield "Last failure", cell(tracer.last_failure)
    for note in tracer.notes:
        yield "Note", cell(note)
