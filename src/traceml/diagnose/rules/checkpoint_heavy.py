"""Checkpoint heavy: a good part of the wall time goes into saving.

*Meaning.* Saving checkpoints takes a good part of the wall time. That is normal work between the
steps and no bottleneck of the step.

*Evidence.* `wall_share`, `per_step_ms`, `wall_step_ms`, `step_time_cpu_ms`, `times`,
`steps_seen`, `usual_ms`, `longest_ms`.

*Thresholds.* A remark from 10 % of the wall time on; a warning where it took more than the
training itself, and a second or more in all. What happened once is a remark at most, and where
one took longer than the others (it compiled), the others are what is held against the training.

*What to do.* Save less often, in the background, or to a faster disk.
"""

from __future__ import annotations

from traceml.diagnose.between_steps import work_between_steps
from traceml.diagnose.rule import Doc, Symptom
from traceml.model.finding import Kind

KIND = Kind.CHECKPOINT_HEAVY

RULE = work_between_steps(
    KIND,
    name="checkpoint",
    words="Saving checkpoints",
    verb="Save",
    shorter=(
        "Saving in the background (torch.distributed.checkpoint.async_save), or to a faster disk "
        "and copying from there, makes each one shorter."
    ),
    without="checkpoints",
    doc=Doc(
        "info, warn",
        "saving takes much of the wall time",
        __doc__,
        symptoms=(Symptom.LONG_BETWEEN_STEPS,),
    ),
)
check = RULE.check
