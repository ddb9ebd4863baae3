"""Metric values by segment or class, as a script logs them: `{"accuracy": {"cat": 0.9}}`.

Each segment becomes a metric of its own name (`accuracy[cat]`); what cannot be one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from traceml.model.metric_segments import MAX_SEGMENT, cut_name, segment_name

if TYPE_CHECKING:
    from traceml.trace.session import Session

_VERB = "log_metrics"


class SegmentNames:
    """Names the values of segments."""

    def __init__(
        self, session: Session, refuse: Callable[[str, str], None], max_chars: int
    ) -> None:
        """`refuse` takes the function that the script called, and why a value is not kept;
        `max_chars` is how long a name may be, with that of the segment."""
        self._refuse = refuse
        self._max_chars = max_chars - MAX_SEGMENT - 2
        # The segments are objects of the script's, which may raise anything when they are read.
        self._added = session.guard(self._add, any_thread=True, failed=lambda error: None)

    def add(self, found: dict[str, Any], metric: str, values: Mapping[Any, Any]) -> None:
        """Add a metric's values by segment to `found`, each under the segment's own name."""
        if self._added(found, metric, values) is None:
            self._refuse(_VERB, f"'{metric}' was not recorded: its segments cannot be read")

    def _add(self, found: dict[str, Any], metric: str, values: Mapping[Any, Any]) -> bool:
        whole = cut_name(metric, self._max_chars)
        for segment, value in values.items():
            text = "" if segment is None else str(segment)
            name = segment_name(whole, text)
            if not text.strip():
                self._refuse(_VERB, f"'{metric}' was not recorded: a segment has no name")
            elif isinstance(value, Mapping):
                self._refuse(
                    _VERB,
                    f"'{name}' was not recorded: segments hold numbers and no further dict; name "
                    f"the metric '{metric}/…'",
                )
            elif name in found:
                self._refuse(
                    _VERB, f"'{name}' was recorded once of several: two segments are written alike"
                )
            else:
                found[name] = value
        return True
