"""Expert imbalance: the experts of some ranks get more tokens than those of others.

*Meaning.* In a mixture of experts whose experts are spread over ranks, the router sends more tokens
to some of them. Their ranks work longest, and all others wait for them. Such a rank is no
[straggler](#straggler).

*Measured.* The elements that `all_to_all` and `all_to_all_single` bring to each rank, by step.
What an element costs is learnt as for [UNEVEN_BATCHES](#uneven_batches).

*Evidence.* As for [UNEVEN_BATCHES](#uneven_batches).

*Thresholds.* As for [UNEVEN_BATCHES](#uneven_batches).

*What to do.* A load-balancing loss or bias for the router, a capacity per expert, or other experts
on the ranks that have the busiest ones.

*Silent* where tokens travel by other means, or by functions that a library took from torch before
they could be watched.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Symptom
from traceml.diagnose.uneven_shares import uneven_rule
from traceml.facts.facts import Facts
from traceml.facts.uneven_work import EXCHANGES
from traceml.model.finding import Kind

KIND = Kind.declare("EXPERT_IMBALANCE")


def _next_step(facts: Facts) -> str:
    return (
        "Balance the router: a load-balancing loss or bias, a capacity per expert, or another "
        "spread of the experts over ranks, so that each rank has busy and idle ones."
    )


RULE = uneven_rule(
    KIND,
    EXCHANGES,
    "receives {much} by all_to_all",
    _next_step,
    "if all ranks received equally many tokens",
    Doc(
        "warn, crit",
        "the experts of some ranks get more tokens than others",
        __doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
check = RULE.check
