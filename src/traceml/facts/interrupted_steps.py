"""Steps of the deep profile that were interrupted, as by other programs that took the cores.

Few steps are looked at, so that a single one which took several times as long as usual would be
most of every mean, and its extra time would be charged to the layers that it happened to hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traceml.model.quantities import count
from traceml.store.layer_records import LayerRecords

INTERRUPTED = 3.0
"""Times as long as other steps that were looked at; batches of uneven length stay below."""
MAX_LEFT_OUT = 0.25
"""Of the steps that were looked at: what happens more often than that is how the run is."""


def without_interrupted(records: LayerRecords) -> LayerRecords:
    """Returns the records without the timed steps that were interrupted; as they are where that
    cannot be told, because several steps share a row or lengths are missing."""
    is_kept = ~_interrupted(records)
    if is_kept.all():
        return records

    def kept(values: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, npt.NDArray[np.float64]]:
        return {key: rows[is_kept] for key, rows in values.items()}

    return replace(
        records,
        steps=tuple(np.asarray(records.steps)[is_kept].tolist()),
        row_steps=records.row_steps[is_kept] if len(records.row_steps) else records.row_steps,
        took_ns=records.took_ns[is_kept],
        usual_ns=records.usual_ns[is_kept],
        given_elements=records.given_elements[is_kept]
        if len(records.given_elements)
        else records.given_elements,
        calls=records.calls[is_kept],
        times_ns=kept(records.times_ns),
        outside_ns=kept(records.outside_ns),
    )


def interrupted_note(
    timed: Sequence[LayerRecords], steady: Sequence[LayerRecords]
) -> tuple[str, ...]:
    """Returns a sentence about the timed steps that are left out of the steady ones; nothing where
    none is."""
    looked_at, kept = (sum(len(each.steps) for each in records) for records in (timed, steady))
    if kept == looked_at:
        return ()
    return (
        f"Left out of the layers' times: {looked_at - kept} of {count(looked_at, 'step')} looked "
        "at, which took over "
        f"{INTERRUPTED:.0f} times as long as the others, as when other programs take the cores.",
    )


def _interrupted(records: LayerRecords) -> npt.NDArray[np.bool_]:
    """Returns by row whether the step was interrupted."""
    none = np.zeros(len(records.steps), np.bool_)
    is_single = not len(records.row_steps) or bool((records.row_steps == 1).all())
    is_known = len(records.took_ns) == len(none) and bool(
        (np.isfinite(records.took_ns) & (records.usual_ns > 0)).all()
    )
    if not len(none) or not is_single or not is_known:
        return none
    ratios = records.took_ns / records.usual_ns
    # Looking makes every step longer, by the same factor or nearly so.
    found: npt.NDArray[np.bool_] = ratios > INTERRUPTED * max(1.0, float(np.median(ratios)))
    return found if found.sum() <= MAX_LEFT_OUT * len(found) else none
