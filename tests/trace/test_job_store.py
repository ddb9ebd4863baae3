"""The job's store is asked by a connection of our own that waits for no lost machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from traceml.trace import job_store as job_stores
from traceml.trace.job_store import job_store, store_host

STORE_ELSEWHERE = """\
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A job of one rank, whose store is in another process."""
    monkeypatch.setattr(job_stores, "MAX_ANSWER_S", 0.25)
    with subprocess.Popen(
        [sys.executable, "-c", STORE_ELSEWHERE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        theirs = dist.TCPStore("127.0.0.1", int(process.stdout.readline()), is_master=False)
        dist.init_process_group("gloo", store=theirs, rank=0, world_size=1)
        try:
            yield process
        finally:
            dist.destroy_process_group()
            process.kill()


def test_it_answers_under_the_keys_of_the_job(server):
    store = job_store()
    store.set("traceml/test", b"1")
    assert store.check(["traceml/test"]) and not store.check(["traceml/none"])
    assert dist.distributed_c10d._get_default_store().get("traceml/test") == b"1"
    assert store_host(store) == "127.0.0.1"


def test_a_machine_that_no_longer_answers_is_an_error_and_no_wait(server):
    store = job_store()
    server.send_signal(signal.SIGSTOP)
    with pytest.raises(RuntimeError):
        for _ in range(1000):  # it may answer until the signal has reached it
            store.check(["traceml/none"])
            time.sleep(0.001)
    server.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("default_s", [None, 7.0])
def test_the_jobs_own_connection_stays_as_it_was(server, default_s):
    """Also where the script gives the sockets that Python makes a timeout."""
    port = job_stores._innermost(dist.distributed_c10d._get_default_store()).port
    socket.setdefaulttimeout(default_s)
    try:
        before = job_stores._sockets()
        store = job_store()
        after = job_stores._sockets()
    finally:
        socket.setdefaulttimeout(None)
    there = job_stores._connections_to(port)
    assert [name in before for name in after if name in there] == [True, False]
    for name in there & after.keys():
        assert os.get_blocking(after[name])
        with socket.socket(fileno=os.dup(after[name])) as connection:
            waits = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
        assert any(waits) == (name not in before)
    assert not store.check(["traceml/none"])


def test_a_store_in_memory_is_asked_as_it_is():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert job_store().check(["traceml/none"]) is False
    finally:
        dist.destroy_process_group()
    assert job_store() is None  # there is no process group
