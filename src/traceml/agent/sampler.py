"""Reads everything at one instant on one node: the host, the ranks' processes, the GPUs.

In a thread of its own: opening a GPU's driver takes seconds on some machines, and a driver that
answers slowly, or never, must hold up neither the rings nor the live findings nor the run's end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Thread

from traceml.agent.error_log import ErrorLog
from traceml.agent.gpus import Counted, GpuSampler
from traceml.agent.host import HostSampler
from traceml.agent.processes import ProcessSampler
from traceml.model.sample import GpuSample, HostSample, ProcessSample, Sample

LAST_S = 0.5
"""How long the end of a run may wait for a last sample: what killed it may show there."""
COUNTERS_S = 0.25
"""How often GPU counters are read between samples: 0.1 to 0.6 ms each, and often enough that four
seconds of training, or of steps between two evaluations, hold a good number of intervals."""


class Sampler:
    """Joins the three samplers; what one of them cannot read costs nothing of the others."""

    def __init__(
        self,
        host: HostSampler | None = None,
        processes: ProcessSampler | None = None,
        gpus: GpuSampler | None = None,
    ) -> None:
        self.errors = ErrorLog()
        """What went wrong unexpectedly, here and in the GPUs' sensors."""
        self._host = HostSampler() if host is None else host
        self._processes = ProcessSampler() if processes is None else processes
        self._gpus = GpuSampler(errors=self.errors) if gpus is None else gpus

    def sample(self, ranks: Mapping[int, int], now_s: float, unix_s: float) -> Sample:
        """`ranks` is rank → pid; `now_s` a monotonic clock for rates, `unix_s` the date."""
        host = HostSample()
        processes: tuple[ProcessSample, ...] = ()
        gpus: tuple[GpuSample, ...] = ()
        with self.errors:
            host = self._host.sample(now_s)
        with self.errors:
            processes = self._processes.sample(ranks, now_s)
        with self.errors:
            gpus = self._gpus.sample()
        return Sample(unix_s=unix_s, host=host, processes=processes, gpus=gpus)

    def count_on(self, gpus: Counted) -> None:
        """Read the counters of these GPUs from now on; may be called from another thread."""
        self._gpus.counted = gpus

    def read_counters(self) -> None:
        """Read the GPUs' counters for the next sample to hold."""
        self._gpus.read_counters()

    def close(self) -> None:
        """Lets go of the GPU driver."""
        self._gpus.close()


class Sampling:
    """Takes one sample at a time, beside the agent's loop, and reads GPU counters in between.

    The thread is a daemon, and no executor's: Python waits for an executor's threads at its end.
    """

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._sampler = Sampler() if sampler is None else sampler
        self._asked: Queue[dict[int, int] | None] = Queue(1)
        self._read: Queue[Sample | None] = Queue(1)
        self._is_pending = False
        Thread(target=self._work, name="sampling", daemon=True).start()

    def begin(self, ranks: Mapping[int, int]) -> None:
        """Begin a sample, unless the one before is not there yet."""
        if not self._is_pending:
            self._is_pending = True
            self._asked.put_nowait(dict(ranks))

    def count_on(self, gpus: Counted) -> None:
        """Read the counters of these GPUs from now on."""
        self._sampler.count_on(gpus)

    def take(self) -> Sample | None:
        """The sample that was begun, once it is there."""
        return self._take_within(0.0)

    def last(self, ranks: Mapping[int, int]) -> Sample | None:
        """One more sample at the end, if it does not take long."""
        self.begin(ranks)
        return self._take_within(LAST_S)

    def check(self) -> None:
        """Raise what went wrong in reading, one error of each type, each once."""
        self._sampler.errors.raise_next()

    def close(self) -> None:
        """Let go of the GPU driver when the last reading is over; nobody waits for it."""
        with suppress(Full):  # the thread has not come to the last question: it never will
            self._asked.put_nowait(None)

    def _take_within(self, patience_s: float) -> Sample | None:
        try:
            sample = self._read.get(timeout=patience_s) if patience_s else self._read.get_nowait()
        except Empty:
            return None
        self._is_pending = False
        return sample

    def _work(self) -> None:
        while True:
            try:
                ranks = self._asked.get(timeout=COUNTERS_S)
            except Empty:
                with self._sampler.errors:
                    self._sampler.read_counters()
                continue
            if ranks is None:
                break
            sample = None
            with self._sampler.errors:
                sample = self._sampler.sample(ranks, time.monotonic(), time.time())
            self._read.put(sample)
        with self._sampler.errors:
            self._sampler.close()
