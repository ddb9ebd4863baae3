"""Writes what the pages in `docs/` say of phases, metrics and the record record_layout, from those.

    make docs

The text around them is written by hand in the pages; what stands between the marks is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from write_diagnoses import between_marks

from traceml.compare.terms import ENDPOINTS, Endpoint
from traceml.figures.run_columns import FACTS
from traceml.model import record_layout
from traceml.model.exported_metric import BY_NAME
from traceml.model.finding import Section
from traceml.model.metric import BY_KEY, METRICS, Metric, in_summary
from traceml.model.phase import Phase
from traceml.model.run_time import RUN_PARTS

FOLDER = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Each page with its generated parts written anew."""
    return {
        FOLDER / name: _page((FOLDER / name).read_text(), parts)
        for name, parts in (
            ("summary.md", _of_summary()),
            ("reference.md", _of_reference()),
            ("comparison.md", _of_comparison()),
            ("monitoring.md", _of_monitoring()),
        )
    }


def _page(text: str, parts: dict[str, str]) -> str:
    for name, part in parts.items():
        text = between_marks(text, name, part)
    return text


def _of_summary() -> dict[str, str]:
    metrics = {section: in_summary(section) for section in Section}
    return {
        "run parts": table(
            "part", "meaning", ((part.value, each.doc) for part, each in RUN_PARTS.items())
        ),
        "phases": f"Phases: {', '.join(f'`{phase.value}`' for phase in Phase)}.",
        **{
            f"metrics of {section.value}": table("metric", "meaning", _documented(found))
            for section, found in metrics.items()
            if found
        },
    }


def _of_reference() -> dict[str, str]:
    words = ((word, judged_by(endpoint)) for word, endpoint in ENDPOINTS.items())
    head, step, block = (
        record_layout.step_slots_offset(64),
        record_layout.STEP_BYTES,
        record_layout.BLOCK_BYTES,
    )
    return {
        "words of --metric": table("`--metric`", "judges by", words),
        "sizes of records": f"A `.steps` file is a head of {head:,} bytes and step records of "
        f"{step:,} bytes behind it; a `.blocks` file\nholds records of {block:,} bytes.",
        "facts of runs": table("fact", "what it is", own_facts()),
        "versions of the record format": table("version", "brought", record_layout.HISTORY.items()),
    }


def own_facts() -> Iterator[tuple[str, str]]:
    """The facts of runs that are no metrics of a summary's section."""
    measured = {metric.key for metric in METRICS}
    return ((fact.name, fact.doc) for fact in FACTS.values() if fact.name not in measured)


def _of_comparison() -> dict[str, str]:
    further = [metric for metric in METRICS if not metric.is_in_summary]
    return {"metrics of comparisons": table("metric", "meaning", _documented(further))}


def _of_monitoring() -> dict[str, str]:
    rows = (
        f"| `{metric.name}` | `{metric.unit}` | `{metric.prometheus_name}` "
        f"| {', '.join(f'`{label}`' for label in metric.labels)} | {metric.doc} |"
        for metric in BY_NAME.values()
    )
    head = ["| OpenTelemetry | unit | Prometheus | labels | meaning |", "| --- " * 5 + "|"]
    return {"exported metrics": "\n".join([*head, *rows])}


def _documented(metrics: Iterable[Metric]) -> Iterator[tuple[str, str]]:
    return ((metric.key, metric.doc) for metric in metrics)


def table(named: str, said: str, rows: Iterable[tuple[str | int, str]]) -> str:
    """Two columns, names in code marks."""
    head = [f"| {named} | {said} |", "| --- | --- |"]
    lines = (
        f"| {f'`{name}`' if isinstance(name, str) else name} | {text} |" for name, text in rows
    )
    return "\n".join([*head, *lines])


def judged_by(endpoint: Endpoint) -> str:
    """What the first of an endpoint's metrics is, and what is taken where that was not measured."""
    first, *others = (BY_KEY[endpoint.section, key] for key in endpoint.metrics)
    parts = [first.doc, *(f"else `{metric.key}`" for metric in others)]
    return "; ".join([*parts, "more is better"] if endpoint.more_is_better else parts)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
