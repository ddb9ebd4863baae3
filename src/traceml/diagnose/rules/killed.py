"""Killed: a process ended without an exception, by a signal or for an unknown reason.

*Meaning.* A process ended without an exception: by a signal, by `os._exit` on one rank of
several, or for a reason that nobody saw. Of several ranks the first to die is named; the agent is
woken by the end of each. A run that SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 or SIGUSR2 ended
was asked to end: that is only said (`info`), and `failure` stays `null`. The same holds where the
command `timeout` ended it.

A program between us and the script (`timeout`, a shell, `srun`) collects the script's status
itself. Since Linux 6.15 the kernel tells the agent all the same; on an older one the agent may be
too late. Then the program's own status says what it can: 128 + n is signal n, and 124 of
`timeout` that the time was up. With any other status the rank "disappeared": killed, or left by
`os._exit`, nobody can say.

Of a run over several machines: a machine whose agent fell silent with all its ranks, and of which
nobody saw the end, was lost, and is named. The last known step of its ranks is told.

*Evidence.* `signal`, `status`, `rank`, `step`, and the agent's last samples: `ram_share` (the
highest of the last 5 seconds), `rss_bytes` of that rank, `oom_kills` (processes that the kernel
killed for memory while the run went on). Of lost machines `lost_nodes`, `last_known_step` and
`last_heard`.

*Thresholds.* RAM 95 % full, or one kill counted by the kernel: then the out-of-memory killer is
the likely cause of a SIGKILL. `warn` where the training had ended before, or nobody saw the end.
A machine is lost where the others took no step more than 10 s after it was last heard of: else only
its link was cut.

*What to do.* Memory: fewer data workers, less in memory. A crash: the action says what that
signal usually means (SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE), and `PYTHONFAULTHANDLER=1` shows
the line. Otherwise the batch system's log says who sent the signal. A lost machine: see its health,
its power and network, and whether it was taken away (preemption).

*Silent* when a process chose its own status (`sys.exit(3)`, `os._exit(3)`).
"""

from __future__ import annotations

import signal

from traceml.diagnose import settings_advice
from traceml.diagnose.failure_words import (
    clock_time,
    evidence_of,
    failed_ranks,
    failure_place,
    lost_machines,
    lost_ranks,
    ranks_of,
    steps_of,
)
from traceml.diagnose.nodes import listed_nodes
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.stability import Failure
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent
from traceml.model.run import signal_name

KIND = Kind.KILLED

FULL_RAM = 0.95  # of the host's memory in the last samples: then a SIGKILL was for memory

ASKED_TO_END = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
"""Signals that people and batch systems send to end a job: reported, but no failure."""
CRASHES = {
    signal.SIGSEGV: "Native code used memory that was not its own",
    signal.SIGBUS: (
        "A mapped file or shared memory ran out of space: /dev/shm or the disk is full (give "
        "a container more with --shm-size), or the file was cut short"
    ),
    signal.SIGABRT: (
        "Native code stopped itself (a failed check in C++, CUDA or NCCL, or corrupted memory): "
        "its last lines on stderr say why"
    ),
    signal.SIGILL: "The library was built for another CPU: it used an instruction this one lacks",
    signal.SIGFPE: "Native code divided an integer by zero",
}
"""What a signal usually means that native code causes by itself."""


def check(facts: Facts) -> Finding | None:
    """Fires when a process died without an exception."""
    failure = facts.stability.failure
    if failure is None or failure.kind is not KIND:
        return None
    lost = failure.lost
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=_severity(failure),
        claim=_claim_of_lost(facts, failure) if lost else _claim(facts, failure),
        action=_action(facts, failure),
        ranks=tuple(rank for node in lost for rank in node.ranks) or ranks_of(failure),
        nodes=tuple(node.name for node in lost),
        steps=steps_of(failure),
        evidence=Evidence(
            *evidence_of(failure),
            as_words("lost_nodes", ", ".join(node.name for node in lost) or None),
            as_number("last_known_step", lost[0].steps if lost else None),
            as_words("last_heard", clock_time(lost[0].last_heard_unix_s) if lost else None),
            as_words("signal", None if failure.signal is None else signal_name(failure.signal)),
            as_number("status", failure.status),
            as_share("ram_share", failure.last.ram_share),
            in_bytes("rss_bytes", failure.last.rss_bytes),
            as_number("oom_kills", failure.last.oom_kills),
        ),
    )


def _severity(failure: Failure) -> Severity:
    if failure.signal in ASKED_TO_END or failure.timed_out:
        return Severity.INFO
    if failure.said_goodbye or not failure.was_watched:
        return Severity.WARNING  # the training was over, or nobody can say that it was not
    return Severity.CRITICAL


def _for_memory(failure: Failure) -> bool:
    if failure.signal not in (signal.SIGKILL, None):
        return False
    full = failure.last.ram_share is not None and failure.last.ram_share >= FULL_RAM
    return full or bool(failure.last.oom_kills)


def _claim_of_lost(facts: Facts, failure: Failure) -> str:
    lost = failure.lost
    was, it, its = ("was", "it", "its") if len(lost) == 1 else ("were", "them", "their")
    heard = max(node.last_heard_unix_s for node in lost)
    steps = max(node.steps for node in lost)
    known = f"; {its} last known step is {steps:,}" if steps else ", before a training step"
    what = f"{lost_machines(lost)} {was} lost with {lost_ranks(lost)}"
    claim = (
        f"{what[0].upper()}{what[1:]}: nothing was heard of {it} after {clock_time(heard)}{known}."
    )
    names = facts.node_names
    others = list(dict.fromkeys(names[rank] for rank in failure.followers if rank in names))
    return f"{claim} {listed_nodes(others)} could not go on without {it}." if others else claim


def _claim(facts: Facts, failure: Failure) -> str:
    number = failure.signal
    who, place = failed_ranks(failure, facts.node_names), failure_place(failure)
    if failure.timed_out:
        how = "" if number is None else f" with {signal_name(number)}"
        return f"The command timeout ended the run{how}{place}: its time was up."
    if number in ASKED_TO_END:
        return f"The run was ended by {signal_name(number)}{place}."
    if number is not None and failure.said_goodbye:
        who = "The command" if failure.rank is None else who
        return f"{who} was killed by {signal_name(number)} after its training had ended."
    if number is not None:
        claim = f"{who} was killed by {signal_name(number)}{place}"
    elif failure.status is not None:
        claim = f"{who} left with exit status {failure.status}{place}"
    else:
        claim = f"{who} disappeared{place}: no exception, signal or status was seen"
    last = failure.last
    parts = [
        None if last.ram_share is None else f"{percent(last.ram_share)} of RAM in use",
        None if last.rss_bytes is None else f"{memory(last.rss_bytes)} its own",
        f"{last.oom_kills} killed by the kernel for memory" if last.oom_kills else None,
    ]
    shown = ", ".join(part for part in parts if part)
    return f"{claim}; last seen: {shown}." if shown else f"{claim}."


def _action(facts: Facts, failure: Failure) -> str:
    number = failure.signal
    if failure.timed_out:
        return "Nothing to do, if that was meant; otherwise give timeout more time."
    if number in ASKED_TO_END:
        return "Nothing to do, if that was meant: a person or the batch system asked it to end."
    if _for_memory(failure):
        return (
            f"The kernel's out-of-memory killer is the likely cause: {_fewer(facts)}hold less in "
            "memory, or ask for more of it."
        )
    if failure.lost:
        which = "it" if len(failure.lost) == 1 else "they"
        return (
            f"See what became of {listed_nodes([each.name for each in failure.lost])}: whether "
            f"{which} crashed, lost power or the network, or the cloud or the batch system took "
            f"{which if which == 'it' else 'them'} away (preemption); then go on from the last "
            "checkpoint."
        )
    if number is not None and number in CRASHES:
        return (
            f"{CRASHES[signal.Signals(number)]}. Run once with PYTHONFAULTHANDLER=1 to see the "
            "Python line, then look at the extension or driver it was in."
        )
    if number is not None:
        return "See who sent it: the batch system's log (time or memory limit), or a person."
    if failure.status is not None:
        return "Look for os._exit, or a library that ends the process, on that rank."
    return (
        "Look for a SIGKILL (the batch system's log, the kernel's out-of-memory killer in dmesg), "
        "a crash in native code, or os._exit."
    )


def _fewer(facts: Facts) -> str:
    fewer = settings_advice.fewer_workers(facts)
    return f"use {fewer}, " if fewer else ""


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    doc=Doc(
        "info, warn, crit",
        "a process was killed by a signal, or ended for an unknown reason",
        __doc__,
        symptoms=(Symptom.DIED,),
    ),
)
