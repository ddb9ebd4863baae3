"""Samples the machine as a whole: CPU, memory, swap, disks, network, and this job's limits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from traceml.agent.cgroup import Cgroup
from traceml.model.sample import HostSample

SYS = Path("/sys")
PROC = Path("/proc")
IN_MEMORY_DISKS = ("loop", "ram", "zram")  # a loop's blocks are counted at the disk below it
LOOPBACK = re.compile(r"lo\d*")
NOT_BUSY = ("idle", "iowait")
ALSO_IN_USER_TIME = ("guest", "guest_nice")  # Linux counts these twice

Counters = Mapping[str, tuple[int, int]]
"""Device → two growing counters: bytes read and written, received and sent, in and out."""


class HostSampler:
    """Keeps the last reading of each counter, because a rate needs two."""

    def __init__(self, cgroup: Cgroup | None = None, sys: Path = SYS, proc: Path = PROC) -> None:
        self._cgroup = Cgroup() if cgroup is None else cgroup
        self._sys = sys
        self._proc = proc
        self._cpu_before: dict[str, float] | None = None
        self._disks = _Rates()
        self._busy_disks = _Busiest()
        self._network = _Rates()
        self._swapped = _Rates()
        self._cores = cores(self._cgroup.cpu_quota_cores())

    def sample(self, now_s: float) -> HostSample:
        """Returns one sample; `now_s` is a monotonic clock for the rates."""
        disks = _disk_counters(self._sys)
        read_per_s, written_per_s = self._disks.update(_disk_bytes(disks), now_s)
        received_per_s, sent_per_s = self._network.update(_network_counters(self._sys), now_s)
        used_bytes, total_bytes = self._ram()
        cpu_share, steal_share = self._cpu_shares()
        swap = _swap()
        in_per_s, out_per_s = self._swapped.update(
            None if swap is None else {"swap": (int(swap.sin), int(swap.sout))}, now_s
        )
        return HostSample(
            cpu_share=cpu_share,
            cpu_steal_share=steal_share,
            machine_cores=None if cpu_share is None else os.cpu_count(),
            ram_used_bytes=used_bytes,
            ram_total_bytes=total_bytes,
            swap_used_bytes=None if swap is None else int(swap.used),
            disk_read_bytes_per_s=read_per_s,
            disk_write_bytes_per_s=written_per_s,
            disk_busy_share=self._busy_disks.update(_disk_busy_s(disks), now_s),
            swap_in_bytes_per_s=in_per_s,
            swap_out_bytes_per_s=out_per_s,
            network_received_bytes_per_s=received_per_s,
            network_sent_bytes_per_s=sent_per_s,
            cpu_throttled_share=self._cgroup.throttled_share(now_s),
            cores=self._cores,
            oom_kills=self._oom_kills(),
        )

    def _cpu_shares(self) -> tuple[float | None, float | None]:
        """Returns the busy share of the CPU, and the part of it that the hypervisor took."""
        try:
            now = psutil.cpu_times()._asdict()
        except (OSError, RuntimeError):
            now = None
        before, self._cpu_before = self._cpu_before, now
        if before is None or now is None:
            return None, None
        return busy_share(before, now), steal_share(before, now)

    def _ram(self) -> tuple[int | None, int | None]:
        """Returns used and total memory; of the control group where its limit is tighter."""
        used: int | None
        total: int | None
        try:
            memory = psutil.virtual_memory()
            used, total = int(memory.total - memory.available), int(memory.total)
        except (OSError, RuntimeError, ValueError, KeyError):  # a container's odd /proc/meminfo
            used = total = None
        group = self._cgroup.memory()
        if group is not None and total is not None and group.limit_bytes < total:
            return group.used_bytes, group.limit_bytes
        return used, total

    def _oom_kills(self) -> int | None:
        """Returns OOM kills of our control group where it counts them, else of the machine."""
        ours = self._cgroup.oom_kills()
        return _host_oom_kills(self._proc) if ours is None else ours


class _Rates:
    """Bytes per second over the devices present in both readings."""

    def __init__(self) -> None:
        self._before: tuple[float, Counters] | None = None

    def update(self, now: Counters | None, now_s: float) -> tuple[float | None, float | None]:
        before, self._before = self._before, None if now is None else (now_s, now)
        if before is None or now is None or now_s <= before[0]:
            return None, None
        # A disk that appears brings the total of its life with it, so only pairs are compared.
        pairs = [(before[1][name], now[name]) for name in now if name in before[1]]
        first = _growth((was[0], is_[0]) for was, is_ in pairs)
        second = _growth((was[1], is_[1]) for was, is_ in pairs)
        interval_s = now_s - before[0]
        return (
            None if first is None else first / interval_s,
            None if second is None else second / interval_s,
        )


class _Busiest:
    """The share of the time in which the busiest device worked."""

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[str, float]] | None = None

    def update(self, busy_s: Mapping[str, float] | None, now_s: float) -> float | None:
        before, self._before = self._before, None if busy_s is None else (now_s, busy_s)
        if before is None or busy_s is None or now_s <= before[0]:
            return None
        growths = [busy_s[name] - before[1][name] for name in busy_s if name in before[1]]
        forward = [growth for growth in growths if growth >= 0]
        return min(1.0, max(forward) / (now_s - before[0])) if forward else None


def _growth(pairs: Iterable[tuple[int, int]]) -> int | None:
    """Returns the sum of all increases; `None` where a counter decreased or there was none."""
    growths = [now - was for was, now in pairs]
    return sum(growths) if growths and min(growths) >= 0 else None


def busy_share(before: Mapping[str, float], now: Mapping[str, float]) -> float | None:
    """Returns the busy part of the CPU time; `None` where the counters did not grow."""
    passed = _cpu_time_passed(before, now)
    if passed is None:
        return None
    return 1.0 - sum(passed.get(name, 0.0) for name in NOT_BUSY) / sum(passed.values())


def steal_share(before: Mapping[str, float], now: Mapping[str, float]) -> float | None:
    """Returns the share that the hypervisor gave to other machines; `None` where it is not
    counted."""
    passed = _cpu_time_passed(before, now)
    if passed is None or "steal" not in passed:
        return None
    return passed["steal"] / sum(passed.values())


def _cpu_time_passed(
    before: Mapping[str, float], now: Mapping[str, float]
) -> dict[str, float] | None:
    """By what it went to; None when the counters stood still or ran back."""
    if sum(now.values()) < sum(before.values()):
        return None
    # A single field may step back by a tick (iowait does, on Linux) while time goes on.
    passed = {
        name: max(0.0, now[name] - before[name])
        for name in now
        if name in before and name not in ALSO_IN_USER_TIME
    }
    return passed if sum(passed.values()) > 0 else None


def cores(quota_cores: float | None) -> float | None:
    """Returns the number of cores that this job may use: its CPU affinity, or fewer by a quota."""
    try:
        usable: int | None = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # only Linux has it
        usable = os.cpu_count()
    known = [float(found) for found in (usable, quota_cores) if found]
    return min(known, default=None)


def _host_oom_kills(proc: Path) -> int | None:
    try:
        text = (proc / "vmstat").read_text()
    except OSError:
        return None
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return None if found is None else int(found[1])


def _swap() -> Any:
    """psutil's reading; None where there is none."""
    try:
        return psutil.swap_memory()
    except (OSError, RuntimeError, ValueError, KeyError):
        return None


def _disk_counters(sys: Path) -> Mapping[str, Any] | None:
    """psutil's counters of each physical disk."""
    try:
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
    except (OSError, RuntimeError, ValueError, NotImplementedError):
        return None
    names = physical_disks(disks or {}, sys)
    return {name: disks[name] for name in names} or None


def _disk_bytes(disks: Mapping[str, Any] | None) -> Counters | None:
    return disks and {name: (disk.read_bytes, disk.write_bytes) for name, disk in disks.items()}


def _disk_busy_s(disks: Mapping[str, Any] | None) -> Mapping[str, float] | None:
    """Only Linux and FreeBSD say for how long a disk had work."""
    busy_ms = {name: getattr(disk, "busy_time", None) for name, disk in (disks or {}).items()}
    return {name: ms / 1e3 for name, ms in busy_ms.items() if ms is not None} or None


def physical_disks(names: Iterable[str], sys: Path) -> list[str]:
    """Returns the physical disks: no partitions, and no volumes (LVM, RAID, multipath)."""
    every = [name for name in names if not name.startswith(IN_MEMORY_DISKS)]
    if (sys / "block").is_dir():
        return [name for name in every if _is_physical_disk(sys / "block" / name.replace("/", "!"))]
    return [name for name in every if not any(_is_partition(name, disk) for disk in every)]


def _is_physical_disk(folder: Path) -> bool:
    """Returns whether a device is a disk: a volume names the disks below it."""
    try:
        if any((folder / "slaves").iterdir()):
            return False
    except OSError:
        return folder.is_dir()
    try:  # one path of several to an NVMe disk that is listed beside it
        return (folder / "hidden").read_text().strip() != "1"
    except OSError:
        return True


def _is_partition(name: str, disk: str) -> bool:
    """Returns whether a name is a partition of a disk (`sda1` of `sda`), for systems without
    sysfs."""
    separator = "p" if disk[-1].isdigit() else ""
    return re.fullmatch(re.escape(disk + separator) + r"\d+", name) is not None


def _network_counters(sys: Path) -> Counters | None:
    try:
        cards = psutil.net_io_counters(pernic=True, nowrap=False)
    except (OSError, RuntimeError, ValueError, NotImplementedError):
        return None
    names = outward_interfaces(cards or {}, sys)
    return {name: (cards[name].bytes_recv, cards[name].bytes_sent) for name in names} or None


def outward_interfaces(names: Iterable[str], sys: Path) -> list[str]:
    """Returns the network interfaces that count each byte once.

    That is the hardware where it is known, else all but loopback and interfaces on top of others:
    bonds, bridges, VLANs and containers' interfaces count the same bytes again.
    """
    outward = [name for name in names if not LOOPBACK.fullmatch(name)]
    net = sys / "class/net"
    cards = [name for name in outward if (net / name / "device").exists()]
    return cards or [name for name in outward if not _repeats_another(net / name)]


def _repeats_another(folder: Path) -> bool:
    return (folder / "master").exists() or any(folder.glob("lower_*"))
