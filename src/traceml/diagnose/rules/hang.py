"""Hang: no step came any more, and some rank stood still.

*Meaning.* No rank took a step for far longer than a step takes, and the run was ended so, or
still stands. The agent has asked every rank for its Python stacks (signal SIGRTMIN+3, sent only
to a process that is known to catch it), three times: a rank whose stack has changed, that
computes on the CPU, or whose GPU is at work while nobody stands in a collective, is busy and not
stuck. The culprit is the rank that is not where the others wait: in a collective, or in backward,
where DDP waits; or, where all wait in collectives, the one that has begun fewer of them since its
last step. What the agents of several machines saw at one time is one hang of all their ranks. A
process that trains alone waits for nobody: it is the culprit itself. The stacks are in the run
folder, `stacks/`.

With NCCL the host goes on after it has begun a collective, so stacks do not show who waits. There
torch's flight recorder is read, which is on by default since torch 2.7 and writes the last
collectives of each rank to a file when one of them times out (`TORCH_NCCL_DUMP_ON_TIMEOUT`), or at
once where the job sets `TORCH_NCCL_DEBUG_INFO_PIPE_FILE`: collectives of a process group have the
same numbers on every rank, so that the one that a rank never began is named, with its group and
size, or the other operation that it began instead. The file is read without loading any code.

*Evidence.* `rank` and `where` of the culprit, `phase` (the innermost that it had begun and not
ended), `step`, `waiting_ranks`, `collective`, `collective_number` and `group` (by the flight
recorder), `no_step_for_s`, `usual_step_s`, `stacks`.

*Thresholds.* 20 s, 30 usual steps, and twice the longest pause so far (without the first step),
whichever is longest; the three looks are 5 s apart, so that a hang is told 32 s after the last step
at the earliest, while it lasts. They are repeated each time the pause has doubled. A GPU
is at work with a sampled utilisation of 50 % at every look; a rank on the CPU with half a core
between two.

*What to do.* See why that rank did not come: its line is named. Where the ranks wait in different
collectives, they took different branches; where one had ended, it had fewer steps.

*Silent* when steps came again (a long pause, which `STABLE` mentions), when every rank was busy
(a long evaluation, a checkpoint), when a rank had failed or died before, in a notebook between
two cells, about ranks whose steps are no longer recorded (`--trace-max-steps`), and before a
rank's first step: what hangs while the job starts (`init_process_group`, loading a model) is not
seen. Ranks on GPUs that all wait for a kernel outside any Python call of a collective look busy,
and so do not count as stuck unless the flight recorder shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceml.diagnose.failure_words import (
    clock_time,
    lost_machines,
    lost_ranks,
    of_machine,
    rank_list,
    ranks_of,
)
from traceml.diagnose.nodes import listed_nodes
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.stability import Failure
from traceml.model.evidence import Evidence, as_number, as_words, in_s
from traceml.model.failure import Doing, Stall, Standing
from traceml.model.finding import Finding, Kind, Section, Severity, StepSpan
from traceml.model.quantities import duration, memory

KIND = Kind.HANG

MAX_NAMED = 8  # ranks in one sentence

_SAME_ORDER = "Have every rank take the same branch and call the same collectives in the same order"

_DOING = {
    Doing.COLLECTIVE: "waits for the other ranks",
    Doing.BACKWARD: "is in backward, where DDP waits for the other ranks",
    Doing.INPUT: "waits for its data loader",
    Doing.CODE: "stands",
    Doing.IDLE: "waits for a person",
}


def check(facts: Facts) -> Finding | None:
    """Fires when the run ended, or is, in a hang."""
    failure = facts.stability.failure
    if failure is None or failure.kind is not KIND or failure.stall is None:
        return None
    stall, waiting = failure.stall, failure.waiting
    stuck = stall.collectives[0] if stall.collectives else None
    names = facts.node_names
    of_lost = tuple(rank for node in failure.lost for rank in node.ranks)
    culprits = of_lost or ranks_of(failure)
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.CRITICAL,
        claim=_claim(failure, stall, waiting, names),
        action=_action(failure, stall, waiting),
        ranks=culprits or tuple(each.rank for each in stall.ranks),
        nodes=tuple(node.name for node in failure.lost),
        steps=None if failure.step is None else StepSpan(failure.step),
        evidence=Evidence(
            as_number("rank", failure.rank),
            as_number("step", failure.step),
            as_words("where", failure.culprits[0].where if failure.culprits else None),
            as_words("phase", failure.culprits[0].phase if failure.culprits else None),
            as_words("waiting_ranks", ", ".join(str(each.rank) for each in waiting) or None),
            as_words("collective", next((each.call for each in waiting if each.call), None)),
            as_number("collective_number", None if stuck is None else stuck.number),
            as_words("group", None if stuck is None else stuck.group),
            in_s("no_step_for_s", stall.seen_unix_s - stall.since_unix_s),
            in_s("usual_step_s", stall.usual_s),
            as_words("stacks", ", ".join(stall.stacks) or None),
        ),
    )


def _claim(
    failure: Failure, stall: Stall, waiting: Sequence[Standing], names: Mapping[int, str]
) -> str:
    still_s = stall.seen_unix_s - stall.since_unix_s
    begin = (
        f"No step came for {duration(still_s)} after step {(failure.step or 1) - 1:,} "
        f"(a usual one takes {duration(stall.usual_s)})"
    )
    if failure.lost:
        lost = failure.lost
        heard = clock_time(max(node.last_heard_unix_s for node in lost))
        said = f"nothing was heard of {lost_machines(lost)} ({lost_ranks(lost)}) after {heard}"
        return f"{begin}: {said}{f', while {_waits(waiting)}' if waiting else ''}."
    recorded = _recorded(failure, stall, names)
    if recorded:
        return f"{begin}: {recorded}."
    if failure.culprits and all(each in waiting for each in failure.culprits):
        others = [each for each in waiting if each not in failure.culprits]
        return f"{begin}: {_is_behind(failure.culprits, others, names)}."
    if failure.culprits:
        said = "; ".join(_stands(each, names, waits=False) for each in failure.culprits[:MAX_NAMED])
        also = f", while {_waits(waiting)}" if waiting else ""
        return f"{begin}: {said}{also}."
    if len({each.call or each.doing for each in waiting}) > 1:
        said = "; ".join(_stands(each, names, waits=True) for each in waiting[:MAX_NAMED])
        return f"{begin}: the ranks wait in different places: {said}."
    return f"{begin}: {_waits(waiting)}, and none of the ranks here is missing."


def _recorded(failure: Failure, stall: Stall, names: Mapping[int, str]) -> str | None:
    """Returns what the flight recorder says of the collective that ranks wait in; `None` where
    there is nothing, or nobody is missing from it."""
    stuck = stall.collectives[0] if stall.collectives else None
    if stuck is None or not (stuck.missing or stuck.others):
        return None
    size = "" if stuck.size_bytes is None else f" ({memory(stuck.size_bytes)})"
    number = f"#{stuck.number:,} of group {stuck.group}"
    waited = duration(stall.seen_unix_s - stuck.since_unix_s)
    if not stuck.missing:
        others = "; ".join(f"rank {rank} began {name}" for rank, name in stuck.others[:MAX_NAMED])
        return (
            f"the ranks took different branches: as collective {number} {_ranks(stuck.waiting)} "
            f"began {stuck.name}{size}; {others}"
        )
    verb = "has" if len(stuck.waiting) == 1 else "have"
    parts = [
        f"{_ranks(stuck.missing)} never reached {stuck.name} {number}{size}, which "
        f"{_ranks(stuck.waiting)} {verb} waited in for {waited}"
    ]
    parts += [_stands(each, names, waits=False) for each in failure.culprits[:MAX_NAMED]]
    return "; ".join(parts)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {rank_list(ranks)}" if ranks else "no rank"


def _is_behind(
    culprits: Sequence[Standing], others: Sequence[Standing], names: Mapping[int, str]
) -> str:
    """Returns who waits in an earlier collective than the others, and in which."""
    behind = "; ".join(_stands(each, names, waits=True) for each in culprits[:MAX_NAMED])
    calls, most = culprits[0].collectives or 0, max(each.collectives or 0 for each in others)
    return (
        f"{behind}, in call {calls:,} of a collective since its last step, while {_waits(others)}, "
        f"in call {most:,}: they took different branches"
    )


def _stands(each: Standing, names: Mapping[int, str], waits: bool) -> str:
    where = f" at {each.where}" if each.where else ""
    busy = " and is busy" if each.moved else ""
    who = f"rank {each.rank}{of_machine([each.rank], names)}"
    return f"{who} {_does(each, waits)}{where}{busy}"


def _does(each: Standing, waits: bool) -> str:
    if each.doing is Doing.UNKNOWN:
        return f"has gone after step {each.steps:,}"
    if not waits and each.doing in (Doing.COLLECTIVE, Doing.BACKWARD):
        return f"stands in {each.call or 'backward'}"  # there is nobody else to wait for
    call = f" in {each.call}" if each.call else ""
    phase = f" in {each.phase}" if each.doing is Doing.CODE and each.phase else ""
    return f"{_DOING[each.doing]}{call}{phase}"


def _waits(waiting: Sequence[Standing]) -> str:
    ranks = ", ".join(str(each.rank) for each in waiting[:MAX_NAMED])
    call = next((each.call for each in waiting if each.call), None)
    where = next((each.where for each in waiting if each.where), None)
    place = f" in {call}" if call else " in backward"
    verb = "waits" if len(waiting) == 1 else "wait"
    noun = "rank" if len(waiting) == 1 else "ranks"
    return f"{noun} {ranks} {verb}{place}{f' at {where}' if where else ''}"


def _stacks(stall: Stall, culprit: Standing | None) -> str:
    """Where to read on: the culprit's stack, if it is there."""
    if not stall.stacks:
        return ""
    file = stall.stacks[0]
    if culprit is not None:
        file = max(stall.stacks, key=lambda name: _matches(name, culprit))
    return f" The stacks are in {file}."


def _matches(file: str, culprit: Standing) -> int:
    """Returns how much of a file's name, `stacks/rank-3-1001.txt`, is the culprit's: two machines
    may have a process of that number, and it has another one among those of all machines."""
    is_process = file.endswith(f"-{culprit.pid}.txt")
    is_rank = f"/rank-{culprit.rank}-" in file
    return is_process + is_rank


def _action(failure: Failure, stall: Stall, waiting: Sequence[Standing]) -> str:
    culprit = failure.culprits[0] if failure.culprits else None
    stacks = _stacks(stall, culprit)
    if failure.lost:
        names = listed_nodes([each.name for each in failure.lost])
        return (
            f"See whether {names} still runs and is on the network; the others wait for it.{stacks}"
        )
    if culprit is not None and culprit.doing is Doing.INPUT:
        return f"See what blocks the data loader: a worker's lock, or storage.{stacks}"
    if culprit is not None and culprit.doing is Doing.UNKNOWN:
        return (
            f"Give every rank the same number of steps: rank {culprit.rank} left the others "
            f"waiting.{stacks}"
        )
    if culprit is not None and culprit in waiting:
        return f"{_SAME_ORDER}.{stacks}"
    if culprit is not None:
        never = " never came to the collective" if waiting else " did not go on"
        return f"See why rank {culprit.rank}{never}: {culprit.where or 'see its stack'}.{stacks}"
    return f"{_SAME_ORDER}; ranks on other machines may be missing.{stacks}"


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    doc=Doc(
        "crit",
        "the steps stopped; which rank the others waited for",
        __doc__,
        symptoms=(Symptom.STOPPED,),
    ),
)
