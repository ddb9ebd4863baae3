"""Lets the agents of several machines find each other, through the store that the job's own
`init_process_group` opened.

Rank 0 publishes how its agent is reached; the first rank of every other machine looks for that and
leaves it for its own agent. Nothing here waits while the job trains, and none of the job's own keys
is touched. The end of a job that was shorter than this takes waits for it, for a moment, where
other machines have said that they are traced too.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from traceml.model.environment import MARKS
from traceml.model.launcher_place import (
    counts_machines,
    machine_count,
    place_in_environment,
    spans_machines,
)
from traceml.model.node import (
    HEAD_MARK,
    HEAD_WANTED_MARK,
    JOIN_MARK,
    JOINED_MARK,
    STORE_ELSEWHERE_KEY,
    STORE_EXPECTED_KEY,
    STORE_KEY,
    STORE_MACHINE_KEY,
    STORE_NO_HEAD_KEY,
    joined_key,
    traced_key,
)
from traceml.trace.compiling import left_alone
from traceml.trace.failure import unhandled
from traceml.trace.interruptions import drop_our_frames, is_interruption
from traceml.trace.job_store import job_store, store_host
from traceml.trace.marks import agent_is_gone, write_mark
from traceml.trace.place import machine_id, place
from traceml.trace.session import Session

MAX_TRIES = 40
MAX_UNCOUNTED_TRIES = 20
"""Tries where no launcher says that there are other machines: the last one is after half a
minute."""
FIRST_PAUSE_NS = 200_000_000
"""Between two tries; the pauses grow by a fifth each time, to 25 minutes in all."""
_GROWTH = 1.2
SHORT_JOB_S = 30.0
"""In a job younger than this, machines may not have found each other when it ends …"""
MAX_END_WAIT_S = 3.0
"""… and its end waits so long at most, on rank 0 and the first rank of each other machine."""
LATE_BEGIN_STEPS = (1, 10)
"""Complete steps after which it is looked whether there is a process group that was made past us:
by an `init_process_group` that the script, or a library, imported before our hooks were set."""
_POLL_S = 0.02
_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")


class HeadExchange:
    """One process's part in it: rank 0 of the job, or the first rank of another machine."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tries_left = MAX_TRIES
        self._due_ns = 0
        self._pause_ns = FIRST_PAUSE_NS
        self._store: Any = None
        self._is_known = False
        """Whether rank 0 has published the head."""
        self._begun_s = 0.0
        self._has_asked = False
        self._has_said = False
        """Whether the job's store knows that this machine is traced."""
        self._is_counted = True
        """Whether the job's launcher says on how many machines its ranks are."""
        self._asks_where = False
        """Whether it is not known yet if there are ranks on another machine than rank 0's."""
        self._late_steps = list(LATE_BEGIN_STEPS)
        self._after_init = session.guard(self._begin, any_thread=True)
        self._before_destroy = session.guard(self._conclude_before, any_thread=True)
        session.forgets.append(self._forget)
        session.before_last_record.append(self._conclude)

    def watch(self) -> None:
        """Ask for a head as early as it can be known that there has to be one, and be there when
        the process group is."""
        if spans_machines() and place_in_environment()[0] == 0:
            self._ask_for_head()
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return
        home: Any = sys.modules["torch.distributed.distributed_c10d"]
        made = self._beginning_after(home.init_process_group)
        destroyed = self._concluding_before(home.destroy_process_group)
        meshes: Any = sys.modules.get("torch.distributed.device_mesh")
        for owner in filter(None, (home, distributed, meshes)):
            for name, ours in (
                ("init_process_group", made),
                ("destroy_process_group", destroyed),
            ):
                if name in vars(owner):
                    self._session.replace(owner, name, ours)
        self._session.looks.append(self._begin_late)
        if distributed.is_initialized():
            self._after_init()

    def _begin_late(self) -> None:
        """After a step, as long as nothing has begun: there may be a process group all the same."""
        steps = self._session.recorder.ends
        if self._late_steps and steps < self._late_steps[0]:
            return
        self._late_steps = [due for due in self._late_steps if due > steps]
        if sys.modules["torch.distributed"].is_initialized():
            self._begin()
        elif not self._late_steps:
            self._stop_looking(self._begin_late)

    def _beginning_after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        after = self._after_init

        @functools.wraps(function)
        def init_process_group(*arguments: Any, **options: Any) -> Any:
            try:
                made = function(*arguments, **options)
            except BaseException as error:
                drop_our_frames(error)
                raise
            after()
            return made

        return left_alone(init_process_group)

    def _concluding_before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        before = self._before_destroy

        @functools.wraps(function)
        def destroy_process_group(*arguments: Any, **options: Any) -> Any:
            before(arguments[0] if arguments else options.get("group"))
            try:
                return function(*arguments, **options)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return left_alone(destroy_process_group)

    def _forget(self) -> None:
        """In a forked child: the parent has done its part."""
        self._tries_left, self._store = 0, None

    def _begin(self) -> None:
        self._stop_looking(self._begin_late)
        rank, world, local_rank, _, _ = place()
        # What a launcher says is of its tasks: a script may start several ranks in each of them.
        self._is_counted = counts_machines() and place_in_environment().world == world
        self._asks_where = not self._is_counted and world > 1
        if not self._asks_where and (not spans_machines() or (rank and local_rank)):
            return
        self._tries_left = MAX_TRIES if self._is_counted else MAX_UNCOUNTED_TRIES
        self._due_ns, self._pause_ns = 0, FIRST_PAUSE_NS
        self._store, self._is_known, self._has_said = job_store(), False, False
        self._begun_s = time.monotonic()
        if self._store is not None and self._exchange not in self._session.looks:
            self._session.looks.append(self._exchange)
            self._exchange()

    def _exchange(self) -> None:
        """Makes the next try to publish or fetch the head, if it is due; called after each step,
        and when the process group is made."""
        now_ns = time.perf_counter_ns()
        if now_ns < self._due_ns:
            return
        if self._store is None:  # of the process that this one was forked from
            self._stop_looking(self._exchange)
            return
        self._tries_left -= 1
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = int(self._pause_ns * _GROWTH)
        try:
            is_done = (
                self._learn_where_ranks_are(self._store)
                if self._asks_where
                else self._publish_or_fetch(self._store)
            )
        except RuntimeError as error:  # the store is gone: the job is about to end
            if is_interruption(error):
                raise
            is_done = True
        if is_done:
            self._store = None  # its machine may be lost from here on: it is not asked again
        if is_done or self._tries_left <= 0:
            self._stop_looking(self._exchange)

    def _learn_where_ranks_are(self, store: Any) -> bool:
        """Find out whether ranks are on another machine than rank 0's, where no launcher said so.
        Returns whether nothing is left to do."""
        ours = machine_id().encode()
        if place()[0] == 0:
            store.set(STORE_MACHINE_KEY, ours)
            if not store.check([STORE_ELSEWHERE_KEY]):
                return False
        elif not store.check([STORE_MACHINE_KEY]):
            return False
        elif bytes(store.get(STORE_MACHINE_KEY)) == ours:
            return True
        else:
            store.set(STORE_ELSEWHERE_KEY, b"1")
        self._asks_where = False
        return self._publish_or_fetch(store)

    def _publish_or_fetch(self, store: Any) -> bool:
        """Make one more try at this rank's part. Returns whether nothing is left to do."""
        return self._publish_to_others(store) if place()[0] == 0 else self._fetch_head(store)

    def _publish_to_others(self, store: Any) -> bool:
        """Publish the head. Returns whether all other machines know it."""
        self._is_known = self._is_known or self._publish(store)
        others = self._others()
        if not self._is_known or not store.check([*map(joined_key, others)]):
            return False
        self._leave_count(len(others))
        return True

    def _others(self) -> range:
        """The numbers of the other machines; of all other ranks, where nobody counts machines."""
        return range(1, machine_count() if self._is_counted else place()[1])

    def _number(self) -> int:
        """This machine's number; this rank's, where nobody counts machines."""
        return place()[4 if self._is_counted else 0]

    def _stop_looking(self, look: Callable[[], None]) -> None:
        if look in self._session.looks:
            self._session.looks.remove(look)

    def _conclude_before(self, group: Any) -> None:
        """Conclude before a group is destroyed: the store of rank 0 goes with the group of the
        whole job."""
        if group is None or group is sys.modules["torch.distributed"].group.WORLD:
            self._conclude()

    def _conclude(self) -> None:
        """At the end of the job: if it was short, see that all machines that take part know the
        head.

        A process that fails may have lost the machine of the store, which then never answers.
        """
        store, self._store = self._store, None
        self._stop_looking(self._exchange)
        is_short = time.monotonic() - self._begun_s < SHORT_JOB_S
        if store is None or (not is_short and unhandled() is not None):
            return
        until_s = time.monotonic() + (MAX_END_WAIT_S if is_short else 0.0)
        try:
            if self._asks_where and (self._learn_where_ranks_are(store) or self._asks_where):
                return  # all ranks are here, as far as anybody says
            if place()[0] == 0:
                self._wait_for_others(store, until_s)
            else:
                self._wait_for_head(store, until_s)
        except RuntimeError as error:  # the store is gone
            if is_interruption(error):
                raise

    def _wait_for_others(self, store: Any, until_s: float) -> None:
        """Publish the head, and stay until the other traced machines know it: the store may be
        ours. Where our agent is gone, say that there will be none."""
        self._is_known = self._is_known or self._publish(store)
        if not self._is_known and agent_is_gone(self._session.run_folder):
            store.set(STORE_NO_HEAD_KEY, b"1")
            return
        joined = 0
        for node in self._others():
            while not (has_joined := store.check([joined_key(node)])):
                if time.monotonic() > until_s or not store.check([traced_key(node)]):
                    break
                time.sleep(_POLL_S)
                self._is_known = self._is_known or self._publish(store)
            joined += has_joined
        self._leave_count(joined)

    def _wait_for_head(self, store: Any, until_s: float) -> None:
        """Fetch the head where one is expected: rank 0 says so before its first collective, or,
        where nobody counts machines, at its end."""
        while not self._fetch_head(store):
            is_expected = not self._is_counted or store.check([STORE_EXPECTED_KEY])
            if time.monotonic() > until_s or not is_expected or store.check([STORE_NO_HEAD_KEY]):
                return
            time.sleep(_POLL_S)

    def _publish(self, store: Any) -> bool:
        """Set the key to the head that this machine has joined, or is; whether it has one yet."""
        for mark in (JOIN_MARK, HEAD_MARK):
            try:
                content = (self._session.run_folder / MARKS / mark).read_bytes()
                store.set(STORE_KEY, content)
            except FileNotFoundError as error:
                if is_interruption(error):
                    raise
                continue
            return True
        store.set(STORE_EXPECTED_KEY, b"1")
        self._ask_for_head(store)
        return False

    def _fetch_head(self, store: Any) -> bool:
        """Leave what rank 0 published for our agent. Returns whether rank 0 has published anything
        yet."""
        if not self._has_said:  # rank 0 may look for this as soon as we have our answer below
            store.set(traced_key(self._number()), b"1")
            self._has_said = True
        if not store.check([STORE_KEY]):
            return False
        self._leave(JOIN_MARK, bytes(store.get(STORE_KEY)))
        store.set(joined_key(self._number()), b"1")
        return True

    def _ask_for_head(self, store: Any = None) -> None:
        if not self._has_asked:
            self._has_asked = True
            master = os.environ.get("MASTER_ADDR", "")
            if not self._is_counted:  # a rank has been heard of that no loopback reaches
                hosts = [host for host in (master, store_host(store)) if host not in _LOOPBACK]
                master = hosts[0] if hosts else ""
            self._leave(HEAD_WANTED_MARK, json.dumps({"master": master}).encode())

    def _leave_count(self, joined: int) -> None:
        """Tell our agent for how many machines it waits at its end, where they were counted."""
        if self._is_counted:
            self._leave(JOINED_MARK, str(joined).encode())

    def _leave(self, mark: str, content: bytes) -> None:
        """Write a mark, where that is possible."""
        try:
            write_mark(self._session.run_folder, mark, content)
        except OSError as error:
            if is_interruption(error):
                raise
            # nowhere to write: then this machine's records stay here
