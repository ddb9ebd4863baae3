"""The live state as a record, with the names of `live.json` and `live.jsonl`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from traceml.store.json_lines import UNDECODABLE, holds_huge_number
from traceml.summaries.record import Issue, Summary


class LiveIssue(Issue, frozen=True):
    """A finding that is shown while the run is in progress."""

    section: str | None = None


class LiveState(Struct, frozen=True):
    """What is shown of a run in progress."""

    unix_s: float
    step: int | None
    """The last step that the findings cover."""
    findings: tuple[LiveIssue, ...]
    """By section, the leading one first."""
    summary: Summary
    """A summary of the last steps, with these findings as its issues."""


class LiveChange(Struct, frozen=True):
    """A finding that has become the leading one of its section."""

    unix_s: float
    step: int | None
    section: str
    kind: str
    severity: str
    since_step: int
    ranks: tuple[int, ...]
    summary: str
    action: str


_DECODER = msgspec.json.Decoder(LiveState)


def read_live(content: bytes) -> LiveState | None:
    """Returns the content of a `live.json`; `None` where it is damaged or of another version."""
    try:
        return None if holds_huge_number(content) else _DECODER.decode(content)
    except UNDECODABLE:
        return None
