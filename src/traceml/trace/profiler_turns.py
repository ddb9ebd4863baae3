"""Who may use torch's profiler: the script's own first, then ours, one at a time.

Kineto serves one at a time. A profiler of the script's sees whatever runs on the device, so that
nothing of ours may run there meanwhile. One with a schedule is prepared some steps before it
records; torch itself tells only that one records.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from inspect import signature
from threading import get_ident
from typing import Any

import torch
from torch.autograd import profiler

from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session

NSYS = "NSYS_PROFILING_SESSION_ID"
"""Set by Nsight Systems in what it profiles: CUPTI, which kineto needs, is taken then."""
TEARDOWN = "TEARDOWN_CUPTI"
"""Set to 1, kineto takes CUPTI out of the process when it stops. Left in, every launch of the rest
of the run is slower: measured on an H200, steps of 28 ms took 38 ms from the first recording on."""
LOG_LEVEL, NO_LOG = "KINETO_LOG_LEVEL", "6"
"""Kineto reads this once, and since torch 2.13 writes two lines to stderr for every recording."""


class ProfilerTurns:
    """Knows whether a profiler of torch's runs, and has ours end before one of the script's begins.

    Made once in a process, by whoever of ours needs it first.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._prepared = False
        self._is_ours = False
        """Whether one of ours is being prepared."""
        self._is_on = False
        """Whether one of ours records."""
        self.enders: list[Callable[[], None]] = []
        """What ends a look of ours at once; called before a profiler of the script's begins."""
        self._end_all = session.guard(self.end_ours, any_thread=True)
        session.forgets.append(self.forget)
        self._watch()

    @property
    def is_running(self) -> bool:
        """Whether a profiler records or is about to; then the device is left alone."""
        return self._prepared or bool(torch._C._autograd._profiler_enabled())

    @property
    def is_free(self) -> bool:
        """Whether one of ours may begin."""
        return not self.is_running and NSYS not in os.environ

    def start(self, ours: Any) -> None:
        """Start a profiler of ours, which ends by `stop`."""
        self._is_ours = self._is_on = True
        is_quiet = LOG_LEVEL not in os.environ
        if is_quiet:
            os.environ[LOG_LEVEL] = NO_LOG
        try:
            ours._prepare_trace()
            ours._start_trace()
        except BaseException:
            self._tell_torch_of_end()
            raise
        finally:
            self._is_ours = False
            if is_quiet:
                os.environ.pop(LOG_LEVEL, None)

    def stop(self) -> Any:
        """Stop the profiler of ours that records; returns torch's own result."""
        try:
            return torch._C._autograd._disable_profiler()
        finally:
            self._tell_torch_of_end()

    def _tell_torch_of_end(self) -> None:
        """Torch believes in a profiler until it is told of its end, which else its `__exit__` does:
        every Triton kernel of compiled code would be launched the slow way for ever."""
        if self._is_on:
            self._is_on = False
            getattr(profiler, "_run_on_profiler_stop", _nothing)()

    def end_ours(self) -> None:
        """End whatever of ours looks at this step, unless another thread trains: torch's profiler
        is one of a thread, and only that thread can end it."""
        if self._session.thread in (None, get_ident()):
            for end in self.enders:
                end()

    def forget(self) -> None:
        """Begin anew in a forked child: what records there is the parent's."""
        self._prepared = self._is_ours = False
        self._tell_torch_of_end()

    def _watch(self) -> None:
        kind: Any = profiler.profile
        prepare, leave = kind._prepare_trace, kind.__exit__

        @functools.wraps(prepare)
        def prepare_trace(this: Any) -> Any:
            try:
                if not self._is_ours:
                    self._end_all()
                    self._prepared = True
                return prepare(this)
            except BaseException as error:
                self._prepared = False
                drop_our_frames(error)
                raise

        @functools.wraps(leave)
        def leave_profile(this: Any, *error: Any) -> Any:
            self._prepared = False
            try:
                return leave(this, *error)
            except BaseException as failure:
                drop_our_frames(failure)
                raise

        self._session.replace(kind, "_prepare_trace", prepare_trace)
        self._session.replace(kind, "__exit__", leave_profile)


def _nothing() -> None:
    """This version of torch does not remember that a profiler is on."""


def new_profile(on_cpu: bool, on_gpu: bool, record_shapes: bool = False) -> Any:
    """A profiler of torch's that has not begun."""
    kind: Any = profiler.profile
    options: dict[str, Any] = {"use_cpu": on_cpu, "use_kineto": True}
    if record_shapes:
        options["record_shapes"] = True
    if on_gpu and "use_device" in signature(kind.__init__).parameters:
        options["use_device"] = "cuda"
    elif on_gpu:
        options["use_cuda"] = True  # before torch 2.3
    return kind(**options)


class CuptiTeardown:
    """Has kineto take CUPTI out of the process after a recording; a script's own setting stays."""

    def __init__(self) -> None:
        self._is_set = False

    def ask_for(self) -> None:
        """Ask for it, before a recording begins."""
        if TEARDOWN not in os.environ:
            self._is_set = True
            os.environ[TEARDOWN] = "1"

    def put_back(self) -> None:
        """Leave the environment as it was, after the recording has ended."""
        if self._is_set:
            self._is_set = False
            os.environ.pop(TEARDOWN, None)
