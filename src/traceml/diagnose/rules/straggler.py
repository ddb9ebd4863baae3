"""Straggler: one rank is late for several reasons, or for one that was not measured.

*Meaning.* A rank takes longer than the others, and no single cause covers it: several phases do,
or one that was not measured. This section also holds what all five kinds of straggler share.

A collective makes every rank's step equally long, so ranks are compared by their own work: the
step without exposed communication. The last to arrive at the collective is the one with the most
of it, and the one that waited least. Its excess is taken over the median of the *other* ranks, so
two slow ranks of four are both named; with two ranks it is taken over the other one, and the
claim says which. Means are weighted by time: a stall in every twentieth step counts by what it
takes.

Only ranks that do the same work are compared. Stages of a pipeline hold different layers, so each
stage's ranks are compared with each other alone ([PIPELINE_IMBALANCE](#pipeline_imbalance) compares
the stages); a stage that one rank holds has no straggler. Where layers are split over ranks (a mesh
dimension such as `tp`) and at least three ranks hold each part, so are those of one part. Where a
rank stands is read from `init_device_mesh`, `torch.distributed.pipelining`, Megatron, DeepSpeed, or
process groups with a description, and told with its name.

Where communication was not measured and the ranks still keep in step, they wait inside backward;
then the work outside backward is compared, and the claim says that this is inferred. Where ranks
do not keep in step, they do not wait for each other, and a late rank is never critical.

On the host's clock a late rank needs a reason of its own. Linux says how long its training thread
computed and how long it was ready to run without a core: what it waited longer for a core than
the others is taken off its excess before that is judged. A rank that is late for that alone is no
straggler but [CPU_STARVED](#cpu_starved); of the others the claim says whether the thread
computes longer or is blocked longer (asleep, or waiting for a disk, a lock or another process).

*Evidence.* `rank` (the latest), `worst_ms` and `median_ms` (the phase that holds most of the
excess, on that rank and on the others), `skew` (worst ÷ median − 1), `excess_ms`, `score` (excess
÷ typical step), `own_worst_ms`, `own_median_ms`, `typical_step_ms` (of the others, without
waiting), the excess of each phase (`input_excess_ms` …), `lost_ms` (what the job would save per
step), `slowest_share` (the steps in which no rank took longer), `since_step` (where the rank
became slow during the run), `waiting` (`measured`, `inferred`, `not measured`), `cpu_excess_ms`
and `core_wait_excess_ms` (of the training thread, where the system tells), `diagnosis_clock`.

*Thresholds.* A score of 10 % warns from 1 ms on, 20 % is critical from 3 ms on. A cause must
cover 80 % of the excess, and be the only one that does. Ranks with at least 50 % of the latest
rank's excess are named with it. To be named, a rank's excess must be larger than chance makes it
in 1 % of runs with equal ranks (0.01 % to be critical, or where the waiting is inferred), judged
by the spread of the steps, corrected for slow spells, and by the number of ranks (or its training
thread has 50 % more CPU time than the others', which no noise explains); and the three longest of
its delays must hold less than half of it. At least 8 steps are needed. It must be late in 75 % of
the run's 8 blocks of steps (since it became slow), where each has 5 steps or more. Where the
system does not say who had no core, a score of 15 % is needed, from 1.5 ms on.

*What to do.* Take one cause at a time, the largest first; the action lists them. Where exactly
the ranks of one machine are late, it names the machine, and in what its sensors differ from those
of the others: other processes on its cores, a CPU quota, the clocks of its GPUs, a busy disk.

*Silent* where ranks that wait for each other look alike because nothing of the waiting was
measured.
"""

from __future__ import annotations

from traceml.diagnose.late_ranks import Late, straggler_rule
from traceml.diagnose.rule import Doc, Symptom
from traceml.facts.facts import Facts
from traceml.model.finding import Kind
from traceml.model.quantities import duration

KIND = Kind.STRAGGLER

MAX_PHASES = 3  # more than these together hold hardly anything


def _next_step(facts: Facts, late: Late) -> str:
    if late.phase is None:
        return (
            f"Mark what {late.names} spends its time on with traceml.trace_time: a phase that "
            "holds the difference could not be measured."
        )
    parts = sorted(late.worst.phases.items(), key=lambda item: -item[1].excess_s)
    listed = ", then ".join(
        f"{phase.value} ({duration(part.excess_s)} more)"
        for phase, part in parts[:MAX_PHASES]
        if part.excess_s > 0
    )
    return f"Take one cause of {late.names} at a time: {listed}."


RULE = straggler_rule(
    KIND,
    _next_step,
    Doc(
        severities="warn, crit",
        says="a rank is late for several reasons, or for one not measured",
        text=__doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
check = RULE.check
