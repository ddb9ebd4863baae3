"""The steps that were recorded with torch's profiler, and how they were chosen, in words."""

from __future__ import annotations

from traceml.model.quantities import count, memory, milliseconds
from traceml.summaries.step_traces import VIEWER, KinetoSummary, StepTraceSummary

MAX_NAMED = 4
"""Steps that a sentence names."""
MAX_FILES = 8
"""Files that the text lists; the summary has all of them."""
OPEN_WORDS = (
    f"Open a file at {VIEWER}: the browser reads it and sends it nowhere. "
    "Chrome's own chrome://tracing opens it too."
)


def choice_words(found: KinetoSummary) -> list[str]:
    """Returns how the kept steps were chosen and how they stand among all steps, as sentences."""
    typical = [each for each in found.traces if each.chosen_as != "worst"]
    worst = [each for each in found.traces if each.chosen_as == "worst"]
    usual = f", the median of the others {milliseconds(found.median_ms)}"
    said = []
    if typical:
        said.append(f"Typical: {_named(typical)}{usual if found.median_ms is not None else ''}.")
    if worst:
        many = count(found.recorded)
        said.append(f"Worst of the {many} recorded: {_named(worst)}.")
    if found.traces and found.slowest_step is not None:
        said.append(
            f"The slowest step that was not recorded is {count(found.slowest_step)}, "
            f"{milliseconds(found.slowest_ms)}."
        )
    if not found.traces:
        said.append(f"No trace was kept of the {count(found.asked, 'step')} asked for.")
    if found.recorded:
        said.append(_cost_words(found))
    return said


def _cost_words(found: KinetoSummary) -> str:
    """Returns what recording took, and that it makes steps longer."""
    took = f"Recording took {milliseconds(found.cost_ms)} from training"
    longer = ""
    if found.recorded_median_ms is not None:
        longer = f"; a recorded step takes {milliseconds(found.recorded_median_ms)} (median)"
    return f"{took}{longer}; recorded steps and their neighbours are in no mean."


def _named(traces: list[StepTraceSummary]) -> str:
    has_ranks = len({each.rank for each in traces}) > 1
    said = [
        f"step {count(each.step)}"
        + (f" of rank {each.rank}" if has_ranks else "")
        + f", {milliseconds(each.time_ms)}"
        for each in traces[:MAX_NAMED]
    ]
    hidden = len(traces) - MAX_NAMED
    return "; ".join([*said, f"and {count(hidden)} more"] if hidden > 0 else said)


def file_words(found: KinetoSummary) -> list[str]:
    """Returns the kept files with their sizes, one each; what does not fit is counted."""
    listed = [f"{each.file} ({memory(each.size_bytes)})" for each in found.traces[:MAX_FILES]]
    hidden = len(found.traces) - MAX_FILES
    return [*listed, f"and {count(hidden, 'more file')}"] if hidden > 0 else listed
