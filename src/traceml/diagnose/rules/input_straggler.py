"""Input straggler: one rank's data takes longer, and the others wait for that rank.

*Meaning.* A rank's data takes longer than elsewhere, and the others wait for that rank.

*Evidence.* As for [STRAGGLER](#straggler), with `worst_ms` and `median_ms` of the input wait.

*Thresholds.* As for [STRAGGLER](#straggler).

*What to do.* Compare the rank's shard (file sizes, sample lengths), the storage it reads from,
its preprocessing, and what else runs on its cores.
"""

from __future__ import annotations

from traceml.diagnose.late_ranks import Late, straggler_rule
from traceml.diagnose.rule import Doc, Symptom
from traceml.facts.facts import Facts
from traceml.model.finding import Kind
from traceml.model.quantities import duration

KIND = Kind.INPUT_STRAGGLER


def _next_step(facts: Facts, late: Late) -> str:
    return (
        f"Bring the input of {late.names} from {duration(late.slow_work.rank_s)} down to "
        f"{duration(late.slow_work.others_s)}: compare its shard of the data (file sizes, sample "
        "lengths), the storage it reads from, its preprocessing, and what else runs on its cores."
    )


RULE = straggler_rule(
    KIND,
    _next_step,
    Doc(
        severities="warn, crit",
        says="a rank's data makes it late",
        text=__doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
check = RULE.check
