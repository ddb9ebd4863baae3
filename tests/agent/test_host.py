"""The host's sensors: real readings here, rates by a clock of our own, missing ones None."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from traceml.agent.cgroup import Cgroup
from traceml.agent.host import (
    HostSampler,
    busy_share,
    cores,
    outward_interfaces,
    physical_disks,
    steal_share,
)
from traceml.model.sample import HostSample

GIB = 2**30
MIB = 2**20


@pytest.fixture
def no_cgroup(tmp_path: Path) -> Cgroup:
    return Cgroup(tmp_path / "nothing")


def burn(cpu_s: float) -> None:
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass


def test_real_readings_of_this_machine() -> None:
    sampler = HostSampler()
    started_s = time.monotonic()
    first = sampler.sample(started_s)
    burn(0.2)
    second = sampler.sample(time.monotonic())

    assert first.ram_total_bytes is not None
    assert first.ram_used_bytes is not None
    assert 0 < first.ram_used_bytes < first.ram_total_bytes <= psutil.virtual_memory().total
    assert second.cpu_share is not None
    # One core was busy for 0.2 s of what has passed; ticks are 10 ms.
    passed_s = (time.monotonic() - started_s) * (psutil.cpu_count() or 1)
    assert 0.15 / passed_s < second.cpu_share <= 1.0


def test_first_sample_has_no_rates() -> None:
    sample = HostSampler().sample(0.0)
    rates = (
        sample.cpu_share,
        sample.disk_read_bytes_per_s,
        sample.disk_write_bytes_per_s,
        sample.network_received_bytes_per_s,
        sample.network_sent_bytes_per_s,
        sample.cpu_throttled_share,
        sample.disk_busy_share,
        sample.swap_in_bytes_per_s,
        sample.swap_out_bytes_per_s,
    )
    assert rates == (None,) * 9


class FakeMachine:
    """psutil's answers; the edge of our code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disks: dict[str, Any] | None = {}
        self.cards: dict[str, Any] = {}
        monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: self.disks)
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: self.cards)

    def set_disk(self, name: str, read: int, written: int, **more: int) -> None:
        assert self.disks is not None
        disk = SimpleNamespace(read_bytes=read, write_bytes=written, **more)
        self.disks = {**self.disks, name: disk}

    def set_card(self, name: str, received: int, sent: int) -> None:
        self.cards = {**self.cards, name: SimpleNamespace(bytes_recv=received, bytes_sent=sent)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(monkeypatch)


def disk_rates(sample: HostSample) -> tuple[float | None, float | None]:
    return sample.disk_read_bytes_per_s, sample.disk_write_bytes_per_s


def test_rates_are_per_second_and_count_each_byte_once(
    machine: FakeMachine, no_cgroup: Cgroup, tmp_path: Path
) -> None:
    sampler = HostSampler(no_cgroup, sys=tmp_path)
    for disk in ("sda", "sda1", "nvme0n1", "nvme0n1p2"):
        machine.set_disk(disk, 10 * MIB, 20 * MIB)
    for card in ("lo", "eth0"):
        machine.set_card(card, 5 * MIB, 5 * MIB)
    sampler.sample(100.0)

    for disk in ("sda", "sda1"):
        machine.set_disk(disk, 14 * MIB, 20 * MIB)
    for card in ("lo", "eth0"):
        machine.set_card(card, 8 * MIB, 5 * MIB)
    sample = sampler.sample(102.0)
    assert disk_rates(sample) == (2 * MIB, 0.0)
    assert sample.network_received_bytes_per_s == 1.5 * MIB
    assert sample.network_sent_bytes_per_s == 0.0


def test_counter_that_ran_backwards_gives_no_rate_and_the_next_one_does(
    machine: FakeMachine, no_cgroup: Cgroup, tmp_path: Path
) -> None:
    sampler = HostSampler(no_cgroup, sys=tmp_path)
    rates = []
    for second, (read, written) in enumerate([(9, 9), (0, 10), (2, 10)]):
        machine.set_disk("sda", read * MIB, written * MIB)
        rates.append(disk_rates(sampler.sample(float(second))))
    assert rates == [(None, None), (None, 1 * MIB), (2 * MIB, 0.0)]


def test_disk_that_appears_does_not_bring_its_past(
    machine: FakeMachine, no_cgroup: Cgroup, tmp_path: Path
) -> None:
    sampler = HostSampler(no_cgroup, sys=tmp_path)
    machine.set_disk("sda", 0, 0)
    sampler.sample(0.0)
    machine.set_disk("sda", MIB, 0)
    machine.set_disk("sdb", 500 * GIB, 500 * GIB)
    assert disk_rates(sampler.sample(1.0)) == (MIB, 0.0)


def test_container_without_sensors(
    monkeypatch: pytest.MonkeyPatch, machine: FakeMachine, no_cgroup: Cgroup, tmp_path: Path
) -> None:
    def missing(**_: object) -> Any:
        raise NotImplementedError("neither /proc/diskstats nor /sys/block")

    def unreadable() -> Any:
        raise OSError(13, "permission denied")

    machine.disks = None
    monkeypatch.setattr(psutil, "net_io_counters", missing)
    for sensor in ("virtual_memory", "swap_memory", "cpu_times"):
        monkeypatch.setattr(psutil, sensor, unreadable)
    sampler = HostSampler(no_cgroup, sys=tmp_path, proc=tmp_path)
    read = [replace(sampler.sample(second), cores=None) for second in (0.0, 1.0)]
    assert read == [HostSample(), HostSample()]


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "share"),
    [
        pytest.param({"sda": 0, "sdb": 0}, {"sda": 500, "sdb": 1800}, 0.9, id="the busiest counts"),
        pytest.param({"sda": 0}, {"sda": 2040}, 1.0, id="never more than always"),
        pytest.param({"sda": 900}, {"sda": 100}, None, id="ran backwards"),
        pytest.param({"sda": 0}, {"sdb": 900}, None, id="another disk"),
        pytest.param({"sda": None}, {"sda": None}, None, id="macOS does not say"),
    ],
)
def test_share_of_two_seconds_that_a_disk_worked(
    machine: FakeMachine,
    no_cgroup: Cgroup,
    tmp_path: Path,
    before_ms: dict[str, int | None],
    after_ms: dict[str, int | None],
    share: float | None,
) -> None:
    sampler = HostSampler(no_cgroup, sys=tmp_path)
    samples = []
    for second, busy in ((0.0, before_ms), (2.0, after_ms)):
        machine.disks = {}
        for name, busy_ms in busy.items():
            machine.set_disk(name, 0, 0, **({} if busy_ms is None else {"busy_time": busy_ms}))
        samples.append(sampler.sample(second))
    assert [sample.disk_busy_share for sample in samples] == [None, share]


def test_swapping_is_told_as_rates(monkeypatch: pytest.MonkeyPatch, no_cgroup: Cgroup) -> None:
    sampler = HostSampler(no_cgroup)
    for second, moved in ((0.0, 0), (2.0, 8 * MIB)):
        swap = SimpleNamespace(used=GIB, sin=moved, sout=3 * moved)
        monkeypatch.setattr(psutil, "swap_memory", lambda swap=swap: swap)
        sample = sampler.sample(second)
    assert (sample.swap_in_bytes_per_s, sample.swap_out_bytes_per_s) == (4 * MIB, 12 * MIB)
    assert sample.swap_used_bytes == GIB


def test_kills_for_want_of_memory_of_the_machine_where_no_group_counts_them(
    no_cgroup: Cgroup, tmp_path: Path
) -> None:
    (tmp_path / "vmstat").write_text("pswpout 0\noom_kill 3\nthp_swpout 0\n")
    assert HostSampler(no_cgroup, proc=tmp_path).sample(0.0).oom_kills == 3


def test_cores_are_those_the_job_may_use() -> None:
    every = cores(None)
    assert every is not None
    assert every >= 1
    assert cores(0.5) == 0.5
    assert cores(every + 1) == every


@pytest.mark.parametrize(
    ("limit", "used", "total"),
    [
        pytest.param(64 * MIB, 8 * MIB, 64 * MIB, id="below the machine"),
        pytest.param(2**60, None, None, id="above the machine, so no limit"),
    ],
)
def test_ram_is_the_tighter_of_machine_and_cgroup(
    tmp_path: Path, limit: int, used: int | None, total: int | None
) -> None:
    group = tmp_path / "sys/fs/cgroup"
    (tmp_path / "proc/self").mkdir(parents=True)
    group.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "9 8 0:29 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    )
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{8 * MIB}\n")

    sample = HostSampler(Cgroup(tmp_path)).sample(0.0)
    machine_total = psutil.virtual_memory().total
    assert sample.ram_total_bytes == (machine_total if total is None else total)
    assert sample.ram_used_bytes is not None
    assert sample.ram_used_bytes == used or (used is None and sample.ram_used_bytes > 8 * MIB)


def folders(root: Path, names: Iterable[str]) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def test_disks_that_are_built_from_others_are_left_out(tmp_path: Path) -> None:
    folders(
        tmp_path / "block",
        [
            "sda/slaves",
            "nvme0n1/slaves",
            "nvme0c0n1/slaves",
            "dm-0/slaves/sda2",
            "md0/slaves/nvme0n1",
            "loop0/slaves",
            "zram0/slaves",
            "cciss!c0d0/slaves",
        ],
    )
    (tmp_path / "block/nvme0c0n1/hidden").write_text("1\n")
    (tmp_path / "block/nvme0n1/hidden").write_text("0\n")
    listed = ["sda", "sda1", "sda2", "nvme0n1", "nvme0n1p1", "nvme0c0n1"]
    listed += ["dm-0", "md0", "loop0", "zram0", "cciss/c0d0"]
    assert physical_disks(listed, tmp_path) == ["sda", "nvme0n1", "cciss/c0d0"]


def test_disks_of_this_machine_are_no_partitions() -> None:
    counters = psutil.disk_io_counters(perdisk=True) or {}
    disks = physical_disks(counters, Path("/sys"))
    assert not [disk for disk in disks if Path(f"/sys/class/block/{disk}/partition").exists()]


@pytest.mark.parametrize(
    ("present", "names", "counted"),
    [
        pytest.param(
            ["eth0/device", "eth1/device", "bond0/lower_eth0", "docker0", "veth1/master"],
            ["lo", "eth0", "eth1", "bond0", "docker0", "veth1"],
            ["eth0", "eth1"],
            id="a node with a bond and containers",
        ),
        pytest.param(["eth0"], ["lo", "eth0"], ["eth0"], id="inside a container"),
        pytest.param(
            ["eth0/master", "br0/lower_eth0", "net1"],
            ["eth0", "br0", "net1"],
            ["net1"],
            id="no hardware, one interface that stands for itself",
        ),
        pytest.param([], ["lo0", "en0"], ["en0"], id="macOS"),
    ],
)
def test_interfaces_that_repeat_others_are_left_out(
    tmp_path: Path, present: list[str], names: list[str], counted: list[str]
) -> None:
    folders(tmp_path / "class/net", present)
    assert outward_interfaces(names, tmp_path) == counted


CPU = {"user": 100.0, "system": 50.0, "idle": 800.0, "iowait": 50.0, "guest": 40.0}


@pytest.mark.parametrize(
    ("growth", "share"),
    [
        pytest.param({"user": 3.0, "idle": 1.0}, 0.75, id="three of four seconds"),
        pytest.param({"user": 1.0, "guest": 1.0, "idle": 1.0}, 0.5, id="guests are in user time"),
        pytest.param({"system": 1.0, "iowait": 1.0}, 0.5, id="waiting for a disk is not busy"),
        pytest.param({"user": 1.0, "idle": 1.0, "iowait": -0.01}, 0.5, id="iowait steps back"),
        pytest.param({}, None, id="no time passed"),
        pytest.param({"user": -50.0}, None, id="ran backwards"),
    ],
)
def test_busy_share(growth: dict[str, float], share: float | None) -> None:
    now = {name: value + growth.get(name, 0.0) for name, value in CPU.items()}
    assert busy_share(CPU, now) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("growth", "share"),
    [
        pytest.param({"user": 1.0, "idle": 2.0, "steal": 1.0}, 0.25, id="one of four seconds"),
        pytest.param({"user": 1.0, "idle": 1.0}, 0.0, id="none of it"),
        pytest.param({}, None, id="no time passed"),
    ],
)
def test_steal_share(growth: dict[str, float], share: float | None) -> None:
    before = {**CPU, "steal": 5.0}
    now = {name: value + growth.get(name, 0.0) for name, value in before.items()}
    assert steal_share(before, now) == share
    assert steal_share(CPU, {**CPU, "user": 200.0}) is None, "a system that does not count it"
