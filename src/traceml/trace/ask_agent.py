"""Asks the agent, from inside the training process, for the summary of the run so far.

Only the standard library is used: the script's interpreter may not have our packages.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from traceml.model.environment import RUN_FOLDER
from traceml.model.tracker import DIAGNOSIS, NEXT, VERDICT
from traceml.trace.interruptions import is_interruption

PATIENCE_S = 5.0
POLL_S = 0.02

_SUMMARY, _NUMBERS = "final_summary.json", "summary-answer.json"  # as `store.folder` names them


def final_summary() -> dict[str, Any]:
    """Returns the whole summary of the run so far; `{}` when tracing is off or no agent answers."""
    return _asked_for(_SUMMARY)


def summary() -> dict[str, float]:
    """Returns the run's main numbers as a flat dict, for a tracker; `{}` as for `final_summary`."""
    return _asked_for(_NUMBERS)


def end_values() -> dict[str, float | str]:
    """Returns the main numbers with verdict, diagnosis and what to do next, as a tracker gets them
    at the end; `{}` as for `final_summary`."""
    numbers, whole = _answers(_NUMBERS, _SUMMARY) or ({}, {})
    found = whole.get("primary_diagnosis") or {}
    named = {VERDICT: "status", DIAGNOSIS: "summary", NEXT: "action"}
    return {**numbers, **{name: found[key] for name, key in named.items() if found.get(key)}}


def _asked_for(name: str) -> dict[str, Any]:
    answers = _answers(name)
    return answers[0] if answers else {}


def _answers(*names: str) -> list[dict[str, Any]]:
    """Writes a request for the agent, waits for its answers, and returns these files' contents;
    empty where there is no answer."""
    where = os.environ.get(RUN_FOLDER)
    if not where:
        return []
    folder = Path(where)
    request = folder / f"summary-request-{os.getpid()}-{time.monotonic_ns()}"
    try:
        request.touch(exist_ok=False)
        if not _is_answered(request):
            return []
        return [json.loads((folder / name).read_bytes()) for name in names]
    except (OSError, ValueError) as error:
        if is_interruption(error):
            raise
        return []  # a full disk, or the run folder is gone


def _is_answered(request: Path) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while request.exists():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            request.unlink(missing_ok=True)
            return False
        time.sleep(min(POLL_S, left_s))
    return True
