"""Describes the machine, and how much of it this job may use."""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path

import psutil

from traceml.agent.cgroup import Cgroup
from traceml.agent.gpus import GpuSampler
from traceml.agent.host import cores
from traceml.model.lineage import Gpu, Hardware

ROOT = Path("/")
_CONTAINER_FILES = ((".dockerenv", "docker"), ("run/.containerenv", "podman"))
_CONTAINER_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
)


def look_at_hardware(root: Path = ROOT) -> tuple[Hardware, str | None]:
    """Returns the machine, and the version of its GPU driver."""
    gpus = GpuSampler()
    try:
        found = tuple(Gpu(gpu.name, gpu.memory_total_bytes) for gpu in gpus.sample())
        driver = gpus.driver_version()
    finally:
        gpus.close()
    cgroup = Cgroup(root)
    limit = cgroup.memory()
    hardware = Hardware(
        hostname=socket.gethostname(),
        system=_system(),
        kernel=platform.release() or None,
        cpu=_cpu(root),
        cores=psutil.cpu_count(logical=False),
        threads=psutil.cpu_count(),
        usable_cores=cores(cgroup.cpu_quota_cores()),
        ram_bytes=_ram_bytes(),
        memory_limit_bytes=None if limit is None else limit.limit_bytes,
        gpus=found,
        container=_container(root),
        virtual=_is_virtual(root),
    )
    return hardware, driver


def _system() -> str | None:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # no Linux, or one that does not say
        return platform.system() or None


def _cpu(root: Path) -> str | None:
    """Returns the CPU model as Linux reports it; ARM has none."""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _cpuinfo(root), re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine() or None


def _is_virtual(root: Path) -> bool | None:
    """Returns whether the machine is virtual, by the flag that hypervisors set on x86; not known
    elsewhere."""
    flags = re.search(r"^flags\s*:\s*(.+)$", _cpuinfo(root), re.MULTILINE)
    return None if flags is None else "hypervisor" in flags[1].split()


def _cpuinfo(root: Path) -> str:
    try:
        return (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""


def _ram_bytes() -> int | None:
    try:
        return int(psutil.virtual_memory().total)
    except (OSError, RuntimeError, ValueError):
        return None


def _container(root: Path) -> str | None:
    for variable, kind in _CONTAINER_VARIABLES:
        if os.environ.get(variable):
            return kind
    for name, kind in _CONTAINER_FILES:
        if (root / name).exists():
            return kind
    return None
