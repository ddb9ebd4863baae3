"""Exploding gradients: the gradient norm grew far above what it had been, and did not come back.

*Meaning.* The deep profile measures the gradient norm of each layer after backward and before
clipping, as often as its cost allows. The norm of the whole model (of a pipeline, of one rank's
stage) passed 100 times the lowest median of 8 norms before it and 10 times that of the first 8, and
from there to the end, or until it was no longer finite, it never fell below 10 times the usual and
was 100 times that in the geometric mean. The layer is the one whose own norm passed 10 times its
usual first; of those above 3 times theirs in that step, the one that backward reaches first. It
also fires where a gradient is not finite to the end while the loss stays finite, unless a
GradScaler is about to skip that step.

*Evidence.* `layer`, `layer_step`, `layer_usual`, `layer_norm` (what grew first, where, from what to
what), `step`, `usual`, `norm` (the whole model or stage); where a gradient is not finite:
`bad_step`, `bad_layer`, `bad_layer_or`, `bad_phase`, `bad_after_step` (as
[NON_FINITE_LOSS](#non_finite_loss) has them).

*Thresholds.* As above. It warns where the loss is lost, ends above where it began, or a gradient
is not finite; otherwise it is a remark.

*What to do.* Look at the learning rate and the initialisation of the layer; clip gradients where
the run does not. Where a gradient is not finite, look at what made it so.

*Silent* without the deep profile, with fewer than 9 norms, and where the norm came back.
"""

from __future__ import annotations

from traceml.diagnose import settings_advice
from traceml.diagnose.failure_words import (
    ANOMALY,
    bad_value_advice,
    bad_value_evidence,
    bad_value_sentence,
    layer_words,
)
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.gradients import BadValue, GradientRise
from traceml.facts.losses import LossFacts
from traceml.model.evidence import Evidence, as_number, as_words
from traceml.model.finding import Finding, Kind, Section, Severity, StepSpan
from traceml.model.quantities import significant

KIND = Kind.declare("EXPLODING_GRADIENTS")


def check(facts: Facts) -> Finding | None:
    """Fires when the gradient norm exploded, or is not finite although the loss is."""
    gradients, loss = facts.layers.gradients, facts.stability.loss
    is_lost = loss is not None and loss.not_finite is not None and not loss.not_finite.is_norm
    bad = None if is_lost else gradients.bad_value
    if bad is not None and bad.is_scaled:
        bad = None
    if gradients.rise is not None:
        return _rise(gradients.rise, bad, is_lost, loss)
    return None if bad is None else _bad(bad, facts)


def _rise(
    rise: GradientRise, bad: BadValue | None, is_lost: bool, loss: LossFacts | None
) -> Finding:
    claim = (
        f"The gradient norm grew from a usual {significant(rise.usual)} to "
        f"{significant(rise.norm)} and did not come back; it passed 100 times the usual at step "
        f"{rise.step:,}. That of {layer_words(rise.layer)} rose first: from "
        f"{significant(rise.layer_usual)} to {significant(rise.layer_norm)}, beginning at step "
        f"{rise.layer_step:,}."
    )
    if bad is not None:
        claim += f" {bad_value_sentence(bad)}"
    is_bad = is_lost or bad is not None or _is_worse(loss)
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.WARNING if is_bad else Severity.INFO,
        claim=claim,
        action=(
            f"Lower the learning rate of {layer_words(rise.layer)} or of all layers, look at its "
            f"initialisation and normalisation, and clip the gradient norm near "
            f"{significant(rise.usual)}."
        ),
        ranks=(rise.rank,),
        steps=StepSpan(rise.layer_step),
        evidence=Evidence(
            as_words("layer", rise.layer),
            as_number("layer_step", rise.layer_step),
            as_number("layer_usual", rise.layer_usual),
            as_number("layer_norm", rise.layer_norm),
            as_number("step", rise.step),
            as_number("usual", rise.usual),
            as_number("norm", rise.norm),
            *bad_value_evidence(bad),
        ),
    )


def _is_worse(loss: LossFacts | None) -> bool:
    """Returns whether the loss ended above where it began."""
    if loss is None or loss.first is None or loss.last is None:
        return False
    return loss.last > loss.first


def _bad(bad: BadValue, facts: Facts) -> Finding:
    loss = facts.stability.loss
    was_finite = " The loss was still finite." if loss is not None and loss.values else ""
    advice = bad_value_advice(bad, settings_advice.against_overflow(facts.settings))
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.WARNING,
        claim=f"{bad_value_sentence(bad)}{was_finite}",
        action=f"{advice} {ANOMALY}" if advice and bad.phase == "backward" else advice or ANOMALY,
        ranks=(bad.rank,),
        steps=None if bad.step is None else StepSpan.at(bad.step),
        evidence=Evidence(*bad_value_evidence(bad)),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    doc=Doc(
        "info, warn",
        "a layer's gradient grew a hundredfold, or is not finite (deep profile)",
        __doc__,
        symptoms=(Symptom.LOSS,),
    ),
)
