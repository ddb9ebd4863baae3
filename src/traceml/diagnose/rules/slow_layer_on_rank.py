"""Slow layer on one rank: a layer, or a kernel in it, takes longer there than on the others.

*Meaning.* One rank takes longer for some layer than the ranks that do the same work, beyond what
slows all of its layers. A rank whose layers are all slower by the same factor has a slow device,
which [COMPUTE_STRAGGLER](#compute_straggler) tells; one layer alone is a degraded layer or kernel,
or work that depends on the data.

*Evidence.* From the deep profile: `layer`, `rank`, `factor` with its 95 % confidence interval
(`factor_low`, `factor_high`), `rank_ms` and `others_ms` per step, `excess_ms` of all such layers of
the rank, `layers` (how many those are), `high_bursts` of `bursts`, `rank_factor` (how much slower
all layers of the rank are), `kernel` and `kernel_factor` where a kernel of the layer is slow.

*Thresholds.* 1.25 times as long as the median of the other ranks, with at least four bursts each,
in 75 % of its bursts, and 1 % of the time in all layers; and so far outside the spread of bursts,
layers and ranks that equal ranks show it in one run of a hundred. 5 % of the step warns from 1 ms
on; less, and time that no rank waits for, is a remark.

*What to do.* Look at what that layer gets on that rank: longer sequences, more tokens, a branch or
a hook that runs there alone, another kernel. Where its input is the same, swap the devices of two
ranks: what stays with the device is the device's.

*Silent* about layers that ranks call a different number of times, about layers of sharded models
(FSDP, DeepSpeed), which wait for other ranks inside their own time, and about a rank that waits
longer for the others than half of what the layer costs, in the median step: a few steps in which it
waited long are no reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceml.diagnose.rule import Doc, Remedy, Rule, RuleRole, Symptom, Turn, Where, lost
from traceml.diagnose.slow_layers import (
    MAX_NAMED,
    also_named,
    factor_pieces,
    saved_s,
    severity_of_layer,
    shown_layer,
)
from traceml.facts.facts import Facts
from traceml.facts.slow_layers import SlowLayer
from traceml.model.evidence import Evidence, as_number, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section
from traceml.model.phase import Phase
from traceml.model.quantities import count, duration, factor_words

KIND = Kind.declare("SLOW_LAYER_ON_RANK")

MAX_WAIT_SHARE = 0.5  # of the excess: a rank that waits for others by more may have waited here
ALL_SLOW_FACTOR = 1.1  # of all layers: less is not worth mentioning beside a slow one


def check(facts: Facts) -> Finding | None:
    """Fires when a layer or a kernel is slow on one rank alone."""
    told = _of_worst_rank(facts)
    if not told:
        return None
    first = told[0]
    layers = [each for each in told if each.kernel is None]
    excess_s = sum(each.excess_s for each in layers or told)
    lost_s = saved_s(facts, {first.rank: excess_s}) if layers else 0.0
    kernel = _kernel_of(first, told)
    step_s = facts.mean.step_s or 0.0
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=severity_of_layer(facts, lost_s),
        claim=_claim(facts, first, layers, kernel, excess_s, lost_s),
        action=_action(first, layers),
        share=lost_s / step_s if step_s else None,
        ranks=(first.rank,),
        lost_s_per_step=lost_s,
        evidence=Evidence(
            as_words("layer", shown_layer(first.layer)),
            as_number("rank", first.rank),
            *factor_pieces(first.factor, first.interval),
            in_ms("rank_ms", first.rank_s),
            in_ms("others_ms", first.others_s),
            in_ms("excess_ms", excess_s),
            as_number("layers", max(len(layers), 1)),
            as_number("high_bursts", first.high_bursts),
            as_number("bursts", first.bursts),
            as_number("rank_factor", round(first.rank_factor, 3)),
            as_words("kernel", None if kernel is None else kernel.kernel),
            as_number("kernel_factor", None if kernel is None else round(kernel.factor, 3)),
            as_words("waiting", "inferred" if _is_hidden(facts) else "measured"),
            as_words("diagnosis_clock", facts.layers.clock),
        ),
    )


def _of_worst_rank(facts: Facts) -> list[SlowLayer]:
    """Returns the slow layers of the rank that they cost the most, then its slow kernels."""
    slowed = {(each.layer, each.rank) for each in facts.layers.slowed_down}
    layers = [
        each
        for each in facts.layers.slow_on_rank
        if (each.layer, each.rank) not in slowed and not _waits_longer(facts, each)
    ]
    kernels = [each for each in facts.layers.slow_kernels if (each.layer, each.rank) not in slowed]
    of_rank: dict[int, float] = {}
    for each in layers or kernels:
        of_rank[each.rank] = of_rank.get(each.rank, 0.0) + each.excess_s
    if not of_rank:
        return []
    rank = max(of_rank, key=lambda rank: of_rank[rank])
    return [each for each in (*layers, *kernels) if each.rank == rank]


def _waits_longer(facts: Facts, slow: SlowLayer) -> bool:
    """Returns whether a rank waits so much longer for others that its layer may contain that.

    In the median step, as the layer's time is that of its median burst: on a busy machine the
    others are interrupted now and then, and the mean of a rank's waits is mostly those few.
    """
    if facts.step_table is None:
        return False
    longer_s = facts.step_table.median_excess_s(Phase.COMMUNICATION, slow.rank, slow.peers)
    return longer_s is not None and longer_s >= MAX_WAIT_SHARE * slow.excess_s


def _kernel_of(first: SlowLayer, told: Sequence[SlowLayer]) -> SlowLayer | None:
    """Returns the slow kernel of a layer that costs the most; `None` where none is known."""
    return next((each for each in told if each.kernel and each.layer == first.layer), None)


def _is_hidden(facts: Facts) -> bool:
    return facts.job is not None and facts.job.wait_is_hidden


def _claim(
    facts: Facts,
    first: SlowLayer,
    layers: Sequence[SlowLayer],
    kernel: SlowLayer | None,
    excess_s: float,
    lost_s: float,
) -> str:
    whom = f"rank {first.peers[0]}" if len(first.peers) == 1 else "the other ranks"
    what = shown_layer(first.layer)
    if first.kernel is not None:
        what = f"kernel {first.kernel}" + (f" in {what}" if first.layer else "")
    said = [
        f"Rank {first.rank}: {what} takes {factor_words(first.factor, first.interval)} what it "
        f"takes on {whom}, in {first.high_bursts} of {count(first.bursts, 'burst')}: "
        f"{duration(first.rank_s)} per step against {duration(first.others_s)}."
    ]
    if kernel is not None and kernel is not first:
        said.append(
            f"Its kernel {kernel.kernel} takes {factor_words(kernel.factor, kernel.interval)}."
        )
    if len(layers) > 1:
        said.append(also_named([each.layer for each in layers[1:]]))
    if layers:
        said.append(
            f"+{duration(excess_s)} per step in all."
            if len(layers) > 1
            else f"+{duration(excess_s)} per step."
        )
    if first.rank_factor >= ALL_SLOW_FACTOR:
        said.append(
            f"All layers of rank {first.rank} take {first.rank_factor:.2f}× as long besides."
        )
    if first.kernel is not None:
        said.append("That its layer takes longer is not shown.")
    elif lost_s < excess_s / 2 and facts.job is not None:
        said.append(f"Of it {duration(lost_s)} per step makes the job slower.")
    return " ".join(said)


def _action(first: SlowLayer, layers: Sequence[SlowLayer]) -> str:
    where = f"{shown_layer(first.layer)} on rank {first.rank}"
    other = first.peers[0] if first.peers else 0
    swap = (
        f"swap the devices of ranks {first.rank} and {other}, and see whether it stays with the "
        "device"
    )
    if len(layers) > MAX_NAMED:
        return (
            f"{count(len(layers))} layers are slow there and the others are not: either the data "
            f"of rank {first.rank} gives them more work, or its device is slow at their kind of "
            f"work (clocks, memory, cache). With equal batches on all ranks, {swap}."
        )
    return (
        f"Look at what {where} gets: longer sequences, more tokens, a branch or hook that runs "
        "there alone. Where its input is the same as elsewhere, it is the kernel or the device: "
        f"{swap}."
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.REMARK,
    yields_to=(Kind.COMPUTE_STRAGGLER, Kind.STRAGGLER),
    where=Where.FOR_A_RANK,
    turn=Turn.LATE_RANK,
    what_if=Remedy("if that layer took on {ranks} what it takes on the others", lost),
    doc=Doc(
        "info, warn",
        "a layer or kernel is slow on one rank alone (deep profile)",
        __doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
