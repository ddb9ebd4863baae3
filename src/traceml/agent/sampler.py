"""Samples one node at one instant: the host, the ranks' processes, the GPUs.

In its own thread: opening a GPU's driver takes seconds on some machines, and a driver that answers
slowly, or never, must not delay the rings, the live findings or the end of the run.
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
"""How long the end of a run may wait for a last sample, which may show what killed it."""
COUNTERS_S = 0.25
"""How often GPU counters are read between samples: 0.1 to 0.6 ms each, and often enough that four
seconds of training hold a good number of intervals."""


class Sampler:
    """Combines the three samplers; a failure of one does not affect the others."""

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
        """Returns a sample; `ranks` maps rank to pid, `now_s` is a monotonic clock, `unix_s` the
        date."""
        host = HostSample()
        processes: tuple[ProcessSample, ...] = ()
        gpus: tuple[GpuSample, ...] = ()
        own_pids: frozenset[int] = frozenset()
        with self.errors:
            host = self._host.sample(now_s)
        with self.errors:
            processes = self._processes.sample(ranks, now_s)
            own_pids = self._processes.pids()
        with self.errors:
            gpus = self._gpus.sample(own_pids)
        return Sample(unix_s=unix_s, host=host, processes=processes, gpus=gpus)

    def count_on(self, gpus: Counted) -> None:
        """Selects the GPUs whose counters are read; may be called from another thread."""
        self._gpus.counted = gpus

    def read_counters(self) -> None:
        """Reads the GPUs' counters for the next sample."""
        self._gpus.read_counters()

    def close(self) -> None:
        """Closes the GPU driver."""
        self._gpus.close()


class Sampling:
    """Takes one sample at a time in a thread, and reads GPU counters in between.

    The thread is a daemon, because Python waits for an executor's threads at its end.
    """

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._sampler = Sampler() if sampler is None else sampler
        self._asked: Queue[dict[int, int] | None] = Queue(1)
        self._read: Queue[Sample | None] = Queue(1)
        self._is_pending = False
        Thread(target=self._work, name="sampling", daemon=True).start()

    def begin(self, ranks: Mapping[int, int]) -> None:
        """Begins a sample, unless the last one is still running."""
        if not self._is_pending:
            self._is_pending = True
            self._asked.put_nowait(dict(ranks))

    def count_on(self, gpus: Counted) -> None:
        """Selects the GPUs whose counters are read."""
        self._sampler.count_on(gpus)

    def take(self) -> Sample | None:
        """Returns the sample that was begun; `None` until it is ready."""
        return self._take_within(0.0)

    def last(self, ranks: Mapping[int, int]) -> Sample | None:
        """Returns one more sample at the end, if it does not take long."""
        self.begin(ranks)
        return self._take_within(LAST_S)

    def check(self) -> None:
        """Raises what went wrong in reading, one error of each type, each once."""
        self._sampler.errors.raise_next()

    def close(self) -> None:
        """Closes the GPU driver after the last reading, without waiting for it."""
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
