"""Writes the tables of metrics of `docs/summary.md` and `docs/reference.md` from the catalogues.

    make docs

The text around them is written by hand in the pages; what stands between the marks is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from write_diagnoses import between_marks

from traceml.compare.terms import ENDPOINTS, Endpoint
from traceml.model.finding import Section
from traceml.model.metric import BY_KEY, METRICS, in_summary
from traceml.model.phase import Phase

FOLDER = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Each page with its tables written anew."""
    summary, reference, comparison = (
        FOLDER / name for name in ("summary.md", "reference.md", "comparison.md")
    )
    written = {path: path.read_text() for path in (summary, reference, comparison)}
    for section in Section:
        if metrics := in_summary(section):
            rows = table("metric", ((metric.key, metric.doc) for metric in metrics))
            name = f"metrics of {section.value}"
            written[summary] = between_marks(written[summary], name, rows)
    phases = f"Phases: {', '.join(f'`{phase.value}`' for phase in Phase)}."
    written[summary] = between_marks(written[summary], "phases", phases)
    words = table(
        "--metric", ((word, judged_by(each)) for word, each in ENDPOINTS.items()), "judges by"
    )
    written[reference] = between_marks(written[reference], "words of --metric", words)
    further = ((metric.key, metric.doc) for metric in METRICS if not metric.is_in_summary)
    derived = table("metric", further)
    written[comparison] = between_marks(written[comparison], "metrics of comparisons", derived)
    return written


def table(title: str, rows: Iterable[tuple[str, str]], holds: str = "meaning") -> str:
    """Two columns, the first in code marks; `title` is one where it is an option."""
    head = f"`{title}`" if title.startswith("--") else title
    lines = [f"| {head} | {holds} |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | {said} |" for name, said in rows)])


def judged_by(endpoint: Endpoint) -> str:
    """What the first of an endpoint's metrics is, and what is taken where that was not measured."""
    first, *others = (BY_KEY[endpoint.section, key] for key in endpoint.metrics)
    parts = [first.doc, *(f"else `{metric.key}`" for metric in others)]
    return "; ".join([*parts, "more is better"] if endpoint.more_is_better else parts)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
