"""How a run ended, and what explains it: the first thing that went wrong, not what followed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from signal import SIGABRT, SIGTERM

from traceml.facts.losses import LossFacts, loss_facts
from traceml.facts.lost_nodes import LostNode, lost_nodes
from traceml.facts.rank_ends import (
    NOT_SAMPLED,
    LastSamples,
    last_batch,
    last_peaks,
    last_resident_bytes,
    last_samples,
    last_step_unix_s,
    steady_growth,
    steps_taken,
)
from traceml.model.failure import (
    Death,
    Doing,
    FailureReport,
    Stall,
    Standing,
    are_alike,
    is_a_launchers,
    is_consequence,
    says_a_command_failed,
)
from traceml.model.finding import Kind
from traceml.model.run import Ending, signal_of
from traceml.store.records import RankRecords, RunRecords

TIMEOUT_STATUS = 124
"""With which the command `timeout` ends when it had to end its own."""
_TIMEOUT = re.compile(r"(^|[\s/;&|(])g?timeout\s")
SILENT_S = 10.0
"""A machine counts as lost after it was silent for this long, while the run goes on or where the
head may have ended together with other machines. Its records come every second, or every few
seconds."""


RECORDS_LAG_S = 5.0
"""A machine may have gone on for this long after it was last heard of. What a rank elsewhere died
of within that time came first …"""
SIGNALS_OF_A_LOSS = (SIGTERM, SIGABRT)
"""… but for these: launchers send SIGTERM once a machine is lost, and NCCL ends its process."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a run."""

    kind: Kind
    rank: int | None = None
    step: int | None = None
    steps_since_start: int | None = None
    """The same step as its process counted it, where the rank was started again."""
    report: FailureReport | None = None
    signal: int | None = None
    """`None` where nobody saw how the process ended."""
    status: int | None = None
    """With which the rank left, where no signal ended it."""
    said_goodbye: bool = False
    """Every rank had ended its training before."""
    is_before_training: bool = False
    """No training step had been taken by then."""
    timed_out: bool = False
    """The command `timeout` ended it, when its time was up."""
    was_watched: bool = True
    """Somebody was there to see the end of the run."""
    stall: Stall | None = None
    culprits: tuple[Standing, ...] = ()
    """The ranks that the others waited for."""
    waiting: tuple[Standing, ...] = ()
    """The ranks that waited for others; one that trains alone waits for nobody."""
    has_hung: bool = False
    """Ranks hung until the end: what ended the run is a hang, or ranks waited for one that died."""
    alike: tuple[int, ...] = ()
    """Other ranks that raised the same exception by themselves."""
    others: tuple[FailureReport, ...] = ()
    """Exceptions of another kind that other ranks raised by themselves."""
    followers: tuple[int, ...] = ()
    """Ranks that failed because this one did."""
    lost: tuple[LostNode, ...] = ()
    """The machines that were lost with their ranks, the first one first."""
    left: Death | None = None
    """The rank that ended with a bad status and raised nothing, where this only says that a process
    has gone."""
    last: LastSamples = NOT_SAMPLED
    allocated_bytes: tuple[int, ...] = ()
    """The peak of each of the last steps on the GPU of this rank, oldest first."""
    samples: int | None = None
    """In the batch that was too large for the memory, else in one of the run's steps; `None` for an
    evaluation whose batch is not known."""
    step_samples: int | None = None
    """In one of its training steps."""
    resident_before_bytes: int | None = None
    """What the process held of the host's memory in the last of these steps that was looked at."""
    resident_growth: tuple[int, int] | None = None
    """What it held in the first of them, and over how many steps it grew from that; `None` where it
    did not grow from step to step."""


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether a run came to its end, and how its loss went."""

    is_over: bool = False
    exit_status: int | None = None
    """Of the command: the script, or a program around it."""
    is_of_script: bool = True
    """That status is the script's own, as far as anybody knows."""
    first_to_leave: Death | None = None
    """The first rank below the command that ended with a status other than 0."""
    failure: Failure | None = None
    pauses: tuple[Stall, ...] = ()
    """Long pauses after which steps came again."""
    loss: LossFacts | None = None


NOTHING_KNOWN = Stability()


def stability(records: RunRecords) -> Stability:
    """How the run ended and how its loss went."""
    ending = records.ending
    still_there = _without_lost_ranks(records)
    pids = [rank.rank.pid for rank in records.ranks]
    return Stability(
        is_over=ending is not None,
        exit_status=None if ending is None else ending.exit_status,
        is_of_script=ending is None or ending.pid in (None, *records.seen.scripts, *pids),
        first_to_leave=_first_to_leave(still_there, ending),
        failure=find_failure(still_there),
        pauses=tuple(s for s in records.seen.stalls if s.resumed_unix_s is not None),
        loss=loss_facts(records.ranks, records.metrics, records.attempt_firsts),
    )


def find_failure(records: RunRecords, is_followed: bool = False) -> Failure | None:
    """Returns what ended a run, or an attempt that `is_followed` by another one; `None` where it
    ended well, or goes on."""
    return _Search(records, is_followed).failure()


def _without_lost_ranks(records: RunRecords) -> RunRecords:
    """Returns the records without ranks, and what they reported, that the last start of the job had
    no longer: with fewer machines it goes on without them, and may end well."""
    if not records.ranks:
        return records
    newest = max(records.ranks, key=_started_unix_s)
    began_s, world = _started_unix_s(newest), newest.rank.world_size
    ranks = tuple(
        each
        for each in records.ranks
        if each.rank.rank < world or last_step_unix_s(each) >= began_s
    )
    if len(ranks) == len(records.ranks):
        return records
    lost = {each.rank.pid for each in records.ranks} - {each.rank.pid for each in ranks}
    reports = tuple(each for each in records.reports if each.pid not in lost)
    return replace(records, ranks=ranks, reports=reports)


def _started_unix_s(rank: RankRecords) -> float:
    return (rank.rank.process_unix_ns or rank.rank.unix_ns) / 1e9


def _first_to_leave(records: RunRecords, ending: Ending | None) -> Death | None:
    """The first rank with a bad status that is not the command itself."""
    command = None if ending is None else ending.pid
    pids = {rank.rank.pid for rank in records.ranks} - {command}
    return next((each for each in records.seen.deaths if each.pid in pids and each.status), None)


class _Search:
    """Looks for the first thing that went wrong in a run.

    A rank's own exception is the cause whatever else is seen; an exception that only says that a
    peer has gone is not, where the peer is known. A process that died before anybody stood still is
    the cause of a hang; one that died in a hang was ended by somebody who had waited enough.
    """

    def __init__(self, records: RunRecords, is_followed: bool) -> None:
        self._records = records
        self._is_followed = is_followed
        self._is_over = records.ending is not None
        self._status = None if records.ending is None else records.ending.exit_status
        self._command_pid = None if records.ending is None else records.ending.pid
        of_last_start = [each for each in records.reports if not self._is_of_former_start(each)]
        self._reports = [
            each
            for each in of_last_start
            if each.started_by is None and (each.is_rank or not is_a_launchers(each.error))
        ]
        self._of_helpers = [each for each in of_last_start if each.started_by is not None]
        self._lost = () if records.ending is None else self._lost_by(records.ending.unix_s)

    def failure(self) -> Failure | None:
        """What explains the end; `None` where the run ended well, or goes on."""
        found = self._cause()
        return found and replace(found, has_hung=self._hang() is not None)

    def _cause(self) -> Failure | None:
        if self._is_over and self._status == 0:
            return None
        raised = [each for each in self._reports if not each.is_handled]
        own = [each for each in raised if not is_consequence(each.error, each.message)]
        if own:
            return self._exception(own[0])
        hang = self._hang()
        if not self._is_over:
            return hang
        killed = self._killed()
        if hang is not None and (killed is None or not self._died_before(killed, hang)):
            return hang
        if killed is not None:
            return killed
        handled = [each for each in self._reports if self._is_last_word(each)]
        last = raised[:1] or handled[-1:]
        return self._exception(self._explained(last[0])) if last else None

    # Exceptions

    def _exception(self, report: FailureReport) -> Failure:
        rank = self._rank(report.rank) if report.is_rank else None
        others = [
            each
            for each in self._reports
            if not each.is_handled and each.is_rank and each.rank != report.rank
        ]
        followers = {each.rank for each in others if _follows(each, report)}
        alike = {each.rank for each in others if are_alike(each, report)} - followers
        told = followers | alike
        former = self._former_steps(report)
        step_samples = None if rank is None else last_batch(rank)
        step = None if report.step is None else report.step + former
        return Failure(
            kind=Kind.EXCEPTION if report.memory is None else Kind.OUT_OF_MEMORY,
            rank=report.rank if report.is_rank else None,
            step=step,
            steps_since_start=report.step if former else None,
            is_before_training=step is None and not self._have_trained(report),
            report=report,
            alike=tuple(sorted(alike)),
            others=tuple(each for each in others if each.rank not in told),
            followers=tuple(sorted(followers)),
            left=self._left_silently() if is_consequence(report.error, report.message) else None,
            last=last_samples(self._records, report.rank),
            allocated_bytes=() if rank is None else last_peaks(rank),
            samples=_failed_samples(report, step_samples),
            step_samples=step_samples,
            resident_before_bytes=None if rank is None else last_resident_bytes(rank),
            resident_growth=None if rank is None else steady_growth(rank),
        )

    def _left_silently(self) -> Death | None:
        """The first rank that ended with a bad exit status of its own and without an exception."""
        spoke = {each.pid for each in self._reports if not each.is_handled}
        ranks = {each.rank.pid: each.rank.rank for each in self._records.ranks}
        return next(
            (
                replace(death, rank=ranks[death.pid])
                for death in self._records.seen.deaths
                if death.pid in ranks
                and death.pid not in spoke
                and death.status
                and signal_of(death.status) is None
            ),
            None,
        )

    def _explained(self, report: FailureReport) -> FailureReport:
        """Of a script that only says that a command has failed: what that command said itself."""
        below = [each for each in self._of_helpers if each.started_by == report.pid]
        is_about_them = says_a_command_failed(report.error) and below
        return below[-1] if is_about_them else report

    def _is_of_former_start(self, report: FailureReport) -> bool:
        """Whether training was started since by another process: only the last start counts.

        A launcher starts a rank again; a shell goes on to the next script.
        """
        return any(
            report.unix_s < _started_unix_s(each)
            for each in self._records.ranks
            if each.rank.pid != report.pid and (each.rank.rank == report.rank or not report.is_rank)
        )

    def _former_steps(self, report: FailureReport) -> int:
        """Steps that the rank took before the process that counted those of this report."""
        rank = self._rank(report.rank)
        is_of_last_start = rank is not None and rank.rank.pid == report.pid
        return rank.former_steps if rank is not None and is_of_last_start else 0

    def _have_trained(self, report: FailureReport) -> bool:
        """Whether the process had taken steps, or any had where it is none of the ranks."""
        ranks = [rank for rank in self._records.ranks if rank.rank.pid == report.pid]
        return any(map(steps_taken, ranks or self._records.ranks))

    def _is_last_word(self, report: FailureReport) -> bool:
        """Whether a handled exception was the last that a rank did before the run ended badly."""
        rank = self._rank(report.rank)
        return bool(self._status) and (rank is None or last_step_unix_s(rank) <= report.unix_s)

    # Processes that died

    def _killed(self) -> Failure | None:
        silent = self._silent()
        first = silent[0] if silent else None
        if first is not None and self._lost_at(first) is not None:
            return self._lost_machine()
        if first is None:
            first = self._killed_at_its_end()
        own = self._own_status(first)
        signal = signal_of(own) or signal_of(self._status)
        timed_out = self._has_timed_out()
        if signal is None and not timed_out and (not silent or self._left_by_itself(silent, own)):
            return None
        if first is None and self._is_alone:
            first = self._records.ranks[0]
        some = first or next(iter(self._records.ranks), None)
        steps = 0 if some is None else steps_taken(some)
        return Failure(
            kind=Kind.KILLED,
            rank=None if first is None else first.rank.rank,
            step=steps + 1 if steps else None,
            signal=signal,
            status=None if signal or timed_out else own,
            said_goodbye=steps > 0 and not silent,
            is_before_training=not steps,
            timed_out=timed_out,
            was_watched=self._status is not None or self._records.manifest.mode == "init",
            followers=tuple(each.rank.rank for each in silent[1:]),
            last=NOT_SAMPLED if some is None else last_samples(self._records, some.rank.rank),
        )

    def _killed_at_its_end(self) -> RankRecords | None:
        """The first rank to end badly, if a signal ended it after its training. Launchers end the
        others by SIGTERM when one has failed, and that may be seen first."""
        ranks = {each.rank.pid: each for each in self._records.ranks}
        badly = (each for each in self._records.seen.deaths if each.pid in ranks and each.status)
        first = min(badly, key=lambda death: death.unix_s, default=None)
        number = None if first is None else signal_of(first.status)
        if first is None or number is None:
            return None
        has_spoken = any(not each.is_handled for each in self._reports)
        return None if number == SIGTERM and has_spoken else ranks[first.pid]

    def _lost_machine(self) -> Failure:
        """The run ended because it lost machines with their ranks."""
        rank = self._lost[0].ranks[0]
        theirs = {pid for node in self._lost for pid in node.pids}
        bad = {death.pid for death in self._records.seen.deaths if death.status}
        spoke = {each.pid for each in self._reports if not each.is_handled}
        stall = self._last_stall()
        waiting = {each.pid for each in stall.ranks} if stall is not None else set()
        return Failure(
            kind=Kind.KILLED,
            rank=rank,
            is_before_training=not self._lost[0].steps,
            was_watched=True,  # by the machines that are left
            followers=tuple(
                each.rank.rank
                for each in self._records.ranks
                if each.rank.pid in (bad | spoke | waiting) - theirs
            ),
            lost=self._lost,
            last=last_samples(self._records, rank),
        )

    def _lost_by(self, unix_s: float) -> tuple[LostNode, ...]:
        """The machines that had been lost by this moment."""
        is_by_itself = self._status is not None and signal_of(self._status) is None
        has_outlived = is_by_itself and not self._has_timed_out()
        silent_s = 0.0 if self._is_followed or has_outlived else SILENT_S
        if self._is_over and not self._is_followed and self._status is None:
            seen_s = [each.unix_s for each in self._records.samples[-1:]]
            unix_s = min(
                [unix_s, *seen_s]
            )  # nobody saw the head end: it was there until its last sample
        spoke = {each.pid for each in self._reports if not each.is_handled}
        died = {death.pid for death in self._records.seen.deaths}
        return lost_nodes(self._records, unix_s, silent_s, spoke | died)

    def _lost_at(self, rank: RankRecords) -> LostNode | None:
        """The machine with which a rank was lost."""
        return next((node for node in self._lost if rank.rank.pid in node.pids), None)

    def _own_status(self, rank: RankRecords | None) -> int | None:
        """How the process of a rank ended; without one, the first script to end badly if a signal
        ended it.

        The run's own status is that of the command, which may be a program around the script.
        """
        deaths = self._records.seen.deaths
        if rank is None:
            ranks = {each.rank.pid for each in self._records.ranks}
            trained_unix_s = max(map(last_step_unix_s, self._records.ranks), default=0.0)
            scripts = (
                death.status
                for death in deaths
                if death.pid not in ranks and death.unix_s > trained_unix_s
            )
            # Those that a launcher ends by a signal because one has failed are not the first.
            first = next((status for status in scripts if status), None)
            return first if signal_of(first) is not None else None
        seen = (death.status for death in deaths if death.is_of(rank.rank))
        found = next((status for status in seen if status is not None), None)
        is_the_command = self._command_pid is None or self._command_pid == rank.rank.pid
        return self._status if found is None and self._is_alone and is_the_command else found

    @property
    def _is_alone(self) -> bool:
        return len(self._records.ranks) == 1

    def _left_by_itself(self, silent: Sequence[RankRecords], own: int | None) -> bool:
        """A single process with a status of its own left by `os._exit`: it chose to."""
        return self._is_alone and len(silent) == 1 and own is not None

    def _has_timed_out(self) -> bool:
        command = " ".join(self._records.manifest.command)
        return self._status == TIMEOUT_STATUS and bool(_TIMEOUT.search(command))

    def _silent(self) -> list[RankRecords]:
        """Ranks that neither said goodbye nor what was wrong, the first to die first."""
        spoke = {each.pid for each in self._reports if not each.is_handled}
        silent = [
            rank
            for rank in self._records.ranks
            if not rank.health.ended and rank.rank.pid not in spoke
        ]
        return sorted(silent, key=lambda rank: (self._died_unix_s(rank), last_step_unix_s(rank)))

    def _death(self, rank: RankRecords) -> Death | None:
        deaths = (death for death in self._records.seen.deaths if death.is_of(rank.rank))
        return next(deaths, None)

    def _died_unix_s(self, rank: RankRecords) -> float:
        death, lost = self._death(rank), self._lost_at(rank)
        if lost is not None:
            return lost.last_heard_unix_s + RECORDS_LAG_S
        if death is None or (self._lost and signal_of(death.status) in SIGNALS_OF_A_LOSS):
            return math.inf
        return death.unix_s

    def _died_before(self, killed: Failure, hang: Failure) -> bool:
        rank = None if killed.rank is None else self._rank(killed.rank)
        noticed_unix_s = 0.0 if hang.stall is None else hang.stall.noticed_unix_s
        return rank is not None and self._died_unix_s(rank) < noticed_unix_s

    # Hangs

    def _hang(self) -> Failure | None:
        stall = self._last_stall()
        if stall is None:
            return None
        stood = {standing.pid for standing in stall.ranks}
        present = [rank for rank in self._records.ranks if rank.rank.pid in stood]
        # An agent that was killed saw no steps come again, and of a job that was started again it
        # is the last start that counts.
        if not present or any(last_step_unix_s(rank) > stall.seen_unix_s for rank in present):
            return None
        self._lost = self._lost if self._is_over else self._lost_by(stall.seen_unix_s)
        waiting = tuple(each for each in stall.ranks if self._waits(each))
        is_stuck = any(
            not each.moved and each.doing not in (Doing.IDLE, Doing.UNKNOWN) for each in stall.ranks
        )
        if not waiting and not is_stuck:
            return None
        culprits = self._culprits(stall, waiting)
        first = culprits[0] if culprits else stall.ranks[0]
        return Failure(
            kind=Kind.HANG,
            rank=culprits[0].rank if culprits else None,
            step=first.steps + 1,
            stall=stall,
            culprits=culprits,
            waiting=waiting,
            lost=tuple(
                node for node in self._lost if {each.pid for each in culprits} & {*node.pids}
            ),
            last=last_samples(self._records, first.rank),
        )

    def _last_stall(self) -> Stall | None:
        """The stall the run is in, or ended in, without the ranks that no longer recorded steps."""
        # Of several nodes, the ranks of one may have gone on after a pause while others hang.
        still_open = [each for each in self._records.seen.stalls if each.resumed_unix_s is None]
        if not still_open:
            return None
        stall = still_open[-1]
        unrecorded = {r.rank.pid for r in self._records.ranks if r.health.recording_ended}
        watched = tuple(
            replace(each, steps=self._steps_of(each.rank, each.steps))
            for each in stall.ranks
            if each.pid not in unrecorded
        )
        return replace(stall, ranks=watched) if watched else None

    def _waits(self, standing: Standing) -> bool:
        """Whether a rank can go on only when others do."""
        alone = {r.rank.pid for r in self._records.ranks if r.rank.world_size == 1}
        return standing.waits_for_others and standing.pid not in alone

    def _culprits(self, stall: Stall, waiting: tuple[Standing, ...]) -> tuple[Standing, ...]:
        """Who the others wait for: whoever does not wait, is behind, or has gone."""
        missing = {rank for each in stall.collectives[:1] for rank in each.missing}
        if missing:
            return tuple(each for each in stall.ranks if each.rank in missing) or self._gone(
                stall, missing
            )
        known = [each for each in stall.ranks if each.doing is not Doing.UNKNOWN]
        elsewhere = tuple(each for each in known if each not in waiting)
        if elsewhere and (waiting or len(known) == 1):
            return elsewhere
        if elsewhere:
            return tuple(each for each in elsewhere if not each.moved)
        return self._gone(stall) or _behind(waiting)

    def _gone(self, stall: Stall, of: Collection[int] | None = None) -> tuple[Standing, ...]:
        """The ranks, of all or of these, whose processes had ended before the stall was seen."""
        present = {each.pid for each in stall.ranks}
        absent = {rank.rank.pid for rank in self._records.ranks} - present
        died = [(each.rank, each.pid, each.unix_s) for each in self._records.seen.deaths]
        for node in self._lost:
            lost = zip(node.ranks, node.pids, strict=True)
            died += [(rank, pid, node.last_heard_unix_s) for rank, pid in lost]
        return tuple(
            Standing(rank, pid, Doing.UNKNOWN, self._steps_of(rank))
            for rank, pid, died_unix_s in died
            if died_unix_s < stall.seen_unix_s and pid in absent and (of is None or rank in of)
        )

    def _steps_of(self, number: int, otherwise: int = 0) -> int:
        """A rank's complete steps as the summary numbers them; a ring counts aborted ones too."""
        rank = self._rank(number)
        return otherwise if rank is None else steps_taken(rank)

    # What the records say of a rank

    def _rank(self, number: int) -> RankRecords | None:
        return next((rank for rank in self._records.ranks if rank.rank.rank == number), None)


def _behind(waiting: Sequence[Standing]) -> tuple[Standing, ...]:
    """Returns the ranks that wait in an earlier collective than others, by the number of calls
    since the last step; empty where all are equally far, or that is not known of some."""
    counts = {each.collectives for each in waiting if each.doing is Doing.COLLECTIVE}
    is_known = None not in counts and len({each.steps for each in waiting}) == 1
    if len(counts) < 2 or not is_known or any(e.doing is not Doing.COLLECTIVE for e in waiting):
        return ()
    least = min(count for count in counts if count is not None)
    return tuple(each for each in waiting if each.collectives == least)


def _follows(report: FailureReport, first: FailureReport) -> bool:
    """Whether a rank failed only because another had: its peer was gone, or never came."""
    if is_consequence(report.error, report.message):
        return True
    return report.phase == "communication" and report.unix_s > first.unix_s


def _failed_samples(report: FailureReport, step_samples: int | None) -> int | None:
    held = report.memory
    if held is not None and held.batch_samples is not None:
        return held.batch_samples
    return None if report.phase == "evaluation" else step_samples
