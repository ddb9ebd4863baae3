"""How ranks of several machines pass on where the head is, through a real store of torch's."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest
import torch.distributed as dist
from torch.distributed import device_mesh

from processes import PATIENCE_S, wait_until
from traceml.model.environment import AGENT_MARK, MARKS
from traceml.model.launcher_place import spans_machines
from traceml.model.node import (
    HEAD_MARK,
    HEAD_WANTED_MARK,
    JOIN_MARK,
    JOINED_MARK,
    STORE_EXPECTED_KEY,
    STORE_KEY,
    joined_key,
    traced_key,
)
from traceml.trace import head_exchange
from traceml.trace.head_exchange import LATE_BEGIN_STEPS, MAX_TRIES, HeadExchange
from traceml.trace.marks import write_mark
from traceml.trace.session import Session

TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "host-a",
}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path, None, None)
    yield made
    made.take_hooks_out()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """The job's store: every process of the test has the same one."""
    made = dist.HashStore()
    monkeypatch.setattr(head_exchange, "job_store", lambda: made)
    return made


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the launcher of a rank does."""

    def set_variables(**variables: str) -> None:
        for name, value in {**TORCHRUN, **variables}.items():
            monkeypatch.setenv(name, value)

    return set_variables


def passed_time(exchange: HeadExchange) -> None:
    exchange._due_ns = 0


def marks(session: Session) -> set[str]:
    folder = session.run_folder / MARKS
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def test_rank_0_asks_its_agent_and_publishes_the_answer(session, store, job):
    job()
    exchange = HeadExchange(session)
    exchange.watch()
    wanted = json.loads((session.run_folder / MARKS / HEAD_WANTED_MARK).read_text())
    assert wanted == {"master": "host-a"}
    exchange._begin()
    assert not store.check([STORE_KEY])  # the agent has not answered yet: nobody waits for it
    assert store.check([STORE_EXPECTED_KEY])
    (session.run_folder / MARKS / HEAD_MARK).write_text("where")
    passed_time(exchange)
    exchange._exchange()
    assert store.get(STORE_KEY) == b"where"
    assert session.looks == [exchange._exchange]  # until the other machine knows it
    store.set(joined_key(1), b"1")
    passed_time(exchange)
    exchange._exchange()
    assert session.looks == []
    assert (session.run_folder / MARKS / JOINED_MARK).read_text() == "1"


def test_the_first_rank_of_another_machine_finds_it(session, store, job):
    job(RANK="1", GROUP_RANK="1")
    exchange = HeadExchange(session)
    exchange.watch()
    exchange._begin()
    assert marks(session) == set()
    assert store.check([traced_key(1)])
    assert session.looks == [exchange._exchange]
    store.set(STORE_KEY, "where")
    passed_time(exchange)
    exchange._exchange()
    assert (session.run_folder / MARKS / JOIN_MARK).read_bytes() == b"where"
    assert marks(session) == {JOIN_MARK}
    assert store.check([joined_key(1)])
    assert session.looks == []


def test_a_job_that_ends_at_once_waits_until_its_machines_have_found_each_other(
    session, store, job, tmp_path, monkeypatch
):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    job()
    first = HeadExchange(session)
    first._begin()
    job(RANK="1", GROUP_RANK="1")
    other_session = Session(tmp_path / "other", None, None)
    other_session.run_folder.mkdir()
    other = HeadExchange(other_session)
    other._begin()
    with ThreadPoolExecutor() as threads:
        ending = threads.submit(other._conclude)  # as rank 1, before there is a head
        wait_until(lambda: other._store is None, "rank 1 is about to end")
        (session.run_folder / MARKS / HEAD_MARK).write_text("where")
        assert first._publish(store)
        ending.result()
    assert (other_session.run_folder / MARKS / JOIN_MARK).read_bytes() == b"where"
    job()
    first._conclude()
    assert (session.run_folder / MARKS / JOINED_MARK).read_text() == "1"


def test_the_end_waits_for_nobody_who_is_not_expected(session, store, job, monkeypatch):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    job(RANK="1")
    exchange = HeadExchange(session)
    exchange._begin()
    exchange._conclude()  # rank 0 runs without TraceML
    assert marks(session) == set()


def test_rank_0_waits_for_no_machine_that_is_not_traced(session, store, job, monkeypatch):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    job(WORLD_SIZE="3")
    exchange = HeadExchange(session)
    exchange._begin()
    store.set(joined_key(2), b"1")
    exchange._conclude()  # machine 1 runs without TraceML
    assert (session.run_folder / MARKS / JOINED_MARK).read_text() == "1"


def test_rank_0_waits_for_a_traced_machine_that_has_not_joined(session, store, job, monkeypatch):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    job()
    exchange = HeadExchange(session)
    exchange._begin()
    store.set(traced_key(1), b"1")
    with ThreadPoolExecutor() as threads:
        ending = threads.submit(exchange._conclude)
        (session.run_folder / MARKS / HEAD_MARK).write_text("where")
        wait_until(lambda: store.check([STORE_KEY]), "the end publishes the head")
        assert not ending.done()
        store.set(joined_key(1), b"1")
        ending.result()
    assert (session.run_folder / MARKS / JOINED_MARK).read_text() == "1"


def test_the_end_of_a_long_job_does_not_wait(session, store, job, monkeypatch):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    job()
    (session.run_folder / MARKS).mkdir()
    (session.run_folder / MARKS / HEAD_MARK).write_text("where")
    exchange = HeadExchange(session)
    exchange._begin()
    exchange._begun_s -= head_exchange.SHORT_JOB_S
    store.set(traced_key(1), b"1")
    exchange._conclude()  # the other machine has not found us in all this time
    assert (session.run_folder / MARKS / JOINED_MARK).read_text() == "0"


STORE_ELSEWHERE = """\
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def silent_store(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[dist.Store, Callable[[], None]]]:
    """The job's store on a machine that can be lost: from then on it never answers."""
    with subprocess.Popen(
        [sys.executable, "-c", STORE_ELSEWHERE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        store = dist.TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False)
        monkeypatch.setattr(head_exchange, "job_store", lambda: store)
        yield store, lambda: server.send_signal(signal.SIGSTOP)
        server.kill()


def concludes(exchange: HeadExchange) -> bool:
    """Whether the end of a job comes to its own end: a store that never answers is never done."""
    ending = Thread(target=exchange._conclude, daemon=True)
    ending.start()
    ending.join(PATIENCE_S)
    return not ending.is_alive()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_end_asks_no_lost_machine_for_what_is_known(rank, session, silent_store, job):
    store, lose_it = silent_store
    job(RANK=rank, GROUP_RANK=rank)
    (session.run_folder / MARKS).mkdir()
    (session.run_folder / MARKS / HEAD_MARK).write_text("where")
    store.set(STORE_KEY, b"where")
    store.set(joined_key(1), b"1")
    exchange = HeadExchange(session)
    exchange._begin()
    lose_it()
    assert concludes(exchange)


def test_a_process_that_fails_asks_no_lost_machine(session, silent_store, job, monkeypatch):
    _, lose_it = silent_store
    job()
    exchange = HeadExchange(session)
    exchange._begin()
    exchange._begun_s -= head_exchange.SHORT_JOB_S
    lose_it()
    monkeypatch.setattr(sys, "last_value", RuntimeError("connection lost"), raising=False)
    assert concludes(exchange)  # the other machine never joined


# Ranks that people, or their scripts, start by hand: nobody says on how many machines

BY_HAND = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


@pytest.fixture
def by_hand(
    monkeypatch: pytest.MonkeyPatch, store: dist.Store, tmp_path: Path
) -> Callable[[int, str], HeadExchange]:
    """Begins the exchange of a rank of four on a machine."""
    for name in BY_HAND:
        monkeypatch.delenv(name, raising=False)

    def begin(rank: int, machine: str) -> HeadExchange:
        be(rank, machine)
        made = Session(tmp_path / machine, None, None)
        made.run_folder.mkdir(exist_ok=True)
        exchange = HeadExchange(made)
        exchange._begin()
        return exchange

    def be(rank: int, machine: str) -> None:
        monkeypatch.setattr(head_exchange, "place", lambda: (rank, 4, rank, 4, 0))
        monkeypatch.setattr(head_exchange, "machine_id", lambda: machine)

    begin.be = be  # type: ignore[attr-defined]
    return begin


def look_again(exchange: HeadExchange) -> None:
    passed_time(exchange)
    exchange._exchange()


def test_ranks_started_by_hand_on_two_machines_find_each_other(by_hand, store):
    first = by_hand(0, "host-a")
    neighbour, third, fourth = by_hand(1, "host-a"), by_hand(2, "host-b"), by_hand(3, "host-b")
    assert neighbour._session.looks == []  # it is where rank 0 is: nothing is left to do
    by_hand.be(0, "host-a")
    look_again(first)
    assert marks(first._session) == {HEAD_WANTED_MARK}
    (first._session.run_folder / MARKS / HEAD_MARK).write_text("where")
    look_again(first)
    for rank, exchange in ((2, third), (3, fourth)):
        by_hand.be(rank, "host-b")
        look_again(exchange)
        assert (exchange._session.run_folder / MARKS / JOIN_MARK).read_bytes() == b"where"
        assert exchange._session.looks == []
    by_hand.be(0, "host-a")
    first._conclude()
    assert marks(first._session) == {HEAD_WANTED_MARK, HEAD_MARK}  # ranks are not machines


@pytest.mark.parametrize(
    "launcher",
    [
        TORCHRUN,
        {**SLURM, "SLURM_STEP_NUM_NODES": "2", "SLURM_GTIDS": "0"},
        {"RANK": "0", "WORLD_SIZE": "2", "PET_NNODES": "2"},
    ],
    ids=["torchrun", "Slurm", "Kubernetes"],
)
def test_ranks_that_a_script_starts_in_each_task_of_a_launcher_find_each_other(
    by_hand, monkeypatch, launcher
):
    """As the ImageNet example does: the launcher starts a task on each machine, and that one a rank
    for each GPU."""
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    first, neighbour = by_hand(0, "host-a"), by_hand(1, "host-a")
    task = {"RANK": "1"} if "RANK" in launcher else {"SLURM_PROCID": "1", "SLURM_GTIDS": "1"}
    for name, value in task.items():
        monkeypatch.setenv(name, value)
    others = {rank: by_hand(rank, "host-b") for rank in (2, 3)}
    assert neighbour._session.looks == []
    by_hand.be(0, "host-a")
    look_again(first)
    (first._session.run_folder / MARKS / HEAD_MARK).write_text("where")
    look_again(first)
    for rank, exchange in others.items():
        by_hand.be(rank, "host-b")
        look_again(exchange)
        assert (exchange._session.run_folder / MARKS / JOIN_MARK).read_bytes() == b"where"


def test_ranks_of_one_other_machine_are_not_told_as_several(by_hand, store):
    """The head would wait for as many machines at its end."""
    first = by_hand(0, "host-a")
    (first._session.run_folder / MARKS).mkdir()
    (first._session.run_folder / MARKS / HEAD_MARK).write_text("where")
    for rank in (1, 2, 3):
        by_hand(rank, "host-b")
    by_hand.be(0, "host-a")
    look_again(first)
    for rank in (1, 2, 3):
        store.set(joined_key(rank), b"1")
    look_again(first)
    assert first._session.looks == []
    assert marks(first._session) == {HEAD_MARK}


def test_ranks_started_by_hand_on_one_machine_open_nothing(by_hand, monkeypatch):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    first, second = by_hand(0, "host-a"), by_hand(1, "host-a")
    by_hand.be(0, "host-a")
    for _ in range(2 * MAX_TRIES):
        look_again(first) if first._exchange in first._session.looks else None
    first._conclude()
    second._conclude()
    assert marks(first._session) == set()
    assert (first._session.looks, second._session.looks) == ([], [])


def test_a_short_job_started_by_hand_waits_for_its_machines(by_hand, store, monkeypatch):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    first, other = by_hand(0, "host-a"), by_hand(1, "host-b")
    by_hand.be(0, "host-a")
    with ThreadPoolExecutor() as threads:
        ending = threads.submit(first._conclude)
        wait_until(lambda: HEAD_WANTED_MARK in marks(first._session), "rank 0 asks its agent")
        (first._session.run_folder / MARKS / HEAD_MARK).write_text("where")
        wait_until(lambda: store.check([STORE_KEY]), "rank 0 publishes it")
        assert not ending.done()
        store.set(joined_key(1), b"1")
        ending.result()
    assert other._store is not None


@pytest.mark.parametrize("is_counted", [True, False], ids=["counted", "by hand"])
def test_nobody_waits_for_a_head_whose_agent_is_gone(
    session, by_hand, job, store, monkeypatch, is_counted
):
    monkeypatch.setattr(head_exchange, "MAX_END_WAIT_S", 3600.0)
    if is_counted:
        job()
        first = HeadExchange(session)
        first._begin()
        job(RANK="1", GROUP_RANK="1")
        other = HeadExchange(session)
        other._begin()
        job()
    else:
        first, other = by_hand(0, "host-a"), by_hand(1, "host-b")
        by_hand.be(0, "host-a")
    gone = subprocess.Popen(["true"])
    gone.wait()
    write_mark(first._session.run_folder, AGENT_MARK, f"{gone.pid} {socket.gethostname()}".encode())
    first._conclude()
    if is_counted:
        job(RANK="1", GROUP_RANK="1")
    else:
        by_hand.be(1, "host-b")
    other._conclude()
    assert JOIN_MARK not in marks(other._session)


def test_tries_are_few_and_far_between(session, store, job, monkeypatch):
    job(RANK="1")
    looked = []
    monkeypatch.setattr(type(store), "check", lambda *_: looked.append(1), raising=False)
    exchange = HeadExchange(session)
    exchange._begin()
    exchange._exchange()  # the next step, much too soon
    assert len(looked) == 1
    for _ in range(2 * MAX_TRIES):
        passed_time(exchange)
        if exchange._exchange in session.looks:
            exchange._exchange()
    assert len(looked) == MAX_TRIES
    assert session.looks == []


def test_a_machine_that_has_joined_publishes_that_head(session, store, job):
    """After a restart rank 0 may be on another machine than before."""
    job()
    (session.run_folder / MARKS).mkdir()
    (session.run_folder / MARKS / JOIN_MARK).write_text("the first head")
    exchange = HeadExchange(session)
    exchange._begin()
    assert store.get(STORE_KEY) == b"the first head"


def test_other_ranks_and_jobs_on_one_machine_do_nothing(session, store, job):
    job(RANK="3", LOCAL_RANK="1", WORLD_SIZE="4", LOCAL_WORLD_SIZE="2")
    HeadExchange(session)._begin()
    job(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    exchange = HeadExchange(session)
    exchange.watch()
    exchange._begin()
    assert (session.looks, marks(session), store.num_keys()) == ([], set(), 0)


def test_a_store_that_is_gone_is_left_alone(session, store, job, monkeypatch):
    def broken(*_: object) -> bool:
        raise dist.DistNetworkError("the store is gone")

    job(RANK="1")
    monkeypatch.setattr(type(store), "check", broken, raising=False)
    HeadExchange(session)._begin()
    assert session.looks == []


def test_the_group_is_made_as_without_us_and_then_looked_at(session, job, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    seen = []
    exchange = HeadExchange(session)
    exchange._after_init = lambda: seen.append(dist.is_initialized())
    original = dist.init_process_group
    exchange.watch()
    assert dist.init_process_group is not original
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert seen == [True]
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    finally:
        dist.destroy_process_group()
    session.take_hooks_out()
    assert dist.init_process_group is original


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A job of one rank that `init_process_group` finds without arguments."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_group_that_a_device_mesh_makes_is_looked_at(session, one_rank):
    seen = []
    exchange = HeadExchange(session)
    exchange._after_init = lambda: seen.append(dist.is_initialized())
    exchange.watch()
    device_mesh.init_device_mesh("cpu", (1,))
    assert seen == [True]


def after_steps(session: Session, steps: int) -> None:
    session.recorder.ends = steps
    for look in tuple(session.looks):
        look()


def test_a_group_that_was_made_past_us_is_found_after_the_first_steps(
    session, store, job, one_rank
):
    make_group = dist.init_process_group  # as `from torch.distributed import …` keeps it
    exchange = HeadExchange(session)
    exchange.watch()
    after_steps(session, 1)  # there is no group yet
    make_group("gloo")
    job()
    after_steps(session, 9)
    assert not store.check([STORE_EXPECTED_KEY])
    after_steps(session, 10)
    assert store.check([STORE_EXPECTED_KEY])
    assert session.looks == [exchange._exchange]


def test_where_no_group_is_made_nobody_looks_for_ever(session):
    HeadExchange(session).watch()
    after_steps(session, LATE_BEGIN_STEPS[-1])
    assert session.looks == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, True),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, False),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}, True),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "2"}, True),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "1"}, False),
        ({"SLURM_NNODES": "2"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, False),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            True,
        ),
        ({}, False),
    ],
    ids=[
        "torchrun on two machines",
        "torchrun on one",
        "torchrun says so itself",
        "Slurm on two",
        "Slurm on one",
        "no rank of Slurm's",
        "MPI on one",
        "MPI on two",
        "no launcher",
    ],
)
def test_it_is_known_whether_ranks_span_machines(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert spans_machines() is expected
