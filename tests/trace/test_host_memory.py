"""What a process has of the host's memory, and which limit of its own it met."""

import contextlib
import sys
from pathlib import Path

import pytest

from traceml.trace.host_memory import host_memory

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

GIB = 1 << 30


@contextlib.contextmanager
def limited(name, free_bytes):
    """A limit of this process that leaves so much."""
    kind = getattr(resource, name)
    before = resource.getrlimit(kind)
    (size,) = (
        int(line.split()[1]) << 10
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmSize" if name == "RLIMIT_AS" else "VmData")
    )
    resource.setrlimit(kind, (size + free_bytes, before[1]))
    try:
        yield size + free_bytes
    finally:
        resource.setrlimit(kind, before)


@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_limit_that_was_met_is_the_total(name):
    with limited(name, GIB) as limit_bytes:
        found = host_memory(2 * GIB)
    assert (found["limited_by"], found["total_bytes"]) == (name, limit_bytes)
    assert found["free_bytes"] == pytest.approx(GIB, rel=0.05)


def test_a_limit_above_the_machine_s_memory_with_room_enough_was_not_met():
    machine_bytes = host_memory(None)["machine_bytes"]
    with limited("RLIMIT_AS", machine_bytes):
        found = host_memory(GIB)
    assert "limited_by" not in found and "total_bytes" not in found


def test_without_a_limit_what_the_process_has_is_told():
    found = host_memory(GIB)
    assert "limited_by" not in found
    assert 1 << 20 < found["resident_bytes"] < found["machine_bytes"]
