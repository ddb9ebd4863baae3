"""Reads what the kernel's control groups allow this job: memory limits and CPU quota, v1 and v2.

The group is found as the kernel tells it: `/proc/self/cgroup` names it, `/proc/self/mountinfo`
says where that hierarchy is mounted. A limit may sit on any group above ours (a pod's, a Slurm
job's), so every level that can be seen counts. Whatever cannot be read is `None`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

DEFAULT_PERIOD_S = 0.1  # the kernel's own default for a CPU quota
UNLIMITED_BYTES = 2**62  # v1 says "no limit" as 2**63 less a page, whose size varies
_OCTAL = re.compile(r"\\([0-7]{3})")  # mountinfo writes a space as \040


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The tightest memory limit above this process, and the use of the group that has it."""

    limit_bytes: int
    used_bytes: int | None
    """Without the page cache, which the kernel frees before it kills a process."""


@dataclass(frozen=True, slots=True)
class _Mount:
    """One mounted hierarchy; v2 has no controllers in its options."""

    root: str
    point: str
    is_v2: bool
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class _QuotaStops:
    """What one group's cpu.stat has counted since the group was made."""

    times: int | None
    throttled_s: float
    """Summed over the group's CPUs: it can grow faster than the clock."""


class Cgroup:
    """This process's control group, found once, because a job does not change groups."""

    def __init__(self, root: Path = Path("/")) -> None:
        mounts = _mounts(root)
        groups = _groups(_read(root / "proc/self/cgroup"))
        self._cpu = _levels(root, "cpu", groups, mounts)
        self._memory = _levels(root, "memory", groups, mounts)
        self._before: tuple[float, dict[Path, _QuotaStops]] | None = None

    def memory(self) -> CgroupMemory | None:
        """Returns the smallest limit of our group and those above it; `None` where none is set or
        readable."""
        tightest: tuple[int, Path] | None = None
        for folder in self._memory:
            limit = _memory_limit(folder)
            if limit is not None and (tightest is None or limit < tightest[0]):
                tightest = (limit, folder)
        if tightest is None:
            return None
        return CgroupMemory(limit_bytes=tightest[0], used_bytes=_memory_used(tightest[1]))

    def oom_kills(self) -> int | None:
        """Returns how many processes of our group the kernel killed for lack of memory."""
        for folder in self._memory[:1]:  # a group's count holds those of the groups below it
            for name in ("memory.events", "memory.oom_control"):  # v2, v1
                killed = _table(folder / name).get("oom_kill")
                if killed is not None:
                    return killed
        return None

    def cpu_quota_cores(self) -> float | None:
        """Returns the cores of the tightest CPU quota; `None` where none is set."""
        quotas = (_quota_cores(folder) for folder in self._cpu)
        return min((quota for quota in quotas if quota is not None), default=None)

    def throttled_share(self, now_s: float) -> float | None:
        """Returns the share of the time since the last call in which a CPU quota stopped the
        group."""
        after = {folder: read for folder in self._cpu if (read := _throttling(folder)) is not None}
        before, self._before = self._before, (now_s, after)
        if before is None or now_s <= before[0]:
            return None
        interval_s = now_s - before[0]
        shares = [
            share
            for folder, now in after.items()
            if (was := before[1].get(folder)) is not None
            and (share := _share(was, now, _period_s(folder), interval_s)) is not None
        ]
        # Each level holds back on its own account: the hardest one is what the job felt.
        return max(shares, default=None)


def _share(was: _QuotaStops, now: _QuotaStops, period_s: float, interval_s: float) -> float | None:
    """Returns the smaller of two upper limits for the throttled share.

    Throttled time is a sum over CPUs and too large on many of them; the number of throttled periods
    is too large where each was stopped only briefly.
    """
    held_s = now.throttled_s - was.throttled_s
    if held_s < 0:
        return None
    if now.times is not None and was.times is not None:
        if now.times < was.times:
            return None
        held_s = min(held_s, (now.times - was.times) * period_s)
    return min(1.0, held_s / interval_s)


def _throttling(folder: Path) -> _QuotaStops | None:
    stat = _table(folder / "cpu.stat")
    times = stat.get("nr_throttled")
    if "throttled_usec" in stat:  # v2
        return _QuotaStops(times, stat["throttled_usec"] / 1e6)
    if "throttled_time" in stat:  # v1, nanoseconds
        return _QuotaStops(times, stat["throttled_time"] / 1e9)
    return None


def _period_s(folder: Path) -> float:
    v2 = (_read(folder / "cpu.max") or "").split()  # "max 100000" or "50000 100000"
    text = v2[1] if len(v2) == 2 else _read(folder / "cpu.cfs_period_us")
    period_us = _number(text)
    return period_us / 1e6 if period_us else DEFAULT_PERIOD_S


def _quota_cores(folder: Path) -> float | None:
    """None where the quota is "max" (v2) or -1 (v1)."""
    v2 = (_read(folder / "cpu.max") or "").split()
    quota_us = _number(v2[0] if v2 else _read(folder / "cpu.cfs_quota_us"))
    return quota_us / 1e6 / _period_s(folder) if quota_us else None


def _memory_limit(folder: Path) -> int | None:
    """None where the limit is "max" (v2) or a number that says the same (v1)."""
    text = _read(folder / "memory.max")
    limit = _number(text if text is not None else _read(folder / "memory.limit_in_bytes"))
    return None if limit is None or limit >= UNLIMITED_BYTES else limit


def _memory_used(folder: Path) -> int | None:
    text = _read(folder / "memory.current")
    used = _number(text if text is not None else _read(folder / "memory.usage_in_bytes"))
    if used is None:
        return None
    stat = _table(folder / "memory.stat")
    # v1 counts a group's children only in the total_ lines; v2 always includes them.
    cached = sum(
        stat.get(f"total_{name}", stat.get(name, 0)) for name in ("active_file", "inactive_file")
    )
    return max(0, used - cached)


def _levels(
    root: Path, controller: str, groups: Mapping[str, str], mounts: tuple[_Mount, ...]
) -> tuple[Path, ...]:
    """The folders of our group and of those above it, as far up as the mount reaches."""
    v1 = [mount for mount in mounts if not mount.is_v2 and controller in mount.controllers]
    if controller in groups and v1:
        candidates, path = v1, groups[controller]
    elif "" in groups:
        candidates, path = [mount for mount in mounts if mount.is_v2], groups[""]
    else:
        return ()
    found: list[tuple[Path, ...]] = []
    for mount in candidates:
        below = _below_mount(path, mount.root)
        if below is not None:
            point = root / mount.point.lstrip("/")
            folders = [point.joinpath(*below[:depth]) for depth in range(len(below), -1, -1)]
            found.append(tuple(folder for folder in folders if folder.is_dir()))
    # One hierarchy may be mounted twice (a container that also sees the host's): more levels win.
    return max(found, key=len, default=())


def _below_mount(path: str, mount_root: str) -> tuple[str, ...] | None:
    """The way from the mount down to the group; None when the mount shows another branch."""
    group, top = PurePosixPath(path).parts[1:], PurePosixPath(mount_root).parts[1:]
    if group[: len(top)] == top:
        below = group[len(top) :]
        return None if ".." in below else below
    # Inside a cgroup namespace a mount from outside has the root "/.." or "/../..": a group
    # above ours. The names between are hidden, but its limits hold for us too.
    return () if top and set(top) == {".."} else None


def _groups(text: str | None) -> dict[str, str]:
    """Controller → path; the v2 group, which has no controller list, under the empty name."""
    groups: dict[str, str] = {}
    for line in (text or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            groups.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return groups


def _mounts(root: Path) -> tuple[_Mount, ...]:
    mounts = []
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        mounts.append(
            _Mount(
                root=_unescape(fields[3]),
                point=_unescape(fields[4]),
                is_v2=kind[0] == "cgroup2",
                controllers=frozenset(kind[2].split(",")),
            )
        )
    return tuple(mounts)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in (_read(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
