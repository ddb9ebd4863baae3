"""Non-finite loss: the loss became NaN or infinite.

*Meaning.* The loss that `backward()` was called on, or a logged loss (names with `loss`), was nan
or infinite. On the CPU every loss is read, and the step is exact. On a GPU a loss is read without
waiting for the device: as often as it arrives at first, then less and less often, down to ten
times a second, and the last one of the process always; the text says the two steps between which
it was lost. Under a `GradScaler` the loss is the one before scaling. A loss that stays so
to the end is critical and leads, unless something else ended the run; where it recovered, or has
recovered from as long a stretch before, it is a warning. A logged gradient norm (`grad_norm`) that
was not finite while the loss stayed finite is a remark about the norm: a GradScaler that looks for
its scale makes such gradients and skips their steps. Where no loss is known, a norm that is not
finite to the end warns.

*Evidence.* `name`, `first_step` (of the last stretch, if the values end in it; else the first one
lost), `earliest_step`, `last_finite_step` (the loss was lost after it), `numbering` (`counted`:
steps as the tracer counts them; `logged`: as the script numbered them, "logged step" in the text;
the two are never compared), `values`, `values_not_finite`, `last_finite` (the value at that
step), `gradient_norm_before` and `gradient_norm_usual` where a logged norm had risen before it
was lost too; `loss_usual` where the loss itself had grown. With the deep profile also the first
value that was not finite: `bad_layer`, `bad_layer_or` (what is as likely to have made it),
`bad_phase` (`forward`: the layer returned it; `backward`: its gradient was lost while the loss was
finite; `optimizer`: its parameters were lost after the step, and no gradient that was not finite is
known; `start`: they were not finite before the first step), `bad_step`, `bad_after_step`.

*Thresholds.* One value. A norm has risen when one of the last 3 was 3 times its median; a loss has
grown when the last finite one was 1,000 times the median before it. Then training diverged, and the
layer in which a number first became too large is no cause of it.

*What to do.* Lost within the first 10 steps: look at the data, the initialisation and the
learning rate. Later: resume from a checkpoint of the last finite step or earlier with a lower
learning rate and clipped gradients. In float16, try bfloat16;
`torch.autograd.set_detect_anomaly(True)` finds an operation whose backward pass returns NaN; of an
infinite loss, and of a NaN that the forward pass made, it says nothing. `--profile=deep` names the
layer, or says that none is known to have made it.

*Silent* when no loss was seen or logged.
"""

from __future__ import annotations

from dataclasses import replace

from traceml.diagnose import settings_advice
from traceml.diagnose.failure_words import (
    ANOMALY,
    bad_value_advice,
    bad_value_evidence,
    bad_value_sentence,
    step_name,
)
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.gradients import BadValue
from traceml.facts.losses import LossFacts, NotFinite
from traceml.facts.stability import Failure
from traceml.model.evidence import Evidence, as_number, as_words
from traceml.model.finding import Finding, Kind, Section, Severity, StepSpan
from traceml.model.quantities import count, significant
from traceml.model.settings import Settings

KIND = Kind.NON_FINITE_LOSS

DIVERGED = (
    "Training diverged: lower the learning rate or warm it up, and clip the gradient norm; start "
    "again, or resume from a checkpoint of before the loss grew."
)
FIRST_STEPS = 10  # a loss that is lost this early was never right: no checkpoint helps


def check(facts: Facts) -> Finding | None:
    """Fires when a loss was not finite; to the end of the run it is critical."""
    loss = facts.stability.loss
    if loss is None or loss.not_finite is None:
        return None
    lost = loss.not_finite
    bad = None if lost.is_norm or not lost.to_the_end else _bad_value(facts, lost)
    claim = _norms_claim(loss, lost) if lost.is_norm else _claim(lost)
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=_severity(loss, lost, facts.stability.failure),
        claim=claim if bad is None else f"{claim} {bad_value_sentence(bad)}",
        action=_norms_action(facts.settings)
        if lost.is_norm
        else _action(lost, facts.settings, bad),
        ranks=lost.ranks,
        steps=_steps(lost),
        evidence=Evidence(
            as_words("name", lost.name),
            as_number("first_step", lost.first_step),
            as_number("earliest_step", lost.earliest_step),
            as_words("numbering", "logged" if lost.is_logged else "counted"),
            as_number("values", lost.values),
            as_number("values_not_finite", lost.count),
            as_number("last_finite", lost.last_finite),
            as_number("last_finite_step", lost.finite_step),
            as_number("loss_usual", lost.usual),
            as_number("gradient_norm_usual", lost.norm_usual),
            as_number("gradient_norm_before", lost.norm_before),
            *bad_value_evidence(bad),
        ),
    )


def _bad_value(facts: Facts, lost: NotFinite) -> BadValue | None:
    """Returns the first bad value. Where training had diverged and only parameters were seen, it is
    no layer's: which of them are spoiled says how far a gradient got, not who made it."""
    bad = facts.layers.gradients.bad_value
    if bad is not None and bad.is_of_parameters and lost.usual is not None:
        return replace(bad, layer=None, kind=None)
    return bad


def _steps(lost: NotFinite) -> StepSpan | None:
    """Returns the steps; `None` where only the script's own numbers of them are known."""
    if lost.is_logged:
        return None
    return StepSpan(lost.first_step) if lost.to_the_end else StepSpan.at(lost.first_step)


def _severity(loss: LossFacts, lost: NotFinite, failure: Failure | None) -> Severity:
    if lost.is_norm:
        return Severity.WARNING if lost.lasts and not loss.values else Severity.INFO
    # What ended the run is told first; a run that somebody stopped did not end by itself.
    leads = lost.lasts and (failure is None or failure.kind is Kind.KILLED)
    return Severity.CRITICAL if leads else Severity.WARNING


def _claim(lost: NotFinite) -> str:
    times = count(lost.count, "value")
    if not lost.to_the_end:
        return f"{lost.name} was NaN or infinite {_when(lost)}; it recovered ({times} in all)."
    if _is_known_exactly(lost):
        claim = f"{lost.name} is NaN or infinite {_when(lost)}."
    else:
        claim = f"{lost.name} became NaN or infinite {_when(lost)}, and stayed so."
    if lost.earliest_step != lost.first_step:
        earliest = step_name(lost.earliest_step, lost.is_logged)
        claim += f" It had been so earlier, first at {earliest}, and recovered ({times} in all)."
    if lost.usual is not None:
        claim += f" It had grown first: it was usually {significant(lost.usual)}."
    if lost.norm_before is not None:
        claim += (
            f" The gradient norm had risen first: {significant(lost.norm_before)} against a usual "
            f"{significant(lost.norm_usual)}."
        )
    return claim


def _is_known_exactly(lost: NotFinite) -> bool:
    """Returns whether the loss of the step before is known, or there is no step before."""
    return lost.finite_step is None or lost.finite_step >= lost.first_step - 1


def _when(lost: NotFinite) -> str:
    """Returns the first non-finite step, or the two steps between which the loss became
    non-finite."""
    step = step_name(lost.first_step, lost.is_logged)
    value = significant(lost.last_finite)
    if lost.finite_step is None:
        if lost.to_the_end:
            return f"from {step} on: no finite value was seen before"
        return f"at {step}"
    if _is_known_exactly(lost):
        place = f"from {step} on" if lost.to_the_end else f"at {step}"
        return f"{place} (it was {value} before)"
    return f"between {step_name(lost.finite_step, lost.is_logged)} ({value}) and {step}"


def _norms_claim(loss: LossFacts, lost: NotFinite) -> str:
    step = step_name(lost.first_step, lost.is_logged)
    if lost.to_the_end:
        claim = f"The gradient norm {lost.name} is NaN or infinite from {step} on"
    else:
        claim = (
            f"The gradient norm {lost.name} was NaN or infinite in {lost.count:,} of "
            f"{count(lost.values, 'value')}, first at {step}"
        )
    return f"{claim}; the loss stayed finite." if loss.values else f"{claim}."


def _norms_action(settings: Settings) -> str:
    clip = settings_advice.listed(("clip gradients", _wider_range(settings)), "or")
    if settings.has_grad_scaler is False:
        return f"{clip[0].upper()}{clip[1:]}; lower the learning rate if they keep coming."
    return (
        "Nothing to do while a GradScaler looks for its scale: it skips such steps. If they go on "
        f"coming, {clip}."
    )


def _wider_range(settings: Settings) -> str:
    """Recommends bfloat16, which has float32's range; only float16 overflows."""
    overflows = settings_advice.is_float16(settings)
    if overflows is None:
        return "use bf16 where fp16 is used"
    return "use bf16 instead of fp16" if overflows else ""


def _action(lost: NotFinite, settings: Settings, bad: BadValue | None) -> str:
    if not lost.to_the_end:
        return "Clip gradients, or skip such batches; look at the batch of that step."
    half = settings_advice.against_overflow(settings)
    if lost.usual is not None:
        return DIVERGED
    advice = None if bad is None else bad_value_advice(bad, half)
    if bad is not None and advice is not None:
        return advice if bad.phase == "start" else f"{advice} Resume from a checkpoint before it."
    if lost.finite_step is None or (lost.first_step <= FIRST_STEPS and not lost.is_logged):
        return (
            "It happened in the first steps: look for NaN or infinite values in the data, at the "
            "initialisation, and at a learning rate that is too high or has no warm-up"
            f"{half}. {ANOMALY}"
        )
    before = step_name(lost.finite_step, lost.is_logged)
    if lost.norm_before is not None:
        return (
            "Clip the gradient norm near its usual value and lower the learning rate; go on from "
            f"a checkpoint of {before} or earlier."
        )
    return (
        f"Resume from a checkpoint of {before} or earlier with a lower learning rate and clipped "
        f"gradients{half}. {ANOMALY}"
    )


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    doc=Doc(
        "info, warn, crit",
        "the loss was NaN or infinite; a gradient norm alone is a remark",
        __doc__,
        symptoms=(Symptom.LOSS,),
    ),
)
