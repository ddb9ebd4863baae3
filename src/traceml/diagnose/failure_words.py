"""Words about where and how a run failed, shared by the rules of the stability section."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from traceml.facts.attempts import Attempt
from traceml.facts.gradients import BadValue
from traceml.facts.stability import Failure
from traceml.model.evidence import Piece, as_number, as_words
from traceml.model.failure import Death, FailureReport
from traceml.model.finding import Kind
from traceml.model.phase import Phase
from traceml.model.printable import one_line
from traceml.model.quantities import count

MAX_MESSAGE_CHARS = 300
MAX_REASON_CHARS = 100
"""Of an exception, in the list of a run's attempts."""
MAX_RANKS = 8
"""Ranks that one sentence lists."""


def failed_ranks(failure: Failure) -> str:
    """Returns the rank, or all ranks that failed alike, as the subject of a sentence."""
    if failure.rank is None:
        report = failure.report
        is_helper = report is not None and report.started_by is not None
        return "A Python process that the script started" if is_helper else "The script"
    if not failure.alike:
        return f"Rank {failure.rank}"
    all_of_them = sorted((failure.rank, *failure.alike))
    return f"Ranks {rank_list(all_of_them)} {'both' if len(all_of_them) == 2 else 'all'}"


def rank_list(ranks: Sequence[int]) -> str:
    """Returns ranks as a list in words: `0, 1 and 5`; if there are very many, the first few."""
    if len(ranks) > MAX_RANKS:
        shown = ", ".join(map(str, ranks[:MAX_RANKS]))
        return f"{shown} and {len(ranks) - MAX_RANKS:,} more"
    *before, last = map(str, ranks)
    return f"{', '.join(before)} and {last}" if before else last


def failure_place(failure: Failure) -> str:
    """Returns where the run failed: step, phase, module."""
    report = failure.report
    parts = [f" at step {failure.step:,}" if failure.step is not None else ""]
    if failure.steps_since_start is not None:
        parts.append(f" (step {failure.steps_since_start:,} since it was started again)")
    is_part_of_training = failure.rank is not None or report is None or report.started_by is None
    if failure.is_before_training and is_part_of_training:
        parts = [" before its first training step"]
    if report is not None:
        parts.append(f" in {report.phase}" if report.phase else "")
        parts.append(f", module {report.module}" if report.module else "")
        parts.append(f", DataLoader worker {report.worker}" if report.worker is not None else "")
    return "".join(parts)


def attempt_reason(attempt: Attempt) -> str | None:
    """Returns why an attempt of a run ended, in a few words; `None` where it ended well."""
    reason, after = _ended_by(attempt.failure, attempt.first_to_leave), attempt.next_world_size
    if after is None or after == attempt.world_size:
        return reason
    change = f"with {count(after, 'rank')} instead of {count(attempt.world_size)}"
    if reason is None or attempt.is_regrouped:
        return f"its launcher stopped it, to go on {change}"
    return f"{reason}; went on {change}"


def _ended_by(failure: Failure | None, first_to_leave: Death | None) -> str | None:
    if failure is None:
        if first_to_leave is None:
            return None
        return f"rank {first_to_leave.rank}: left with exit status {first_to_leave.status}"
    who = "the ranks" if failure.rank is None else f"rank {failure.rank}"
    if failure.kind is Kind.HANG:
        culprit = failure.culprits[0] if failure.culprits else None
        at = f" at {culprit.where}" if culprit is not None and culprit.where else ""
        return f"hang: {who} made no progress{at}"
    report = failure.report
    if report is not None:
        at = f" at {report.where}" if report.where else ""
        memory = "out of memory, " if failure.kind is Kind.OUT_OF_MEMORY else ""
        said = one_line(f"{report.error}: {report.message}", MAX_REASON_CHARS)
        return f"{who}: {memory}{said}{at}"
    if failure.signal is not None:
        return f"{who}: killed by {signal_name(failure.signal)}"
    if failure.status is not None:
        return f"{who}: ended with status {failure.status}"
    return f"{who}: ended, and nobody saw how"  # no parent of it is ours


def step_name(step: int, is_logged: bool) -> str:
    """Returns a step's number, marked as logged if the script numbered it."""
    return f"logged step {step:,}" if is_logged else f"step {step:,}"


def exception_text(report: FailureReport) -> str:
    """Returns the exception as a sentence on one line, shortened."""
    text = one_line(report.message, MAX_MESSAGE_CHARS)
    said = f"{report.error}: {text}" if text else report.error
    return said if said.endswith((".", "…", "!", "?")) else f"{said}."


def phase_of(report: FailureReport | None) -> Phase | None:
    """Returns the phase of the step in which it failed; `None` outside the phases."""
    if report is None or report.phase is None:
        return None
    return next((phase for phase in Phase if phase.value == report.phase), None)


def signal_name(number: int) -> str:
    """Returns a signal's name: `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ranks_of(failure: Failure) -> tuple[int, ...]:
    """Returns the ranks that failed, the first to fail first; empty where not known."""
    return () if failure.rank is None else (failure.rank, *failure.alike)


def evidence_of(failure: Failure) -> tuple[Piece, ...]:
    """Returns the evidence that every failure has."""
    report = failure.report
    return (
        as_number("rank", failure.rank),
        as_number("step", failure.step),
        as_words("phase", None if report is None else report.phase),
        as_words("module", None if report is None else report.module),
        as_words("error", None if report is None else report.error),
        as_words("where", None if report is None else report.where),
        as_words("ranks_alike", ", ".join(map(str, failure.alike)) or None),
        as_words("ranks_that_followed", ", ".join(map(str, failure.followers)) or None),
    )


# The first value that was not finite


def layer_words(name: str) -> str:
    """Returns a layer's name as a sentence names it."""
    return f"layer {name}" if name else "the model itself"


def bad_value_sentence(bad: BadValue) -> str:
    """Returns where the first value was that was not finite."""
    when = f"step {bad.step:,}"
    if bad.finite_step is not None and bad.finite_step < bad.step - 1:
        when = f"a step from {bad.finite_step + 1:,} to {bad.step:,}"
    if bad.is_of_inputs:
        return f"The batch of {when} already held a value that is not finite: no layer made it."
    if bad.layer is None:
        return (
            f"Every layer's gradient was not finite from {when} on: the forward pass or the loss "
            "was not, in a layer that was not looked at."
        )
    layer = layer_words(bad.layer)
    kind = f" ({bad.kind})" if bad.kind else ""
    if bad.phase == "forward":
        said = f"{layer}{kind} was the first to return a value that is not finite, in {when}."
        return said[0].upper() + said[1:]
    after = f", after that of {bad.finite_layer}, which was finite" if bad.finite_layer else ""
    return (
        f"The gradient was first not finite in the backward pass of {layer}{kind}"
        f", in {when}{after}."
    )


def bad_value_evidence(bad: BadValue | None) -> tuple[Piece, ...]:
    """Returns the first bad value as evidence; empty where none is known."""
    if bad is None:
        return ()
    return (
        as_number("bad_step", bad.step),
        as_words("bad_phase", bad.phase),
        as_words("bad_layer", bad.layer),
        as_number("bad_after_step", bad.finite_step),
    )
