"""Reads everything at one instant on one node: the host, the ranks' processes, the GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from traceml.agent.gpus import GpuSampler
from traceml.agent.host import HostSampler
from traceml.agent.processes import ProcessSampler
from traceml.model.sample import Sample


class Sampler:
    """Joins the three samplers; called once a second by the agent's loop."""

    def __init__(
        self,
        host: HostSampler | None = None,
        processes: ProcessSampler | None = None,
        gpus: GpuSampler | None = None,
    ) -> None:
        self._host = HostSampler() if host is None else host
        self._processes = ProcessSampler() if processes is None else processes
        self._gpus = GpuSampler() if gpus is None else gpus

    def sample(self, ranks: Mapping[int, int], now_s: float, unix_s: float) -> Sample:
        """`ranks` is rank → pid; `now_s` a monotonic clock for rates, `unix_s` the date."""
        return Sample(
            unix_s=unix_s,
            host=self._host.sample(now_s),
            processes=self._processes.sample(ranks, now_s),
            gpus=self._gpus.sample(),
        )

    def close(self) -> None:
        """Lets go of the GPU driver."""
        self._gpus.close()
