"""How ranks of several machines pass on where the head is, through a real store of torch's."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import device_mesh

from processes import wait_until
from traceml.model.environment import MARKS
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
    monkeypatch.setattr(head_exchange, "_job_store", lambda: made)
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
    exchange._look()
    assert store.get(STORE_KEY) == b"where"
    assert session.looks == []


def test_the_first_rank_of_another_machine_finds_it(session, store, job):
    job(RANK="1", GROUP_RANK="1")
    exchange = HeadExchange(session)
    exchange.watch()
    exchange._begin()
    assert marks(session) == set()
    assert store.check([traced_key(1)])
    assert session.looks == [exchange._look]
    store.set(STORE_KEY, "where")
    passed_time(exchange)
    exchange._look()
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


def test_tries_are_few_and_far_between(session, store, job, monkeypatch):
    job(RANK="1")
    looked = []
    monkeypatch.setattr(type(store), "check", lambda *_: looked.append(1), raising=False)
    exchange = HeadExchange(session)
    exchange._begin()
    exchange._look()  # the next step, much too soon
    assert len(looked) == 1
    for _ in range(2 * MAX_TRIES):
        passed_time(exchange)
        if exchange._look in session.looks:
            exchange._look()
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
    assert session.looks == [exchange._look]


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
