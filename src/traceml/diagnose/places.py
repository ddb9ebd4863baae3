"""Says in words where a run failed; the rules of the stability section share them."""

from __future__ import annotations

import signal

from traceml.facts.stability import Failure
from traceml.model.failure import FailureReport
from traceml.model.finding import Evidence
from traceml.model.phase import Phase

LONGEST_MESSAGE = 300


def who(failure: Failure) -> str:
    """The rank, as a sentence begins."""
    return "The training process" if failure.rank is None else f"Rank {failure.rank}"


def place(failure: Failure) -> str:
    """Where it was: step, phase, module."""
    report = failure.report
    parts = [f" at step {failure.step:,}" if failure.step is not None else ""]
    if report is not None:
        parts.append(f" in {report.phase}" if report.phase else "")
        parts.append(f", module {report.module}" if report.module else "")
        parts.append(f", DataLoader worker {report.worker}" if report.worker is not None else "")
    return "".join(parts)


def numbered(step: int, is_logged: bool) -> str:
    """A step, and whose number it is: a script may number its steps as it likes."""
    return f"logged step {step:,}" if is_logged else f"step {step:,}"


def words(report: FailureReport) -> str:
    """The exception, on one line."""
    text = " ".join(report.message.split())
    if len(text) > LONGEST_MESSAGE:
        text = text[: LONGEST_MESSAGE - 1] + "…"
    return f"{report.error}: {text}" if text else report.error


def phase_of(report: FailureReport | None) -> Phase | None:
    """The phase, where it is one of a step's."""
    if report is None or report.phase is None:
        return None
    return next((phase for phase in Phase if phase.value == report.phase), None)


def signal_name(number: int) -> str:
    """What people call a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ranks_of(failure: Failure) -> tuple[int, ...]:
    """The rank it is about, if it is known."""
    return () if failure.rank is None else (failure.rank,)


def evidence_of(failure: Failure) -> Evidence:
    """What every failure says about itself."""
    report = failure.report
    return {
        "rank": failure.rank,
        "step": failure.step,
        "phase": None if report is None else report.phase,
        "module": None if report is None else report.module,
        "error": None if report is None else report.error,
        "where": None if report is None else report.where,
        "ranks_that_followed": ", ".join(map(str, failure.followers)) or None,
    }
