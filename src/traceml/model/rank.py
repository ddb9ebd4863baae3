"""Who a rank is: one training process and its place in the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """One training process."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    pid: int
    hostname: str
    device: str
    """`cpu`, `cuda:0`, `mps`: where the model's parameters live."""
    device_name: str
    device_total_bytes: int | None
    monotonic_ns: int
    """The process's monotonic clock and …"""
    unix_ns: int
    """… the wall clock at the same instant: the pair aligns ranks and nodes."""
    process_unix_ns: int = 0
    """When the process was started; 0 where that cannot be known."""
    device_uuid: str = ""
    """The GPU's name for itself, as NVML has it, or the beginning of it; empty where torch does not
    tell. Numbers do not identify a GPU: torch counts those it may use, NVML those there are."""

    @property
    def accelerator(self) -> str:
        """The name of the device that it trains on; empty where that is the CPU."""
        return self.device_name or ("" if self.device == "cpu" else self.device)

    @property
    def is_on_gpu(self) -> bool:
        """Whether it trains on a CUDA device."""
        return self.device.startswith("cuda")

    def trains_on(self, gpu_uuid: str) -> bool:
        """Whether this is certainly the GPU that it trains on."""
        return bool(self.device_uuid) and gpu_uuid.startswith(self.device_uuid)

    def unix_s(self, monotonic_ns: int) -> float:
        """The wall-clock time of a monotonic timestamp of this process."""
        return (self.unix_ns + monotonic_ns - self.monotonic_ns) / 1e9


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """A script, or a rank of a launcher, whose interpreter was started; it need not have
    trained."""

    pid: int
    hostname: str
    rank: int | None = None
    """`None` where no launcher gave it one."""
    restart: int | None = None
    """How often torch's launcher had started its ranks again by then; `None` under others."""
    unix_s: float | None = None


REGIONS_OUTSIDE_STEPS = frozenset(
    ("checkpoint", "evaluation", "prediction", "sanity check", "test", "validation")
)
"""Regions by which integrations name what a library does outside its training steps."""


@dataclass(frozen=True, slots=True)
class Region:
    """A named region's totals over a rank's life (`trace_time`)."""

    name: str
    calls: int
    host_s: float
    longest_s: float
    gpu_s: float | None
