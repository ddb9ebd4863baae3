"""Ranks and their workers: a real process tree that burns CPU on command, by a clock of our own."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from processes import wait_until
from traceml.agent import processes
from traceml.agent.processes import REREAD_EVERY, ProcessSampler, _is_worker, kill_run
from traceml.model.sample import ProcessSample

# One line in, one line out, so a test always knows what has already happened.
ACTOR = """
import os, subprocess, sys, threading, time

children, kept, stop = [], [], threading.Event()
for line in sys.stdin:
    verb, *words = line.split()
    answer = "done"
    if verb == "burn":
        end_s = time.process_time() + float(words[0])
        while time.process_time() < end_s:
            pass
    elif verb == "start":
        command = [sys.executable, sys.argv[0], *words]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        print("hello", file=child.stdin, flush=True)
        child.stdout.readline()  # its start-up is behind it
        children.append(child)
        answer = child.pid
    elif verb == "tell":
        child = children[int(words[0])]
        print(*words[1:], file=child.stdin, flush=True)
        answer = child.stdout.readline().strip()
    elif verb == "end":
        child = children[int(words[0])]
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    elif verb == "reap":
        children[int(words[0])].wait()
    elif verb == "fill":
        kept.append(b"x" * int(words[0]))
    elif verb == "thread":
        threading.Thread(target=stop.wait, daemon=True).start()
    print(answer, flush=True)
for child in children:
    child.stdin.close()
    child.wait()
"""


class Actor:
    """A process below the test, and through it the processes below that one."""

    def __init__(self, script: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def do(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def start_worker(self) -> int:
        return int(self.do("start"))

    def start_program(self) -> int:
        return int(self.do("start with other arguments"))

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def make_actor(tmp_path: Path) -> Iterator[Callable[[], Actor]]:
    script = tmp_path / "actor.py"
    script.write_text(ACTOR)
    actors: list[Actor] = []

    def make() -> Actor:
        actors.append(Actor(script))
        actors[-1].do("hello")  # the interpreter's own start-up is behind it
        return actors[-1]

    yield make
    for actor in actors:
        if actor.process.poll() is None:
            actor.end()


@pytest.fixture
def rank(make_actor: Callable[[], Actor]) -> Actor:
    return make_actor()


def only(samples: tuple[ProcessSample, ...]) -> ProcessSample:
    assert len(samples) == 1
    return samples[0]


def test_cores_used_by_the_rank_and_by_its_workers(rank: Actor) -> None:
    rank.start_worker()
    rank.start_worker()
    rank.do("tell 1 start")  # a worker of a worker
    sampler = ProcessSampler()
    first = only(sampler.sample({3: rank.pid}, 50.0))
    assert (first.rank, first.pid, first.workers) == (3, rank.pid, 3)
    assert (first.cpu_cores, first.workers_cpu_cores) == (None, None)

    rank.do("burn 0.4")
    for worker in ("0", "1", "1 tell 0"):
        rank.do(f"tell {worker} burn 0.2")
    second = only(sampler.sample({3: rank.pid}, 50.5))
    # Two ticks of 10 ms per process, and what passing the messages on costs.
    assert second.cpu_cores == pytest.approx(0.4 / 0.5, abs=0.1)
    assert second.workers_cpu_cores == pytest.approx(3 * 0.2 / 0.5, abs=0.2)


def test_worker_born_since_the_last_sample_counts_from_its_birth(rank: Actor) -> None:
    sampler = ProcessSampler()
    assert only(sampler.sample({0: rank.pid}, 0.0)).workers_rss_bytes == 0
    worker = rank.start_worker()
    rank.do("tell 0 burn 0.3")
    sample = only(sampler.sample({0: rank.pid}, 1.0))
    assert sample.workers == 1
    assert sample.workers_cpu_cores is not None
    spent = psutil.Process(worker).cpu_times()  # with the interpreter's start-up
    assert 0.28 <= sample.workers_cpu_cores <= spent.user + spent.system + 0.02


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs waitid to keep a zombie")
def test_worker_that_ended_is_not_counted_even_as_a_zombie(rank: Actor) -> None:
    rank.start_worker()
    rank.start_worker()
    sampler = ProcessSampler()
    assert only(sampler.sample({0: rank.pid}, 0.0)).workers == 2
    rank.do("end 0")
    sample = only(sampler.sample({0: rank.pid}, 1.0))
    assert sample.workers == 1
    assert sample.workers_cpu_cores == pytest.approx(0.0, abs=0.05)
    rank.do("reap 0")
    assert only(sampler.sample({0: rank.pid}, 2.0)).workers == 1


def test_a_compiler_or_another_program_is_no_worker(rank: Actor) -> None:
    """Its cores are in use for the rank all the same."""
    worker, _ = rank.start_worker(), rank.start_program()
    sampler = ProcessSampler()
    sampler.sample({0: rank.pid}, 0.0)
    rank.do("tell 1 burn 0.3")
    sample = only(sampler.sample({0: rank.pid}, 1.0))
    assert sample.workers == 1
    assert sample.workers_rss_bytes == pytest.approx(
        psutil.Process(worker).memory_info().rss, rel=0.05
    )
    assert sample.workers_cpu_cores == pytest.approx(0.3, abs=0.05)


def test_what_multiprocessing_starts_is_a_worker() -> None:
    """Of both ways that begin with a new interpreter; a forked one is a copy of its rank."""
    for way in ("spawn", "forkserver"):
        context = multiprocessing.get_context(way)
        process = context.Process(target=time.sleep, args=(60,))
        process.start()
        try:
            assert _is_worker(process.pid or 0, "python train.py")
        finally:
            process.kill()
            process.join()


def test_memory_and_threads(rank: Actor) -> None:
    rank.start_worker()
    sampler = ProcessSampler()
    before = only(sampler.sample({0: rank.pid}, 0.0))
    rank.do("fill 30000000")
    rank.do("tell 0 fill 50000000")
    rank.do("thread")
    after = only(sampler.sample({0: rank.pid}, 1.0))

    assert before.rss_bytes is not None
    assert before.workers_rss_bytes is not None
    assert after.rss_bytes is not None
    assert after.workers_rss_bytes is not None
    assert 30e6 <= after.rss_bytes - before.rss_bytes < 40e6
    assert 50e6 <= after.workers_rss_bytes - before.workers_rss_bytes < 75e6
    assert (before.threads, after.threads) == (1, 2)


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_AS"), reason="told on Linux alone")
@pytest.mark.parametrize(
    ("limit", "name"), [("RLIMIT_AS", "address_space"), ("RLIMIT_DATA", "data")]
)
def test_a_limit_on_the_rank_s_own_memory_is_told(rank: Actor, limit: str, name: str) -> None:
    sampler = ProcessSampler()
    before = only(sampler.sample({0: rank.pid}, 0.0))
    psutil.Process(rank.pid).rlimit(getattr(psutil, limit), (8 << 30, 9 << 30))
    after = only(sampler.sample({0: rank.pid}, 1.0))
    told = {f"{name}_bytes", f"{name}_limit_bytes"}
    for field in ("address_space", "data"):
        for each in (f"{field}_bytes", f"{field}_limit_bytes"):
            assert getattr(before, each) is None
            assert (getattr(after, each) is not None) is (each in told)
    assert getattr(after, f"{name}_limit_bytes") == 8 << 30
    assert 1 << 20 < getattr(after, f"{name}_bytes") < 8 << 30


def test_rank_started_by_another_rank_is_not_its_worker(rank: Actor) -> None:
    spawned = rank.start_worker()
    rank.do("tell 0 start")
    rank.start_worker()
    sampler = ProcessSampler()
    ranks = {0: rank.pid, 1: spawned}
    sampler.sample(ranks, 0.0)
    rank.do("tell 0 tell 0 burn 0.3")
    parent, child = sampler.sample(ranks, 1.0)
    assert (parent.rank, parent.workers, child.rank, child.workers) == (0, 1, 1, 1)
    assert parent.workers_cpu_cores == pytest.approx(0.0, abs=0.05)
    assert child.workers_cpu_cores == pytest.approx(0.3, abs=0.05)
    assert child.cpu_cores == pytest.approx(0.0, abs=0.05)


def test_worker_that_becomes_a_rank_keeps_its_history(rank: Actor) -> None:
    spawned = rank.start_worker()
    sampler = ProcessSampler()
    sampler.sample({0: rank.pid}, 0.0)
    rank.do("tell 0 burn 0.3")
    parent, child = sampler.sample({0: rank.pid, 1: spawned}, 1.0)
    assert parent.workers == 0
    assert child.cpu_cores == pytest.approx(0.3, abs=0.05)


def test_the_agent_below_a_rank_is_not_its_worker() -> None:
    """Though it be a copy of it, as a worker is."""
    code = (
        "import os; from traceml.agent.processes import ProcessSampler\n"
        "rank, agent = os.getpid(), os.fork()\n"
        "if agent: os.waitpid(agent, 0)\n"
        "else: print(ProcessSampler().sample({0: rank}, 0.0)[0].workers)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["0"]


def test_rank_that_ended_has_no_sample(rank: Actor, make_actor: Callable[[], Actor]) -> None:
    other = make_actor()
    sampler = ProcessSampler()
    ranks = {0: rank.pid, 1: other.pid}
    assert len(sampler.sample(ranks, 0.0)) == 2
    other.process.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert [sample.rank for sample in sampler.sample(ranks, 1.0)] == [0]  # a zombie
    other.process.wait()
    assert [sample.rank for sample in sampler.sample(ranks, 2.0)] == [0]


@pytest.mark.parametrize("pid", [2**22 + 1, -5], ids=["above every pid", "negative"])
def test_pid_that_is_no_process(pid: int) -> None:
    assert ProcessSampler().sample({0: pid}, 0.0) == ()


def test_no_ranks_yet() -> None:
    assert ProcessSampler().sample({}, 0.0) == ()


def fail_for(
    monkeypatch: pytest.MonkeyPatch, method: str, pid: int, error: Exception
) -> Callable[[], None]:
    """Lets one of psutil's readings fail for one process, as a busy system does."""
    real = getattr(psutil.Process, method)

    @functools.wraps(real)  # psutil keeps its cache in the method's attributes
    def reading(process: psutil.Process, *args: Any, **kwargs: Any) -> Any:
        if process.pid == pid:
            raise error
        return real(process, *args, **kwargs)

    monkeypatch.setattr(psutil.Process, method, reading)
    return lambda: monkeypatch.setattr(psutil.Process, method, real)


LAUNCHER = """
import os, subprocess, sys, time
wait = [sys.executable, "-c", "import time; time.sleep(3600)"]
subprocess.Popen(wait)
subprocess.Popen(wait, preexec_fn=os.setpgrp)
time.sleep(3600)
"""
"""Has a child in its own group and one in another group of its session."""


def test_a_run_is_killed_though_a_process_of_another_user_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], start_new_session=True)
    of_launcher = psutil.Process(launcher.pid)
    children = wait_until(
        lambda: found if len(found := of_launcher.children()) == 2 else None, "it has children"
    )
    children.sort(key=lambda each: os.getpgid(each.pid) != launcher.pid)
    foreign, _ = children
    fail_for(monkeypatch, "kill", foreign.pid, psutil.AccessDenied(foreign.pid))
    try:
        kill_run(launcher.pid)
        assert launcher.wait(60) == -signal.SIGKILL
        wait_until(lambda: not any(map(is_alive, children)), "its children have ended")
    finally:
        for pid in (launcher.pid, *(each.pid for each in children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("method", ["status", "cpu_times", "memory_info", "ppid"])
@pytest.mark.parametrize("error", [psutil.NoSuchProcess, psutil.ZombieProcess])
def test_worker_that_vanishes_while_it_is_read(
    rank: Actor, monkeypatch: pytest.MonkeyPatch, method: str, error: type[psutil.NoSuchProcess]
) -> None:
    staying, leaving = rank.start_worker(), rank.start_worker()
    sampler = ProcessSampler()
    fail_for(monkeypatch, method, leaving, error(leaving))
    sample = only(sampler.sample({0: rank.pid}, 0.0))
    assert sample.workers == 1
    rss = psutil.Process(staying).memory_info().rss  # the kernel adds up its pages later
    assert sample.workers_rss_bytes == pytest.approx(rss, rel=0.05)


def test_denied_worker_is_counted_and_makes_the_sums_unknown(
    rank: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.start_worker()
    denied = rank.start_worker()
    sampler = ProcessSampler()
    allow = fail_for(monkeypatch, "cpu_times", denied, psutil.AccessDenied(denied))
    for second in range(2):
        sample = only(sampler.sample({0: rank.pid}, float(second)))
        assert sample.workers == 2
        assert (sample.workers_cpu_cores, sample.workers_rss_bytes) == (None, None)
        assert sample.rss_bytes is not None
    allow()
    # Its whole life must not pass for the last second.
    assert only(sampler.sample({0: rank.pid}, 2.0)).workers_cpu_cores is None
    assert only(sampler.sample({0: rank.pid}, 3.0)).workers_cpu_cores is not None


def test_denied_rank_keeps_its_place(
    rank: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    for method in ("memory_info", "num_threads"):
        fail_for(monkeypatch, method, rank.pid, psutil.AccessDenied(rank.pid))
    sample = only(ProcessSampler().sample({0: rank.pid}, 0.0))
    assert sample == ProcessSample(rank=0, pid=rank.pid, workers=0, workers_rss_bytes=0)


def test_pid_taken_over_by_another_process_is_no_rank(
    rank: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = ProcessSampler()
    assert len(sampler.sample({0: rank.pid}, 0.0)) == 1
    # psutil tells a pid's new owner by the time it started.
    monkeypatch.setattr(psutil.Process, "is_running", lambda process: process.pid != rank.pid)
    assert sampler.sample({0: rank.pid}, 1.0) == ()


def test_a_second_look_reads_only_processes_that_are_new(
    rank: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = ProcessSampler()
    sampler.sample({0: rank.pid}, 0.0)
    looked_at: list[int] = []
    real = psutil.Process.ppid

    @functools.wraps(real)
    def ppid(process: psutil.Process) -> int:
        looked_at.append(process.pid)
        return int(real(process))

    monkeypatch.setattr(psutil.Process, "ppid", ppid)
    worker = rank.start_worker()
    assert only(sampler.sample({0: rank.pid}, 1.0)).workers == 1
    assert worker in looked_at
    assert rank.pid not in looked_at


def test_wrong_parent_is_corrected_in_time(rank: Actor) -> None:
    worker = rank.start_worker()
    sampler = ProcessSampler()
    sampler.sample({0: rank.pid}, 0.0)
    sampler._tree._parents[worker] = os.getpid()  # as if its pid had belonged to a child of ours
    assert only(sampler.sample({0: rank.pid}, 1.0)).workers == 0
    for second in range(2, REREAD_EVERY + 1):
        sampler.sample({0: rank.pid}, float(second))
    assert only(sampler.sample({0: rank.pid}, REREAD_EVERY + 1.0)).workers == 1


def test_sample_is_cheap(rank: Actor) -> None:
    for _ in range(4):
        rank.start_worker()
    sampler = ProcessSampler()
    sampler.sample({0: rank.pid}, 0.0)
    costs_s = []
    for second in range(1, 11):
        started_s = time.process_time()
        sampler.sample({0: rank.pid}, float(second))
        costs_s.append(time.process_time() - started_s)
    assert min(costs_s) < 0.02


class FakeAccounts:
    """The kernel's accounts of one process, written by hand."""

    def __init__(self, proc: Path, pid: int) -> None:
        self._folder = proc / str(pid)
        self._folder.mkdir()

    def set(self, queued_s: float, major_faults: int) -> None:
        (self._folder / "schedstat").write_text(f"5000 {round(queued_s * 1e9)} 12\n")
        (self._folder / "stat").write_text(
            f"1 (a (name) with 9 9 9) S 1 1 1 0 -1 4194560 700 0 {major_faults} 0 3 2\n"
        )


def test_waiting_for_a_core_and_reading_pages_back(
    rank: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    accounts = FakeAccounts(tmp_path, rank.pid)
    sampler = ProcessSampler()
    seen = []
    for now_s, queued_s, faults in ((0.0, 5.0, 10), (2.0, 5.5, 30), (4.0, 8.0, 30), (6.0, 1.0, 0)):
        accounts.set(queued_s, faults)
        sample = only(sampler.sample({0: rank.pid}, now_s))
        seen.append((sample.runqueue_share, sample.major_faults_per_s))
    # A rate needs two readings; a share is at most all of the time; nothing runs backwards.
    assert seen == [(None, None), (0.25, 10.0), (1.0, 0.0), (None, None)]


def test_the_accounts_are_those_of_the_thread_that_trains(
    rank: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    FakeAccounts(tmp_path, rank.pid).set(queued_s=5.0, major_faults=0)
    other = tmp_path / str(rank.pid) / "task" / "77"
    other.mkdir(parents=True)
    (other / "schedstat").write_text("3000000000 250000000 4\n")
    main = only(ProcessSampler().sample({0: rank.pid}, 0.0))
    assert (main.train_thread_cpu_s, main.train_thread_wait_s) == (5e-6, 5.0)
    trains = only(ProcessSampler(lambda pid: 77).sample({0: rank.pid}, 0.0))
    assert (trains.train_thread_cpu_s, trains.train_thread_wait_s) == (3.0, 0.25)
    gone = only(ProcessSampler(lambda pid: 78).sample({0: rank.pid}, 0.0))
    assert (gone.train_thread_cpu_s, gone.train_thread_wait_s) == (None, None)


def test_the_worker_that_waits_most_stands_for_all(
    rank: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [int(rank.do("start")) for _ in range(2)]
    monkeypatch.setattr(processes, "PROC", tmp_path)
    accounts = {pid: FakeAccounts(tmp_path, pid) for pid in (rank.pid, *workers)}
    sampler = ProcessSampler()
    seen = []
    for now_s, queued_s in ((0.0, (1.0, 1.0, 1.0)), (2.0, (1.2, 1.5, 2.0))):
        for account, each_s in zip(accounts.values(), queued_s, strict=True):
            account.set(each_s, 0)
        sample = only(sampler.sample({0: rank.pid}, now_s))
        seen.append((sample.runqueue_share, sample.workers_runqueue_share))
    assert seen == [(None, None), (pytest.approx(0.1), pytest.approx(0.5))]


def test_a_thread_that_shares_its_core_waits_for_it(make_actor: Callable[[], Actor]) -> None:
    """Three processes on one core: each could run all the time and runs a third of it."""
    if not hasattr(os, "sched_setaffinity") or not Path("/proc/self/schedstat").exists():
        pytest.skip("only Linux says how long a thread waited for a core")
    actors = [make_actor() for _ in range(3)]
    core = {min(os.sched_getaffinity(0))}
    for actor in actors:
        os.sched_setaffinity(actor.pid, core)
    sampler = ProcessSampler()

    def has_waited() -> bool:
        sampler.sample({0: actors[0].pid}, time.monotonic())
        for actor in actors[1:]:
            print("burn 0.4", file=actor.process.stdin, flush=True)
        actors[0].do("burn 0.2")
        share = only(sampler.sample({0: actors[0].pid}, time.monotonic())).runqueue_share
        for actor in actors[1:]:
            assert actor.process.stdout is not None
            actor.process.stdout.readline()
        assert share is not None and share <= 1.0
        return share > 0.2

    # On a busy machine this process may look only long after the last of them has ended.
    wait_until(has_waited, "a fifth of the time was spent waiting")


def test_no_accounts_is_not_measured(
    rank: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    sampler = ProcessSampler()
    sampler.sample({0: rank.pid}, 0.0)
    sample = only(sampler.sample({0: rank.pid}, 1.0))
    assert (sample.runqueue_share, sample.major_faults_per_s) == (None, None)
    assert sample.cpu_cores is not None
