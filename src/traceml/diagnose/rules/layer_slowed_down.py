"""Layer slowed down: from some step on a layer takes longer, and the other layers do not.

*Meaning.* A layer takes clearly longer in the later bursts of the deep profile than in the earlier
ones, beyond what slows all layers at that time, which [SLOWDOWN](#slowdown) tells.

*Evidence.* `layer`, `rank`, `since_step`, `factor` with its 95 % confidence interval
(`factor_low`, `factor_high`), `before_ms`, `after_ms`, `excess_ms` (per step since then),
`bursts_before`, `bursts_after`, `also_ranks` (other ranks where it slowed down), `layers` (how many
layers slowed down), `kernel` (the kernel of the layer that slowed down, where one is known).

*Thresholds.* 1.25 times as long, at least five bursts before and five after (three where it takes
three times as long and interruptions are rarer than that), 90 % of them on their side of the
middle, and 1 % of the time in all layers; and so far outside the spread of the bursts that a run
without a change shows it in one case of a hundred. 5 % of the step warns from 1 ms on.

*What to do.* Look at what changed for that layer at that step: the shape or content of its input, a
schedule, a cache or buffer that grows, another kernel. On one rank alone: its data, or its device.

*Silent* about several ranks of a sharded model (FSDP, DeepSpeed): its layers wait for other ranks
inside their own time.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Remedy, Rule, RuleRole, Symptom, Turn, Where, lost
from traceml.diagnose.slow_layers import (
    also_named,
    factor_pieces,
    saved_s,
    severity_of_layer,
    shown_layer,
)
from traceml.facts.facts import Facts
from traceml.facts.slow_layers import SlowedLayer
from traceml.model.evidence import Evidence, as_number, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, StepSpan
from traceml.model.quantities import count, duration, factor_words

KIND = Kind.declare("LAYER_SLOWED_DOWN")


def check(facts: Facts) -> Finding | None:
    """Fires when a layer became slower during the run while the other layers did not."""
    found, kernels = facts.layers.slowed_down, facts.layers.slowed_kernels
    if not found:
        return None
    first = found[0]
    kernel = next((each for each in kernels if each.layer == first.layer), None)
    ranks = tuple(sorted({first.rank, *first.also_ranks}))
    lost_s = saved_s(facts, _lost_by_rank(found))
    step_s = facts.mean.step_s or 0.0
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=severity_of_layer(facts, lost_s),
        claim=_claim(found, kernel),
        action=_action(first),
        share=lost_s / step_s if step_s else None,
        ranks=ranks,
        lost_s_per_step=lost_s,
        steps=StepSpan(first.since_step),
        evidence=Evidence(
            as_words("layer", shown_layer(first.layer)),
            as_number("rank", first.rank),
            as_number("since_step", first.since_step),
            *factor_pieces(first.factor, first.interval),
            in_ms("before_ms", first.before_s),
            in_ms("after_ms", first.after_s),
            in_ms("excess_ms", first.excess_s),
            as_number("bursts_before", first.bursts_before),
            as_number("bursts_after", first.bursts_after),
            as_words("also_ranks", ", ".join(map(str, first.also_ranks)) or None),
            as_number("layers", len(found)),
            as_words("kernel", None if kernel is None else kernel.kernel),
            as_words("diagnosis_clock", facts.layers.clock),
        ),
    )


def _lost_by_rank(found: tuple[SlowedLayer, ...]) -> dict[int, float]:
    """Returns what the slower layers cost each rank in a mean step of the whole run."""
    lost_s: dict[int, float] = {}
    for each in found:
        share = each.bursts_after / (each.bursts_before + each.bursts_after)
        for rank in (each.rank, *each.also_ranks):
            lost_s[rank] = lost_s.get(rank, 0.0) + share * each.excess_s
    return lost_s


def _claim(found: tuple[SlowedLayer, ...], kernel: SlowedLayer | None) -> str:
    first = found[0]
    said = (
        f"Layer {shown_layer(first.layer)} takes {factor_words(first.factor, first.interval)} as "
        f"long since about step {count(first.since_step)} ({duration(first.before_s)} → "
        f"{duration(first.after_s)}){_where(first)}, while most other layers take what they took."
    )
    if kernel is not None:
        factor = factor_words(kernel.factor, kernel.interval)
        said += f" Its kernel {kernel.kernel} takes {factor} as long."
    further = also_named([each.layer for each in found[1:]])
    return f"{said} {further}".strip()


def _where(first: SlowedLayer) -> str:
    """Returns the ranks on which it slowed down, where there are several."""
    if first.also_ranks and first.other_ranks:
        also = ", ".join(map(str, first.also_ranks))
        return f" on rank {first.rank}, and on {also} too"
    if first.also_ranks:
        return " on all ranks"
    if first.other_ranks:
        are = "has" if len(first.other_ranks) == 1 else "have"
        others = "the other rank" if len(first.other_ranks) == 1 else "the other ranks"
        return f" on rank {first.rank}; {others} {are} not slowed down in it"
    return ""


def _action(first: SlowedLayer) -> str:
    name, step = shown_layer(first.layer), count(first.since_step)
    if first.other_ranks and not first.also_ranks:
        return (
            f"Look at what {name} gets on rank {first.rank} since step {step}: longer sequences, "
            "more tokens, a branch that it takes there alone. Where its input is the same as on "
            "the other ranks, suspect its device, or another kernel that was chosen there."
        )
    return (
        f"Look at what changed for {name} at step {step}: the shape or content of its input, a "
        "schedule, a cache or buffer that grows with every step, another kernel."
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.CAUSE,
    explains=(Kind.SLOWDOWN,),
    where=Where.ANYWHERE,
    turn=Turn.CHANGE,
    what_if=Remedy("had that layer stayed as fast as before", lost),
    doc=Doc(
        "info, warn",
        "from some step on one layer takes longer (deep profile)",
        __doc__,
        symptoms=(Symptom.SLOWER_LATER,),
    ),
)
