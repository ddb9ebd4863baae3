"""What is known about a run that went wrong: what its ranks said, and what the agent saw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import PurePath
from typing import Any

from traceml.model.rank import Rank

STACKS_SIGNAL_ABOVE_FIRST = 3
"""The realtime signal for a rank's stacks is SIGRTMIN plus this: the C library and debuggers use
the first ones, and SIGUSR1 and SIGUSR2 belong to batch systems and users."""
STACKS_SUFFIX = ".stacks"
"""A rank's stacks are written beside its ring: in memory, so that no disk can hold it up."""


@dataclass(frozen=True, slots=True)
class MemoryAtFailure:
    """Where memory went when there was no more of it; the GPU's unless `is_host`."""

    is_host: bool = False
    tried_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    batch_samples: int | None = None
    """Of the batch that did not fit: in a step with several, one of them."""
    input_elements: int | None = None
    """Of the first tensor that the model was called with."""
    is_graph_kept: bool = False
    """The model was in evaluation mode, and autograd kept what a backward pass needs."""
    resident_bytes: int | None = None
    """What the process held of the host's memory."""
    limited_by: str | None = None
    """The limit (`RLIMIT_AS` or `RLIMIT_DATA`) that allows the process no more than `total_bytes`;
    `None` where it has no limit below the machine's memory."""
    machine_bytes: int | None = None
    """The memory of the whole machine."""

    @property
    def activation_bytes(self) -> int | None:
        """What tensors occupied besides parameters, gradients and optimizer state."""
        if self.allocated_bytes is None or self.parameter_bytes is None:
            return None
        fixed = self.parameter_bytes + (self.gradient_bytes or 0) + (self.optimizer_bytes or 0)
        return max(0, self.allocated_bytes - fixed)


@dataclass(frozen=True, slots=True)
class FailureReport:
    """An exception as the rank that met it wrote it down."""

    rank: int
    error: str
    """The exception's type, `RuntimeError`."""
    message: str
    step: int | None = None
    """The step it happened in, counted from 1; `None` where steps were no longer counted."""
    phase: str | None = None
    """`forward`, `input` and so on; `None` outside every phase."""
    module: str | None = None
    """The dotted name of the module it happened in, or its class where it has no name."""
    where: str | None = None
    """The user's own innermost line: `train.py:12 in forward`."""
    is_handled: bool = False
    """The script caught it: a failure only where the run ended badly without another step."""
    worker: int | None = None
    """The DataLoader worker it came from."""
    memory: MemoryAtFailure | None = None
    """Where it says that there was no more memory."""
    unix_s: float = 0.0
    pid: int = 0
    snapshot: str | None = None
    """The file in the run folder with the allocator's snapshot of that moment, if one was asked
    for."""
    traceback: str | None = None
    """As Python prints it, chained exceptions included, without our frames and without secrets."""
    is_rank: bool = True
    """Its process takes training steps, or a launcher gave it a rank; `False` for a script that
    fails before anybody can know."""
    started_by: int | None = None
    """The pid of the script whose helper this process was; `None` for a script and for a rank."""


@dataclass(frozen=True, slots=True)
class Death:
    """A rank's process ended, as the agent saw it."""

    rank: int
    pid: int
    unix_s: float
    status: int | None = None
    """As a shell would report it; `None` where its parent had collected it already."""
    hostname: str = ""
    """Its machine; empty where that is not known."""

    def is_of(self, rank: Rank) -> bool:
        """Whether this rank's process ended."""
        return self.pid == rank.pid and self.hostname in ("", rank.hostname)


class Doing(str, Enum):
    """What a rank that takes no steps is at."""

    COLLECTIVE = "collective"
    """Waits for other ranks."""
    BACKWARD = "backward"
    """Inside a backward pass, where DDP waits for other ranks too."""
    INPUT = "input"
    """Waits for its data loader."""
    IDLE = "idle"
    """Waits for a person: a notebook between two cells."""
    CODE = "code"
    """Anywhere else."""
    UNKNOWN = "unknown"
    """Its stacks could not be had."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank stood when no steps came."""

    rank: int
    pid: int
    doing: Doing
    steps: int
    """Steps it had taken."""
    call: str | None = None
    """The collective it waits in, by name."""
    where: str | None = None
    """The user's own innermost line."""
    moved: bool = False
    """A second look some seconds later found it elsewhere, or computing: it is busy, not stuck."""
    phase: str | None = None
    """The innermost phase of its step that it had begun and not ended, as the tracer saw it."""
    collectives: int | None = None
    """Calls of collectives that it had begun since its last step; `None` where that is not
    known."""

    @property
    def waits_for_others(self) -> bool:
        """Whether it can go on only when other ranks do."""
        return self.doing in (Doing.COLLECTIVE, Doing.BACKWARD) and not self.moved


@dataclass(frozen=True, slots=True)
class StuckCollective:
    """A collective of NCCL that ranks wait in, by torch's flight recorder."""

    group: str
    """What torch calls the process group: `default_pg`."""
    number: int
    """Its place among the collectives of the group, the same on every rank."""
    name: str
    since_unix_s: float
    """When the last of the ranks that wait had arrived."""
    waiting: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """The ranks that did not arrive."""
    size_bytes: int | None = None
    others: tuple[tuple[int, str], ...] = ()
    """Ranks that began another operation under the same number, and which."""
    unknown: tuple[int, ...] = ()
    """Ranks of the group of which there is no record."""
    where: str | None = None
    """The user's line in a rank that waits."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A time without steps, far longer than a step takes."""

    since_unix_s: float
    """When the last step ended."""
    seen_unix_s: float
    """When the stacks were taken."""
    usual_s: float
    """A usual step's wall time."""
    ranks: tuple[Standing, ...] = ()
    resumed_unix_s: float | None = None
    """When steps came again: then it was a pause, not a hang."""
    stacks: tuple[str, ...] = ()
    """Files in the run folder that hold the stacks."""
    collectives: tuple[StuckCollective, ...] = ()
    """By NCCL's flight recorder, where it was on; the one that was begun first at first."""
    first_seen_unix_s: float | None = None
    """When the stacks were first taken, where that was done again since."""

    @property
    def noticed_unix_s(self) -> float:
        """When it was known that no steps came: whoever died later did not cause it."""
        return self.seen_unix_s if self.first_seen_unix_s is None else self.first_seen_unix_s


@dataclass(frozen=True, slots=True)
class AgentSaw:
    """What the agent of one node saw go wrong."""

    deaths: tuple[Death, ...] = ()
    """In the order in which they were seen."""
    stalls: tuple[Stall, ...] = ()
    scripts: tuple[int, ...] = ()
    """The pids of the scripts and ranks that were started, traced or not."""


NOTHING_SEEN = AgentSaw()


# Texts of exceptions

_OUT_OF_MEMORY = re.compile(
    r"out of memory|_ALLOC_FAILED|DefaultCPUAllocator: (can't allocate|not enough) memory|"
    r"Unable to allocate [\d.]+ [KMGTP]?i?B",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset)( by peer)?|broken pipe|socket ?timeout|"
    r"\bgloo\b.*(closed|timed? ?out|refused)|timed out waiting .* (recv|send)|"
    r"NCCL (communicator|error|operation|timeout)|ncclRemoteError|ncclSystemError|"
    r"watchdog caught collective|remote process exited|DistBackendError|"
    r"process group has (been )?(aborted|destroyed)",
    re.IGNORECASE | re.DOTALL,
)
_FROM_ANOTHER_PROCESS = frozenset(
    {
        "ProcessRaisedException",
        "ProcessExitedException",
        "ChildFailedError",
        "CalledProcessError",
        "SignalException",
    }
)
"""What a launcher raises because a rank has failed."""
_NUMBER = re.compile(r"\d+")
_UNITS = {"bytes": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_AMOUNT = r"([\d.]+) (bytes|[KMGT]?i?B)"
_AMOUNTS: dict[str, tuple[str, ...]] = {
    "tried_bytes": (rf"tried to allocate {_AMOUNT}", rf"Unable to allocate {_AMOUNT}"),
    "total_bytes": (rf"total capacity of {_AMOUNT}", rf"{_AMOUNT} total capacity"),
    "free_bytes": (rf"of which {_AMOUNT} is free", rf"{_AMOUNT} free"),
    "allocated_bytes": (
        rf"{_AMOUNT} is allocated by PyTorch",
        rf"Of the allocated memory {_AMOUNT}",
        rf"{_AMOUNT} already allocated",
    ),
    "reserved_bytes": (rf"{_AMOUNT} reserved in total",),
    "unallocated_bytes": (rf"{_AMOUNT} is reserved by PyTorch but unallocated",),
}


def is_out_of_memory(error: str, message: str) -> bool:
    """Whether an exception says that there was no more memory, on a GPU or on the host."""
    if error in ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError"):
        return True
    return bool(_OUT_OF_MEMORY.search(message))


def is_host_memory(error: str, message: str) -> bool:
    """Whether the memory that ran out was the host's."""
    return error in ("MemoryError", "_ArrayMemoryError") or "CPUAllocator" in message


def is_consequence(error: str, message: str) -> bool:
    """Whether an exception only says that another process has gone or failed."""
    return error in _FROM_ANOTHER_PROCESS or bool(_CONSEQUENCE.search(f"{error}: {message}"))


def is_a_launchers(error: str) -> bool:
    """Whether an exception is how a launcher of ranks says that one of them ended badly."""
    return error in ("ChildFailedError", "SignalException")


def says_a_command_failed(error: str) -> bool:
    """Whether an exception only says that a command which the script had started has failed."""
    return error == "CalledProcessError"


def are_alike(one: FailureReport, other: FailureReport) -> bool:
    """Whether two ranks met the same error: of one type, at one line or with one text.

    Texts may differ in their numbers, which name the rank, its device or its batch.
    """
    if one.error != other.error:
        return False
    is_same_line = one.where is not None and one.where == other.where
    return is_same_line or _NUMBER.sub("#", one.message) == _NUMBER.sub("#", other.message)


def amounts_in(message: str) -> dict[str, int]:
    """The amounts of memory that torch's own message names."""
    found = dict(_amounts(message))
    unallocated = found.pop("unallocated_bytes", None)
    if unallocated is not None and "allocated_bytes" in found:
        found.setdefault("reserved_bytes", found["allocated_bytes"] + unallocated)
    return found


def _amounts(message: str) -> Iterator[tuple[str, int]]:
    for name, patterns in _AMOUNTS.items():
        for pattern in patterns:
            match = re.search(pattern, message, re.IGNORECASE)
            if match:
                yield name, int(float(match[1]) * _UNITS[match[2].lower()])
                break


def report_from(message: dict[str, Any]) -> FailureReport:
    """A report as it came through the ring; raises TypeError for anything else."""
    known = {field.name for field in fields(FailureReport)}
    values = {name: value for name, value in message.items() if name in known}
    memory = values.get("memory")
    if memory is not None:
        names = {field.name for field in fields(MemoryAtFailure)}
        memory = MemoryAtFailure(**{n: value for n, value in memory.items() if n in names})
    return FailureReport(**{**values, "memory": memory})


# Lines of code

_PACKAGE = str(PurePath(__file__).parent.parent) + "/"
_NOT_THE_USERS = re.compile(r"/(site|dist)-packages/|/lib/python3\.?\d*/|^<frozen")


def is_users(file: str) -> bool:
    """Whether a file is the user's own: not Python's, not installed, not ours."""
    return not file.startswith(_PACKAGE) and not _NOT_THE_USERS.search(file)


def line_name(file: str, line: int | str, function: str, folder: str) -> str:
    """A line as people look it up; the folder is the one the script was started in."""
    inside = folder.rstrip("/") + "/"
    shown = file if inside == "/" else file.removeprefix(inside)
    return f"{shown}:{line} in {function}"
