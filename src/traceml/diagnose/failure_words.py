"""Words about where and how a run failed, shared by the rules of the stability section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from traceml.diagnose.nodes import listed_nodes
from traceml.facts.attempts import Attempt
from traceml.facts.gradients import BadValue, NamedLayer
from traceml.facts.lost_nodes import LostNode
from traceml.facts.stability import Failure
from traceml.model.evidence import Piece, as_number, as_words
from traceml.model.failure import Death, FailureReport
from traceml.model.finding import Kind, StepSpan
from traceml.model.phase import Phase
from traceml.model.printable import one_line
from traceml.model.quantities import count, significant
from traceml.model.run import end_words, signal_name

MAX_MESSAGE_CHARS = 300
MAX_REASON_CHARS = 100
"""Of an exception, in the list of a run's attempts."""
ANOMALY = (
    "torch.autograd.set_detect_anomaly(True) finds an operation whose backward pass returns NaN."
)
"""It says nothing of a forward pass, and nothing of infinity."""
MAX_RANKS = 8
"""Ranks that one sentence lists."""
LOSS = "the loss function"
MAX_KINDS = 4
"""Classes of layers that one sentence lists."""


def failed_ranks(failure: Failure, machines: Mapping[int, str]) -> str:
    """Returns the rank, or all ranks that failed alike, as the subject of a sentence; with their
    machine, where the run has several and they are on one."""
    if failure.rank is None:
        report = failure.report
        is_helper = report is not None and report.started_by is not None
        return "A Python process that the script started" if is_helper else "The script"
    all_of_them = sorted((failure.rank, *failure.alike))
    where = of_machine(all_of_them, machines)
    if not failure.alike:
        return f"Rank {failure.rank}{where}"
    return f"Ranks {rank_list(all_of_them)}{where} {'both' if len(all_of_them) == 2 else 'all'}"


def of_machine(ranks: Sequence[int], machines: Mapping[int, str]) -> str:
    """Returns ` of node-b` where all these ranks are on one machine of several; else nothing."""
    names = {machines.get(rank) for rank in ranks}
    name = next(iter(names)) if len(names) == 1 else None
    return f" of {name}" if name else ""


def lost_machines(lost: Sequence[LostNode]) -> str:
    """Returns machines that were lost: `machine node-c`."""
    return f"machine{'' if len(lost) == 1 else 's'} {listed_nodes([each.name for each in lost])}"


def lost_ranks(lost: Sequence[LostNode]) -> str:
    """Returns the ranks that were lost with machines: `rank 2`, `ranks 8–15`."""
    ranks = sorted(rank for each in lost for rank in each.ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    is_row = ranks[-1] - ranks[0] + 1 == len(ranks) > 2
    return f"ranks {f'{ranks[0]}–{ranks[-1]}' if is_row else rank_list(ranks)}"


def clock_time(unix_s: float) -> str:
    """Returns a moment as clocks show it, in UTC."""
    return f"{datetime.fromtimestamp(unix_s, tz=timezone.utc):%H:%M:%S} UTC"


def rank_list(ranks: Sequence[int]) -> str:
    """Returns ranks as a list in words: `0, 1 and 5`; if there are very many, the first few."""
    if len(ranks) > MAX_RANKS:
        shown = ", ".join(map(str, ranks[:MAX_RANKS]))
        return f"{shown} and {len(ranks) - MAX_RANKS:,} more"
    *before, last = map(str, ranks)
    return f"{', '.join(before)} and {last}" if before else last


def steps_of(failure: Failure) -> StepSpan | None:
    """Returns the step in which a run failed; `None` where that was in no step."""
    if failure.step is None or failure.is_before_training:
        return None
    return StepSpan.at(failure.step)


def failure_place(failure: Failure) -> str:
    """Returns where the run failed: step, phase, module."""
    report = failure.report
    parts = [f" at step {failure.step:,}" if failure.step is not None else ""]
    if failure.steps_since_start is not None:
        parts.append(f" (step {failure.steps_since_start:,} since it was started again)")
    is_part_of_training = failure.rank is not None or report is None or report.started_by is None
    if failure.is_before_training and is_part_of_training:
        parts = [f" before {'their' if failure.alike else 'its'} first training step"]
    if report is not None:
        parts.append(f" in {report.phase}" if report.phase else "")
        parts.append(f", module {report.module}" if report.module else "")
        parts.append(f", DataLoader worker {report.worker}" if report.worker is not None else "")
    return "".join(parts)


def attempt_reason(attempt: Attempt) -> str | None:
    """Returns why an attempt of a run ended, in a few words; `None` where it ended well."""
    hosts = {each.rank.rank: each.rank.hostname for each in attempt.processes}
    machines = hosts if len(set(hosts.values())) > 1 else {}
    reason = _ended_by(attempt.failure, attempt.first_to_leave, machines)
    after = attempt.next_world_size
    if after is None or after == attempt.world_size:
        return reason
    change = f"with {count(after, 'rank')} instead of {count(attempt.world_size)}"
    if reason is None or attempt.is_regrouped:
        return f"its launcher stopped it, to go on {change}"
    return f"{reason}; went on {change}"


def _ended_by(
    failure: Failure | None, first_to_leave: Death | None, machines: Mapping[int, str]
) -> str | None:
    if failure is None:
        if first_to_leave is None:
            return None
        who = f"rank {first_to_leave.rank}{of_machine([first_to_leave.rank], machines)}"
        status = first_to_leave.status
        return f"{who}: ended" if status is None else f"{who}: {end_words(status)}"
    if failure.lost and failure.kind is Kind.KILLED:
        verb = "was" if len(failure.lost) == 1 else "were"
        return f"{listed_nodes([each.name for each in failure.lost])} {verb} lost"
    who = "the ranks"
    if failure.rank is not None:
        who = f"rank {failure.rank}{of_machine([failure.rank], machines)}"
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
        return f"{who}: {end_words(failure.status)}"
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
        return f"The batch of {when} already held NaN or infinite values: no layer made them."
    if bad.is_of_loss:
        return _loss_sentence(bad, when)
    if bad.phase in ("start", "optimizer") or bad.is_of_parameters:
        return _parameters_sentence(bad)
    if bad.grown_norm is not None:
        return (
            f"A gradient became NaN or infinite in {when}, when it had exploded already: that of "
            f"{layer_words(bad.finite_layer or '')}, which backward gets to earlier, was "
            f"{significant(bad.grown_norm)} against a usual {significant(bad.usual_norm)}."
        )
    if bad.layer is None and bad.phase == "backward":
        return (
            f"Every layer's gradient was NaN or infinite in {when}, although the loss was finite: "
            "it became so in the backward pass of the loss, or in that of the last layer."
        )
    if bad.layer is None:
        return (
            f"Every layer's gradient was NaN or infinite from {when} on: it became so in the "
            "forward pass, the loss or its backward pass, in a step whose activations were not "
            "measured."
        )
    suspects = _suspects(bad)
    if bad.phase == "forward":
        said = f"{suspects} was the first to return NaN or infinite values, in {when}."
        return said[0].upper() + said[1:]
    between = ", or between them," if bad.others else ","
    return (
        f"The gradient first became NaN or infinite in the backward pass of {suspects}{between} in "
        f"{when}{_after_finite(bad)}."
    )


def _loss_sentence(bad: BadValue, when: str) -> str:
    """Returns that a loss was not finite, and why no layer is named."""
    if bad.are_layers_finite:
        return (
            f"The loss of {when} was NaN or infinite, although every layer returned finite values: "
            "the loss function made it so."
        )
    if bad.is_packed:
        return (
            f"The loss of {when} was NaN or infinite; no layer is known to have caused it, because "
            "what layers save for backward is packed, as activation checkpointing and offloading "
            "do: any layer or the loss function may have."
        )
    return (
        f"The loss of {when} was NaN or infinite; no layer is known to have caused it: "
        "the loss function itself may have."
    )


def _after_finite(bad: BadValue) -> str:
    """Returns which layer's gradient was finite just before the first one that was not."""
    finite = bad.finite_layer
    if finite is None:
        return ""
    name = finite or layer_words(finite)
    if bad.layer == finite or finite in [each.name for each in bad.others]:
        return f": the gradient of the parameters of {name} was finite, that of the next was not"
    return f", after that of {name}, which was finite"


def _parameters_sentence(bad: BadValue) -> str:
    """Returns that parameters were not finite after a step, and what is known of its gradients."""
    whose = "" if bad.layer is None else f" of {_suspects(bad)}"
    if bad.phase == "start":
        return (
            f"Parameters{whose} were NaN or infinite before the first step: no step made them so."
        )
    said = f"Parameters{whose} were NaN or infinite after step {bad.step:,}"
    if bad.phase == "optimizer" and bad.is_of_parameters:
        return f"{said}; they have no gradient: code that writes to parameters made them so."
    if bad.phase == "optimizer":
        return (
            f"{said}, although every gradient of it was finite: the optimizer's update made them "
            "so, or code that writes to parameters."
        )
    if bad.layer is None:
        what = "a gradient or the update had become so"
        return f"{said}, whose gradients were not measured: {what}."
    return (
        f"Parameters were NaN or infinite after step {bad.step:,}, whose gradients were not "
        "measured. The layers of these parameters point to the backward pass of "
        f"{_suspects(bad)}, or to the update."
    )


def bad_value_advice(bad: BadValue, half: str) -> str | None:
    """Returns where to look for what made the first bad value; `None` where that is not known.

    `half` is a clause on 16 bits (`settings_advice.against_overflow`).
    """
    whose = "parameters" if bad.layer is None else layer_words(bad.layer)
    if bad.is_of_inputs:
        return (
            f"Look at the data of step {bad.step:,}: missing values, a division by a spread of "
            "zero when it is scaled, a decoder that fails. Check batches with torch.isfinite."
        )
    if bad.is_of_loss:
        return _loss_advice(bad, half)
    if bad.phase == "start":
        return (
            f"Look at what {whose} began with: the checkpoint or the weights that were loaded, and "
            f"the initialisation (torch.empty holds whatever was in memory){half}."
        )
    if bad.phase == "optimizer":
        return (
            f"Look at what changes {whose} after backward in step {bad.step:,}: the learning rate, "
            f"an eps of 0 (a division by zero), code that writes to parameters{half}."
        )
    if bad.grown_norm is not None:
        return (
            "Lower the learning rate or warm it up, and clip the gradient norm: no single layer "
            f"made the gradient explode, as far as was measured{half}."
        )
    if bad.phase == "backward" and bad.layer is None and not bad.is_of_parameters:
        return (
            f"Look at the loss of step {bad.step:,}: a root, a norm or a logarithm at zero has a "
            f"gradient that is not finite{half}."
        )
    if bad.layer is None:
        return None
    names = [bad.layer or layer_words(""), *_other_names(bad)]
    compute = f"{_listed(names, 'and')} compute{'s' if len(names) == 1 else ''}"
    between = ", what is computed between them," if bad.others and bad.phase == "backward" else ""
    return (
        f"Look at what {compute} in {bad.phase} (a division, a root or a logarithm near zero, an "
        f"exponential, a sum that overflows){between} and at the batch of that step{half}."
    )


def _loss_advice(bad: BadValue, half: str) -> str:
    """Returns where to look when only the loss is known to have been bad."""
    own = ""
    if bad.own_kinds:
        kinds = ", ".join(bad.own_kinds[:MAX_KINDS])
        more = ", …" if len(bad.own_kinds) > MAX_KINDS else ""
        own = f" and at what the script's own layers compute ({kinds}{more})"
    again = " A run without that packing may tell which layer it is." if bad.is_packed else ""
    targets = ", at its targets" if own else " and at its targets"
    return (
        f"Look at what the loss function computes in step {bad.step:,} (a logarithm or a "
        f"division at zero, an exponential, infinity times zero){targets}{own}{half}.{again}"
    )


def _suspects(bad: BadValue) -> str:
    """Returns the layers that may have made a bad value, with their classes."""
    named = [
        f"{layer_words(each.name)}{f' ({each.kind})' if each.kind else ''}"
        for each in (NamedLayer(bad.layer or "", bad.kind), *bad.others)
    ]
    return _listed([*named, LOSS] if bad.or_loss else named, "or")


def _other_names(bad: BadValue) -> list[str]:
    """Returns what is as likely to have made a bad value as the layer that is named first."""
    names = [each.name or layer_words("") for each in bad.others]
    return [*names, LOSS] if bad.or_loss else names


def _listed(words: Sequence[str], last: str) -> str:
    """Returns words as a list, with `and` or `or` before the last one."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def bad_value_evidence(bad: BadValue | None) -> tuple[Piece, ...]:
    """Returns the first bad value as evidence; empty where none is known."""
    if bad is None:
        return ()
    return (
        as_number("bad_step", bad.step),
        as_words("bad_phase", bad.phase),
        as_words("bad_layer", bad.layer),
        as_words("bad_layer_or", ", ".join(_other_names(bad)) or None),
        as_number("bad_after_step", bad.finite_step),
    )
