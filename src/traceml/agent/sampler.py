"""Reads everything at one instant on one node: the host, the ranks' processes, the GPUs.

In a thread of its own: opening a GPU's driver takes seconds on some machines, and a driver that
answers slowly must hold up neither the rings nor the live findings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from traceml.agent.gpus import GpuSampler
from traceml.agent.host import HostSampler
from traceml.agent.processes import ProcessSampler
from traceml.model.sample import Sample

LAST_S = 0.5
"""How long the end of a run may wait for a last sample: what killed it may show there."""


class Sampler:
    """Joins the three samplers."""

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


class Sampling:
    """Takes one sample at a time, beside the agent's loop."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._sampler = Sampler() if sampler is None else sampler
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampling")
        self._pending: Future[Sample] | None = None

    def begin(self, ranks: Mapping[int, int]) -> None:
        """Begin a sample, unless the one before is not there yet."""
        if self._pending is None:
            self._pending = self._thread.submit(self._read, dict(ranks))

    def take(self) -> Sample | None:
        """The sample that was begun, once it is there; raises what reading it raised."""
        pending = self._pending
        if pending is None or not pending.done():
            return None
        self._pending = None
        return pending.result()

    def last(self, ranks: Mapping[int, int]) -> Sample | None:
        """One more sample at the end, if it does not take long."""
        self.begin(ranks)
        if self._pending is not None:
            wait([self._pending], LAST_S)
        return self.take()

    def close(self) -> None:
        """Let go of the GPU driver when the last reading is over; nobody waits for it."""
        self._thread.submit(self._sampler.close)
        self._thread.shutdown(wait=False)

    def _read(self, ranks: Mapping[int, int]) -> Sample:
        return self._sampler.sample(ranks, time.monotonic(), time.time())
