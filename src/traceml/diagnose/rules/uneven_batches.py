"""Uneven batches: some ranks get more to work on than others, which wait for them.

*Meaning.* Ranks get batches of different sizes: longer sequences, or more samples. The rank with
the most takes longest, and all others wait for it, be it always the same one or another in each
step. That rank is no [straggler](#straggler): its machine is as fast as the others.

*Measured.* The elements of the first tensor of each batch that comes from a `DataLoader` (tokens,
where it holds their numbers; with their padding, which is worked on too), by rank and step. What
an element costs is learnt in each rank's own steps, in which it has now more and now less; where
that never changes, by comparing ranks, and an element then costs no more than its share of
forward and backward. What a rank's time holds beyond that is still a straggler's.

*Evidence.* `most_elements` (per step, of the rank that always has the most; missing where ranks
take turns), `mean_elements`, `largest_to_mean` (of the rank with the most, in a mean step),
`correlation` (of elements and time against the rank's peers, over ranks and steps), `lost_share`,
`lost_ms` (what even batches would save per step), `step_time_ms`, `diagnosis_clock`.

*Thresholds.* 10 % of the step warns from 1 ms on, 20 % is critical from 3 ms on, where the
correlation is at least 0.5, the rank with the most has 5 % more than the mean, and at least 8 steps
were counted.

*What to do.* Give ranks equally many tokens: sort or bucket samples by length and deal each bucket
out to all ranks, limit batches by tokens instead of samples, or pack sequences.

*Silent* with one rank, where ranks do not wait for each other, and where batches do not come from
a `DataLoader`.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Symptom
from traceml.diagnose.uneven_shares import uneven_rule
from traceml.facts.facts import Facts
from traceml.facts.uneven_work import BATCHES
from traceml.model.finding import Kind

KIND = Kind.declare("UNEVEN_BATCHES")


def _next_step(facts: Facts) -> str:
    return (
        "Give the ranks equally many tokens: bucket samples by length and deal each bucket out to "
        "all ranks, limit batches by tokens instead of samples, or pack sequences."
    )


RULE = uneven_rule(
    KIND,
    BATCHES,
    "gets {much} in its batches",
    _next_step,
    "with equally large batches on all ranks",
    Doc(
        "warn, crit",
        "some ranks get longer sequences or larger batches than others",
        __doc__,
        symptoms=(Symptom.BAD_SCALING, Symptom.STUTTER),
    ),
)
check = RULE.check
