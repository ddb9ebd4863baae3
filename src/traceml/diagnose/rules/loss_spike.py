"""Loss spike: the loss jumped far above what it had been.

*Meaning.* The loss jumped far above the values before it. It warns where the loss stayed there to
the end and is back at 80 % of the very first loss or more, or where it reached 10 times the first
loss; otherwise it is a remark (`info`): one bad batch, a restarted learning rate and harder data
make a loss jump too.

Where the script logs its loss (`log_metrics`), that one is judged. Otherwise it is the loss that
the first backward pass of each step was called on, so that the two losses of a GAN are not mixed.
Many frameworks divide the loss by the micro-batches of an accumulation window. Where windows
differ in size and the loss changes with them as a divided one would, it is multiplied by them
again, and the summary says so; where all windows are equal, nobody can tell, and it is shown as
it was passed to `backward`. A jump that the size of the window explains, on either scale, is
none.

A loss is compared with the values before it of the same attempt: ranks that are started again may
begin anew.

*Evidence.* `name`, `step`, `numbering` (as for [`NON_FINITE_LOSS`](#non_finite_loss)), `usual`
(the median of the 20 values before), `peak`, `times`, `spikes`.

*Thresholds.* 3 times the median of the 20 values before, and 6 of their robust standard
deviations, of the logarithm: a loss that is noisy by nature has a large one. A jump that comes
back must also be 3 times the largest before it. It stayed when 10 values in a row are high, and
so is the median of the last 10 of all. It came back only where a finite value below 3 times the
usual follows; else it is said that the loss became NaN or infinite, or that the run ended there.
More than 2 % of the values: that is how this loss is.

*What to do.* Look at the batch of that step; a lower learning rate, a longer warm-up, clipping. In
reinforcement learning the loss rises by itself where its target moves; a loop without a DataLoader
is told so.

*Silent* with fewer than 20 values, on losses that fall to zero or below, and where the jump is
less than 5 % of what the loss was at first.
"""

from __future__ import annotations

from traceml.diagnose.failure_words import step_name
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.losses import Jump, LossFacts
from traceml.model.evidence import Evidence, as_number, as_words
from traceml.model.finding import Finding, Kind, Section, Severity, StepSpan
from traceml.model.quantities import count, significant

KIND = Kind.LOSS_SPIKE

MAX_SPIKES_SHARE = 0.02  # of the values: more of them are how this loss is, and no event
BACK_AT_START = 0.8  # of the first loss: what stays up so high has forgotten what was learnt
MOVING_TARGET = (
    "Where the loss follows a moving target, as in reinforcement learning after a target network's "
    "update, such a jump is normal."
)
HUGE = 10.0  # times the first loss: far worse than knowing nothing, though it came back


def check(facts: Facts) -> Finding | None:
    """Fires when the loss jumped, and says whether it came back."""
    loss = facts.stability.loss
    if loss is None or not loss.jumps:
        return None
    lasting = [jump for jump in loss.jumps if jump.lasts]
    if not lasting and len(loss.jumps) > max(1, MAX_SPIKES_SHARE * loss.values):
        return None
    worst = lasting[0] if lasting else max(loss.jumps, key=lambda jump: jump.value / jump.usual)
    severity = _severity(loss, worst)
    step = step_name(worst.step, worst.is_logged)
    others = f" ({count(len(loss.jumps), 'spike')} in all)" if len(loss.jumps) > 1 else ""
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=severity,
        claim=(
            f"{worst.name} jumped from {significant(worst.usual)} to {significant(worst.value)} "
            f"at {step}{_after(worst)}{others}."
        ),
        action=_action(worst, step, severity, facts.mean.input_s is None),
        steps=_steps(worst),
        evidence=Evidence(
            as_words("name", worst.name),
            as_number("step", worst.step),
            as_words("numbering", "logged" if worst.is_logged else "counted"),
            as_number("usual", worst.usual),
            as_number("peak", worst.value),
            as_number("times", worst.value / worst.usual),
            as_number("spikes", len(loss.jumps)),
        ),
    )


def _steps(worst: Jump) -> StepSpan | None:
    """Returns the steps; `None` where only the script's own numbers of them are known."""
    if worst.is_logged:
        return None
    return StepSpan(worst.step) if worst.lasts else StepSpan.at(worst.step)


def _after(worst: Jump) -> str:
    """Returns what became of the loss, as the end of a sentence."""
    if worst.was_restarted:
        return " and stayed there until the ranks were started again"
    if worst.lasts:
        return " and stayed there"
    if worst.is_back:
        return " and came back"
    return ", and then became NaN or infinite" if worst.is_lost else ", and there the run ended"


def _severity(loss: LossFacts, worst: Jump) -> Severity:
    if loss.first is None or loss.first <= 0:
        return Severity.INFO
    times_first = worst.value / loss.first
    forgot = worst.lasts and times_first >= BACK_AT_START
    return Severity.WARNING if forgot or times_first >= HUGE else Severity.INFO


def _action(worst: Jump, step: str, severity: Severity, is_without_loader: bool) -> str:
    if worst.is_back:
        return f"Look at the batch of {step}; clip gradients if it comes again."
    again = (
        f"resume from a checkpoint before {step} with a lower learning rate, a longer warm-up or "
        "clipped gradients."
    )
    if worst.is_lost:
        return again[0].upper() + again[1:]
    if severity is Severity.INFO:
        return f"Nothing to do if the data or the learning rate changed there; if not, {again}"
    moved = f" {MOVING_TARGET}" if is_without_loader and worst.lasts else ""
    return f"{again[0].upper()}{again[1:]}{moved}"


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    doc=Doc(
        "info, warn",
        "the loss jumped far above what it had been",
        __doc__,
        symptoms=(Symptom.LOSS,),
    ),
)
