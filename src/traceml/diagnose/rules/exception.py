"""Exception: an error of the script's own, or of a library it uses, ended the run.

*Meaning.* An exception that nobody handled ended the run; or the script caught it, took no
further step and ended with a status other than 0. Of a process that trains the same is said on
stderr, under Python's own traceback. A script that fails before it imports torch, or cannot be
read at all (`SyntaxError`), is told too: every interpreter below `traceml run` leaves the
exception that ended it. Only the script and the ranks speak for the run. A Python process that
the script starts besides is its helper: its failure is told where the script itself says that a
command failed (`CalledProcessError`). `KeyboardInterrupt` and `SystemExit` are no failures. An
exception of a `DataLoader` worker is told with the worker's number and the dataset's line.

Of several ranks the first with an error of its own is named. Ranks with the same error of their
own (of one type, at one line or with one text but for its numbers) are named together; another
error of another rank is named in the action. A rank followed from the first if its error only
says that another process has gone (gloo, NCCL), or came later at a collective; where none raised
an error of its own, the rank is named that ended with a bad status (`sys.exit(1)`). A launcher's
`ChildFailedError` is no failure.

*Evidence.* `rank`, `step` (complete steps, counted from 1, also over restarts of the rank),
`phase`, `module` (its dotted name in the model, without what DDP and `torch.compile` put around
it), `error`, `message`, `where` (the innermost line that is neither Python's nor installed),
`ranks_alike`, `ranks_that_followed`. `failure.traceback` has what Python printed, causes
included, without our frames, with `***` for what looks like a secret; of a longer one the first
3,000 and the last 9,000 characters.

*Thresholds.* None. A process writes down at most 16 exceptions that were caught.

*What to do.* The action names the line, and what has helped others with that message.

*Silent* when the run ended with status 0.
"""

from __future__ import annotations

from traceml.diagnose.failure_words import (
    evidence_of,
    exception_text,
    failed_ranks,
    failure_place,
    phase_of,
    rank_list,
    ranks_of,
    steps_of,
)
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.stability import Failure
from traceml.model.evidence import Evidence, as_words
from traceml.model.failure import FailureReport, is_consequence, says_a_command_failed
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.run import end_words

KIND = Kind.EXCEPTION

MAX_OTHERS = 3  # other errors in one sentence: the rest stands in the output

HINTS = (
    (
        "Bus error",
        "A data worker found no room in shared memory: give the container more (--shm-size), or "
        "use fewer workers.",
    ),
    (
        "No module named",
        "Install it into the Python that ran the script; if it is in a folder of your own, put the "
        "folder that holds it on PYTHONPATH.",
    ),
    (
        "killed by signal: Killed",
        "The kernel killed a data worker, most likely for memory: use fewer workers, or hold less "
        "in the dataset.",
    ),
    (
        "device-side assert",
        "The line may be later than the cause: run once with CUDA_LAUNCH_BLOCKING=1; an index "
        "outside an embedding or a class count is the usual reason.",
    ),
    (
        "does not require grad",
        "Nothing in the loss leads to a parameter: look for detach(), no_grad() or frozen layers.",
    ),
    (
        "Expected all tensors to be on the same device",
        "Move the batch and everything made in forward to the model's device.",
    ),
)
"""A part of the error message, and what usually helps."""


def check(facts: Facts) -> Finding | None:
    """Fires when an exception is what ended the run."""
    failure = facts.stability.failure
    if failure is None or failure.kind is not KIND or failure.report is None:
        return None
    report = failure.report
    handled = " The script caught it and ended." if report.is_handled else ""
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.CRITICAL,
        claim=(
            f"{failed_ranks(failure, facts.node_names)} failed{failure_place(failure)}: "
            f"{exception_text(report)}{handled}"
        ),
        action=_action(failure, report, facts.reason_without_steps),
        phase=phase_of(report),
        ranks=ranks_of(failure),
        steps=steps_of(failure),
        evidence=Evidence(*evidence_of(failure), as_words("message", report.message)),
    )


def _action(failure: Failure, report: FailureReport, reason_without_steps: str | None) -> str:
    where = f"Look at {report.where}." if report.where else "See the traceback."
    hints = [hint for text, hint in HINTS if text in report.message]
    if reason_without_steps and "'torch'" in report.message:
        hints.append(reason_without_steps)  # which interpreter has none
    if says_a_command_failed(report.error):
        hints.append("It only says that a command failed: look at what that command printed.")
    elif failure.left is not None:
        hints.append(
            f"It says that another process has gone: rank {failure.left.rank} "
            f"{end_words(failure.left.status or 0)} by itself, with no exception; look at what it "
            "printed."
        )
    elif is_consequence(report.error, report.message):
        hints.append(
            "It says that another process has gone; none of the traced ranks failed before: look "
            "at the other machines' output."
        )
    for other in failure.others[:MAX_OTHERS]:
        at = f" at {other.where}" if other.where else ""
        hints.append(f"Rank {other.rank} failed by itself{at}: {exception_text(other)}")
    if failure.followers:
        hints.append(f"What rank {rank_list(failure.followers)} reported followed from it.")
    return " ".join([where, *hints])


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    doc=Doc(
        "crit",
        "an exception ended the run: rank, step, phase, module, line",
        __doc__,
        symptoms=(Symptom.DIED,),
    ),
)
