"""One whole step as torch's own profiler records it: operations, shapes, kernels and copies."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch.autograd import profiler

from traceml.trace.failure import ended_by_device_error
from traceml.trace.profiler_turns import CuptiTeardown, ProfilerTurns, new_profile
from traceml.trace.session import Session
from traceml.trace.step_boundary import FetchWatch

COMPRESSION = 1
"""Of gzip: the fastest, with which a trace takes a tenth of its size."""
MAX_TRACE_BYTES = 512 << 20
"""Of an uncompressed trace: larger ones open in no viewer."""


class StepRecording:
    """Records from `begin` to `end`; what the GPU still had to do before is waited for."""

    def __init__(
        self,
        session: Session,
        turns: ProfilerTurns,
        fetches: FetchWatch,
        before_fetch: Callable[[], None],
    ) -> None:
        """`before_fetch` is called before each batch that is fetched meanwhile."""
        self._session, self._turns, self._fetches = session, turns, fetches
        self._before_fetch = session.guard(before_fetch)
        self._is_on_gpu = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call] # torch
        self._teardown = CuptiTeardown()
        self._annotation: Any = None
        self._restores: list[Callable[[], None]] = []
        self.is_on = False
        self._began_ns = 0

    def begin(self, step: int) -> None:
        """Record the step of that number, which begins."""
        self._wait_for_gpu()
        if self._is_on_gpu:
            self._teardown.ask_for()
        self._watch_fork()
        try:
            self._turns.start(new_profile(on_cpu=True, on_gpu=self._is_on_gpu, record_shapes=True))
            self.is_on = True
        finally:
            if not self.is_on:
                self._put_back()
        self._fetches.add(self._before_fetch)
        _describe(self._session.rank(), step)
        self._annotation = profiler.record_function(f"ProfilerStep#{step}")
        self._annotation.__enter__()
        self._began_ns = perf_counter_ns()

    def took_ns(self) -> int:
        """How long the step has taken, with what the GPU still has to do for it."""
        self._wait_for_gpu()
        return self.so_far_ns()

    def so_far_ns(self) -> int:
        """How long the host has been at the step by now."""
        return perf_counter_ns() - self._began_ns

    def end(self) -> Any:
        """Record no more; returns torch's own result, which can be saved, and `None` where nothing
        was being recorded."""
        if not self.is_on:
            return None
        try:
            if self._annotation is not None:
                self._annotation.__exit__(None, None, None)
                self._annotation = None
            self._wait_for_gpu()  # what it has not done yet would not be recorded
        finally:  # also where Ctrl-C ends the wait: a profiler that goes on takes all memory
            self.is_on = False
            result = self._turns.stop()
            self._put_back()
        return result

    def forget(self) -> None:
        """Put everything back in a forked child; kineto records the parent alone."""
        self.is_on = False
        self._put_back()

    def _put_back(self) -> None:
        self._teardown.put_back()
        self._fetches.remove(self._before_fetch)
        while self._restores:
            self._restores.pop()()

    def _wait_for_gpu(self) -> None:
        if self._is_on_gpu and not ended_by_device_error():
            for index in range(torch.cuda.device_count()):
                # Waiting for a device that the script does not use would take memory there.
                if torch._C._cuda_hasPrimaryContext(index):  # type: ignore[attr-defined] # of C
                    torch.cuda.synchronize(index)

    def _watch_fork(self) -> None:
        """A loader's worker that is forked meanwhile records nothing: it inherits the profiler of
        this thread, whose memory would grow in it as long as it lives."""
        fork = os.fork

        def fork_unrecorded() -> int:
            child = fork()
            if child == 0:
                torch._C._autograd._enable_record_function(False)
                self._turns.forget()
            return child

        self._restores.append(self._session.replace(os, "fork", fork_unrecorded))


def _describe(rank: int, step: int) -> None:
    """Write into the trace whose it is."""
    add = torch._C._autograd._add_metadata_json
    add("traceml", json.dumps({"rank": rank, "step": step}))
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        world = distributed.get_world_size()
        add("distributedInfo", json.dumps({"rank": rank, "world_size": world}))


def write_trace(result: Any, path: Path) -> int | None:
    """Write a recording, compressed; returns its size in bytes, and `None` where it is too large.

    Raises OSError where there is no room. The file is whole, or not there.
    """
    plain, packed = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    try:
        result.save(str(plain))
        if plain.stat().st_size > MAX_TRACE_BYTES:
            return None
        with plain.open("rb") as source, gzip.open(packed, "wb", COMPRESSION) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        packed.rename(path)
        return path.stat().st_size
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
