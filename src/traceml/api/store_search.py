"""Lists and queries the runs of another tool's store as those of a logs folder are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from traceml.api.query_runs import RunQuery, Runs, search_table
from traceml.api.tracked_folder import metric_messages
from traceml.figures.run_columns import FACTS, metric_columns, storable
from traceml.model.run_values import RunValue
from traceml.model.tracked_run import TrackedRun
from traceml.store.logged import reduce_metrics
from traceml.store.run_sources import open_source
from traceml.store.run_table import table_of
from traceml.summaries.live_record import metric_summaries

Progress = Callable[[int, int | None], None]
"""Is told how many runs have been read, of how many; `None`: that is not known."""


def search_store(
    word: str, query: RunQuery, experiments: Sequence[str] = (), progress: Progress | None = None
) -> Runs:
    """Returns the runs of a store that a query asks for.

    What TraceML measures is missing from runs that it never saw. Raises UsageError where the store
    cannot be read, and QueryError where the query is wrong.
    """
    source = open_source(word, experiments)
    notes: list[str] = []

    def rows() -> Iterator[tuple[str, dict[str, RunValue]]]:
        for number, run in enumerate(source.list_runs(), start=1):
            notes.extend(f"{run.name}: {note}" for note in run.notes)
            yield run.name, stored_values(run)
            if progress is not None:
                progress(number, None)

    return search_table(table_of(rows(), notes), query)


def stored_values(run: TrackedRun) -> dict[str, RunValue]:
    """Returns all that is known of a run of another tool, by key of the run index; what is not
    known is left out."""
    known: dict[str, RunValue | None] = {
        "status": run.status,
        "started": run.started_unix_s,
        "duration_s": run.duration_s,
        **run.facts,
        "name": run.name,
        "run_id": run.run_id,
    }
    found: dict[str, RunValue] = {}
    for name in FACTS:  # in their order, and no others
        value = storable(known.get(name))
        if value is not None and value not in ("", ()):
            found[f"facts.{name}"] = value
    for name, param in run.params.items():
        if (kept := storable(param)) is not None:
            found[f"params.{name}"] = kept
    found.update({f"metrics.{name}": value for name, value in run.last_values.items()})
    if run.histories:
        for name, metric in metric_summaries(reduce_metrics(metric_messages(run))).items():
            found.update(metric_columns(name, metric))
        # The last value as it is: a summary has no NaN and no infinity.
        found.update({f"metrics.{name}": value for name, value in run.last_values.items()})
    found.update(run.statistics)
    return found
