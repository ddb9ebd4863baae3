"""The control group is found on every layout that hosts and containers really have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from traceml.agent.cgroup import Cgroup, CgroupMemory

GIB = 2**30
V1_UNLIMITED = "9223372036854771712\n"

MakeRoot = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def make_root(tmp_path: Path) -> MakeRoot:
    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


V2_HOST = {
    "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
    "proc/self/mountinfo": (
        "25 30 0:23 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n"
        "34 25 0:29 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9"
        " - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
    ),
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
    "sys/fs/cgroup/user.slice/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/user-1000.slice/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/user.slice/user-1000.slice/memory.current": f"{5 * GIB}\n",
    "sys/fs/cgroup/user.slice/user-1000.slice/memory.stat": (
        f"anon {2 * GIB}\nfile {3 * GIB}\ninactive_file {GIB}\nactive_file {GIB}\n"
    ),
    "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.current": f"{GIB}\n",
}
V2_CONTAINER_IN_A_NAMESPACE = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": (
        "1045 1044 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime"
        " - cgroup2 cgroup rw,nsdelegate\n"
    ),
    "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
}
V1_DOCKER_WITHOUT_A_NAMESPACE = {
    "proc/self/cgroup": (
        "11:memory:/docker/4f2a\n4:cpu,cpuacct:/docker/4f2a\n1:name=systemd:/docker/4f2a\n"
    ),
    "proc/self/mountinfo": (
        "812 811 0:30 /docker/4f2a /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:13"
        " - cgroup cgroup rw,cpu,cpuacct\n"
        "819 811 0:37 /docker/4f2a /sys/fs/cgroup/memory ro,nosuid master:20"
        " - cgroup cgroup rw,memory\n"
    ),
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 * GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": (
        f"inactive_file 4096\nactive_file 0\ntotal_inactive_file {2 * GIB}\ntotal_active_file 0\n"
    ),
    "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
}
HYBRID_HOST = {
    "proc/self/cgroup": (
        "9:memory:/slurm/uid_1000/job_7\n5:cpu,cpuacct:/slurm/uid_1000/job_7\n"
        "1:name=systemd:/system.slice/slurmd.service\n0::/system.slice/slurmd.service\n"
    ),
    "proc/self/mountinfo": (
        "31 25 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755\n"
        "32 31 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
        "33 31 0:28 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd\n"
        "36 31 0:31 / /sys/fs/cgroup/memory rw shared:15 - cgroup cgroup rw,memory\n"
        "38 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw shared:17 - cgroup cgroup rw,cpu,cpuacct\n"
    ),
    "sys/fs/cgroup/unified/system.slice/slurmd.service/cgroup.procs": "1\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
    "sys/fs/cgroup/memory/slurm/uid_1000/memory.limit_in_bytes": V1_UNLIMITED,
    "sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.limit_in_bytes": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.usage_in_bytes": f"{3 * GIB}\n",
}
MOUNTED_FROM_ABOVE_THE_NAMESPACE = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "9 8 0:29 /.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
    "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
}
A_SPACE_IN_THE_MOUNT_POINT = {
    "proc/self/cgroup": "0::/job\n",
    "proc/self/mountinfo": "9 8 0:29 / /my\\040groups rw - cgroup2 cgroup rw\n",
    "my groups/job/memory.max": f"{8 * GIB}\n",
    "my groups/job/memory.current": f"{3 * GIB}\n",
}


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(V2_HOST, id="v2 host, limit on a group above ours"),
        pytest.param(V2_CONTAINER_IN_A_NAMESPACE, id="v2 container in a namespace"),
        pytest.param(V1_DOCKER_WITHOUT_A_NAMESPACE, id="v1 docker without a namespace"),
        pytest.param(HYBRID_HOST, id="hybrid host with Slurm"),
        pytest.param(MOUNTED_FROM_ABOVE_THE_NAMESPACE, id="mounted from above the namespace"),
        pytest.param(A_SPACE_IN_THE_MOUNT_POINT, id="a space in the mount point"),
    ],
)
def test_memory_limit_and_use_without_page_cache(
    make_root: MakeRoot, files: Mapping[str, str]
) -> None:
    assert Cgroup(make_root(files)).memory() == CgroupMemory(8 * GIB, 3 * GIB)


NO_LIMIT = {**V2_CONTAINER_IN_A_NAMESPACE, "sys/fs/cgroup/memory.max": "max\n"}
NO_LIMIT_V1 = {
    **V1_DOCKER_WITHOUT_A_NAMESPACE,
    "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
}
ANOTHER_BRANCH = {**V2_CONTAINER_IN_A_NAMESPACE, "proc/self/cgroup": "0::/../elsewhere\n"}
NOT_MOUNTED = {**V2_CONTAINER_IN_A_NAMESPACE, "proc/self/mountinfo": ""}
NOT_IN_A_GROUP = {**V2_CONTAINER_IN_A_NAMESPACE, "proc/self/cgroup": ""}


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="no /proc, as on macOS"),
        pytest.param(NO_LIMIT, id="v2 without a limit"),
        pytest.param(NO_LIMIT_V1, id="v1 without a limit"),
        pytest.param(ANOTHER_BRANCH, id="the mount shows another branch"),
        pytest.param(NOT_MOUNTED, id="no hierarchy mounted"),
        pytest.param(NOT_IN_A_GROUP, id="in no group"),
    ],
)
def test_no_limit_is_none(make_root: MakeRoot, files: Mapping[str, str]) -> None:
    assert Cgroup(make_root(files)).memory() is None


def test_unreadable_use_stays_unknown(make_root: MakeRoot) -> None:
    files = {**V2_CONTAINER_IN_A_NAMESPACE, "sys/fs/cgroup/memory.current": "\n"}
    assert Cgroup(make_root(files)).memory() == CgroupMemory(8 * GIB, None)


@pytest.mark.parametrize(
    ("files", "killed"),
    [
        pytest.param(
            {
                **V2_HOST,
                "sys/fs/cgroup/user.slice/memory.events": "oom 9\noom_kill 9\n",
                "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.events": (
                    "low 0\nhigh 0\nmax 4\noom 2\noom_kill 2\noom_group_kill 0\n"
                ),
            },
            2,
            id="v2, of our own group only",
        ),
        pytest.param(
            {
                **V1_DOCKER_WITHOUT_A_NAMESPACE,
                "sys/fs/cgroup/memory/memory.oom_control": (
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"
                ),
            },
            1,
            id="v1",
        ),
        pytest.param(V2_CONTAINER_IN_A_NAMESPACE, None, id="not counted"),
        pytest.param({}, None, id="no groups"),
    ],
)
def test_kills_for_want_of_memory(
    make_root: MakeRoot, files: Mapping[str, str], killed: int | None
) -> None:
    assert Cgroup(make_root(files)).oom_kills() == killed


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param(
            {
                **V2_HOST,
                "sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cpu.max": "max 100000\n",
            },
            1.5,
            id="v2, the tightest on the way up",
        ),
        pytest.param(
            {
                **V1_DOCKER_WITHOUT_A_NAMESPACE,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
            },
            2.0,
            id="v1",
        ),
        pytest.param(
            {
                **V1_DOCKER_WITHOUT_A_NAMESPACE,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            },
            None,
            id="v1 without a quota",
        ),
        pytest.param(V2_HOST, None, id="v2 without a quota"),
    ],
)
def test_cores_that_the_quota_is_worth(
    make_root: MakeRoot, files: Mapping[str, str], cores: float | None
) -> None:
    assert Cgroup(make_root(files)).cpu_quota_cores() == pytest.approx(cores)


def v2_stat(times: int, throttled_s: float) -> str:
    return (
        "usage_usec 900\nuser_usec 600\nsystem_usec 300\n"
        f"nr_periods 1000\nnr_throttled {times}\nthrottled_usec {throttled_s * 1e6:.0f}\n"
    )


def v1_stat(times: int, throttled_s: float) -> str:
    return f"nr_periods 1000\nnr_throttled {times}\nthrottled_time {throttled_s * 1e9:.0f}\n"


@pytest.mark.parametrize(
    ("files", "stat", "write_stat"),
    [
        pytest.param(V2_HOST, "sys/fs/cgroup/user.slice/cpu.stat", v2_stat, id="v2"),
        pytest.param(
            V1_DOCKER_WITHOUT_A_NAMESPACE, "sys/fs/cgroup/cpu,cpuacct/cpu.stat", v1_stat, id="v1"
        ),
        pytest.param(
            HYBRID_HOST,
            "sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_7/cpu.stat",
            v1_stat,
            id="hybrid",
        ),
    ],
)
@pytest.mark.parametrize(
    ("times", "throttled_s", "share"),
    [
        pytest.param(0, 0.0, 0.0, id="never"),
        pytest.param(10, 0.5, 0.25, id="half of every second period"),
        pytest.param(10, 32.0, 0.5, id="64 CPUs, each summed, for ten of twenty periods"),
        pytest.param(90, 99.0, 1.0, id="never more than all the time"),
        pytest.param(-1, 0.5, None, id="count ran backwards"),
        pytest.param(10, -0.5, None, id="time ran backwards"),
    ],
)
def test_throttled_share_of_two_seconds(
    make_root: MakeRoot,
    files: Mapping[str, str],
    stat: str,
    write_stat: Callable[[int, float], str],
    times: int,
    throttled_s: float,
    share: float | None,
) -> None:
    root = make_root({**files, stat: write_stat(40, 100.0)})
    cgroup = Cgroup(root)
    assert cgroup.throttled_share(10.0) is None  # a share needs two readings

    (root / stat).write_text(write_stat(40 + times, 100.0 + throttled_s))
    assert cgroup.throttled_share(12.0) == (None if share is None else pytest.approx(share))


def test_period_of_the_quota_is_read(make_root: MakeRoot) -> None:
    own = "sys/fs/cgroup/"
    root = make_root(
        {
            **V2_CONTAINER_IN_A_NAMESPACE,
            own + "cpu.max": "5000 10000\n",
            own + "cpu.stat": v2_stat(0, 0),
        }
    )
    cgroup = Cgroup(root)
    cgroup.throttled_share(0.0)
    (root / own / "cpu.stat").write_text(v2_stat(50, 16.0))
    assert cgroup.throttled_share(1.0) == pytest.approx(0.5)


def test_hardest_level_counts(make_root: MakeRoot) -> None:
    pod = "sys/fs/cgroup/user.slice/cpu.stat"
    own = "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cpu.stat"
    root = make_root({**V2_HOST, pod: v2_stat(0, 0.0), own: v2_stat(0, 0.0)})
    cgroup = Cgroup(root)
    cgroup.throttled_share(0.0)
    (root / pod).write_text(v2_stat(8, 0.8))
    (root / own).write_text(v2_stat(1, 0.1))
    assert cgroup.throttled_share(1.0) == pytest.approx(0.8)


def test_throttling_is_unknown_without_the_cpu_controller(make_root: MakeRoot) -> None:
    stat = "sys/fs/cgroup/cpu.stat"
    text = "usage_usec 900\nuser_usec 600\nsystem_usec 300\n"
    cgroup = Cgroup(make_root({**V2_CONTAINER_IN_A_NAMESPACE, stat: text}))
    assert cgroup.throttled_share(0.0) is None
    assert cgroup.throttled_share(1.0) is None


def test_no_time_passed_is_no_share(make_root: MakeRoot) -> None:
    root = make_root({**V2_CONTAINER_IN_A_NAMESPACE, "sys/fs/cgroup/cpu.stat": v2_stat(0, 0.0)})
    cgroup = Cgroup(root)
    cgroup.throttled_share(1.0)
    assert cgroup.throttled_share(1.0) is None
