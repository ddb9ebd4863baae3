"""Killed: a process ended without an exception, by a signal or for a reason nobody saw."""

from __future__ import annotations

import signal

from traceml.diagnose import advice
from traceml.diagnose.places import evidence_of, place, ranks_of, signal_name, who
from traceml.facts.facts import Facts
from traceml.facts.stability import Failure
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent

KIND = Kind.KILLED

FULL_RAM = 0.95  # of the host's memory in the last samples: then a SIGKILL was for memory

ASKED_TO_END = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
"""What people and batch systems send to end a job: said, and no failure."""
CRASHES = {
    signal.SIGSEGV: "Native code used memory that was not its own",
    signal.SIGBUS: (
        "A mapped file or shared memory had no room behind it: /dev/shm or the disk is full (give "
        "a container more with --shm-size), or the file was cut short"
    ),
    signal.SIGABRT: (
        "Native code stopped itself (a failed check in C++, CUDA or NCCL, or corrupted memory): "
        "its last lines on stderr say why"
    ),
    signal.SIGILL: "The library was built for another CPU: it used an instruction this one lacks",
    signal.SIGFPE: "Native code divided an integer by zero",
}
"""What a signal that native code brings upon itself usually means."""


def check(facts: Facts) -> Finding | None:
    """Fires when a process died without an exception."""
    failure = facts.stability.failure
    if failure is None or failure.kind is not KIND:
        return None
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=_severity(failure),
        claim=_claim(failure),
        action=_action(facts, failure),
        ranks=ranks_of(failure),
        evidence={
            **evidence_of(failure),
            "signal": None if failure.signal is None else signal_name(failure.signal),
            "status": failure.status,
            "ram_share": failure.last.ram_share,
            "rss_bytes": failure.last.rss_bytes,
            "oom_kills": failure.last.oom_kills,
        },
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


def _claim(failure: Failure) -> str:
    number = failure.signal
    if failure.timed_out:
        how = "" if number is None else f" with {signal_name(number)}"
        return f"The command timeout ended the run{how}{place(failure)}: its time was up."
    if number in ASKED_TO_END:
        return f"The run was ended by {signal_name(number)}{place(failure)}."
    if number is not None and failure.said_goodbye:
        return f"The command died of {signal_name(number)} after its training had ended."
    if number is not None:
        claim = f"{who(failure)} was killed by {signal_name(number)}{place(failure)}"
    elif failure.status is not None:
        claim = f"{who(failure)} left with exit status {failure.status}{place(failure)}"
    else:
        claim = (
            f"{who(failure)} disappeared{place(failure)}: no exception, signal or status was seen"
        )
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
    fewer = advice.fewer_workers(facts)
    return f"use {fewer}, " if fewer else ""
