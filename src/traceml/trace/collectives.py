"""Times what a rank waits in collectives: exposed communication, wherever in the step it happens.

On the host that is time in the calls of `torch.distributed` and in `Work.wait`. A backend that does
not block the host (NCCL) leaves its trace between two marks on the GPU's timeline instead.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from math import prod
from threading import get_ident
from typing import Any

import torch

from traceml.steps.events import BEGIN, COMMUNICATION, END, RECEIVE
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session

COLLECTIVES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)
"""Calls that wait, or start what `Work.wait` waits for; no torch has all of these names."""

EXCHANGES = ("all_to_all", "all_to_all_single")
"""Those by which each rank sends the others their parts: how much comes to a rank may differ, as
with the tokens of experts."""
_FUNCTIONAL_EXCHANGES = ("all_to_all_single", "all_to_all_single_autograd")

_FUNCTIONAL = "torch.distributed._functional_collectives"
"""What DTensor waits through; a module that torch itself does not import."""


_SHARDED = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",
)
"""Where FSDP2 keeps what it knows of a block's parameters, in newer and in older versions."""


def _has_gathered(group: Any) -> bool:
    """Whether parameters are on their way, which the computing stream will wait for."""
    return getattr(group, "_all_gather_result", None) is not None


def _has_reduced(group: Any) -> bool:
    """The same of gradients; newer versions keep the events of all blocks in one place."""
    events = getattr(getattr(group, "comm_ctx", None), "_last_post_reduce_events", None)
    return bool(events) or getattr(group, "_post_reduce_event", None) is not None


_SHARDED_WAITS = {"wait_for_unshard": _has_gathered, "finalize_backward": _has_reduced}
"""Its methods in which the computing stream waits for those that gather and reduce, and how to ask
whether it will: only then it is worth a mark."""


class Communication:
    """The calls that are timed as communication."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begin = session.guard(self._begin_call, any_thread=True)
        self._end = session.guard(self._end_call, any_thread=True)
        self._watches_sharded = False
        session.forgets.append(self.forget)
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child no call of the parent's will end."""
        self._is_open = False
        """One of the calls is under way: those inside it are part of it."""

    def watch(self) -> None:
        """Time the collectives of this torch, if it has any."""
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return
        home: Any = sys.modules["torch.distributed.distributed_c10d"]
        for name in COLLECTIVES:
            if hasattr(home, name):
                received = _elements_of_output if name in EXCHANGES else None
                collective = self.timed(getattr(home, name), received)
                for owner in (home, distributed):
                    if hasattr(owner, name):
                        self._session.replace(owner, name, collective)
        self._session.restores.append(_keep_traceable)
        self._session.replace(home.Work, "wait", self._timed_wait(home.Work.wait))

    def watch_functional(self) -> None:
        """Time the collectives of tensors that are spread over ranks, once a script uses them."""
        functional: Any = sys.modules.get(_FUNCTIONAL)
        if functional is None or hasattr(functional.wait_tensor, "__wrapped__"):
            return
        self._session.replace(functional, "wait_tensor", self.timed(functional.wait_tensor))
        for name in _FUNCTIONAL_EXCHANGES:
            if hasattr(functional, name):
                exchange = self.timed(getattr(functional, name), _elements_of_result)
                self._session.replace(functional, name, exchange)

    def watch_sharded(self) -> None:
        """Time what FSDP2 on a GPU lets the computing stream wait for its gathers and reductions.

        They run on streams of their own, and cost nothing until that stream needs their result. The
        host waits for none of it. On the CPU it does, in `Work.wait`.
        """
        module = next((sys.modules[name] for name in _SHARDED if name in sys.modules), None)
        kind: Any = getattr(module, "FSDPParamGroup", None)
        if kind is None or self._session.recorder.gpu is None or self._watches_sharded:
            return
        self._watches_sharded = True
        for name, will_wait in _SHARDED_WAITS.items():
            if name in vars(kind):
                wait = self._timed_where(vars(kind)[name], will_wait)
                self._session.replace(kind, name, wait)

    def _timed_where(
        self, wait: Callable[..., Any], will_wait: Callable[[Any], bool]
    ) -> Callable[..., Any]:
        """The same method, its time charged to communication where there is something to wait
        for."""
        timed = self.timed(wait)

        @functools.wraps(wait)
        def wait_if_needed(group: Any, *arguments: Any, **options: Any) -> Any:
            try:
                chosen = timed if will_wait(group) else wait
                return chosen(group, *arguments, **options)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return left_alone(wait_if_needed)

    def timed(
        self,
        function: Callable[..., Any],
        received: Callable[[Any, Any, Any], int] | None = None,
    ) -> Callable[..., Any]:
        """The same function, its time charged to communication.

        `received` says, of what the function was given and returned, how many elements came to
        this rank.
        """

        begin, end = self._begin, self._end
        count = None if received is None else self._counting(received)

        @functools.wraps(function)
        def collective(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return function(*arguments, **options)
            try:
                if not begin():
                    return function(*arguments, **options)
                try:
                    result = function(*arguments, **options)
                finally:
                    end()
                if count is not None:
                    count(arguments, options, result)
                return result
            except BaseException as error:
                self._is_open = False  # its end may have been interrupted
                drop_our_frames(error)
                raise

        return left_alone(collective)

    def _counting(self, received: Callable[[Any, Any, Any], int]) -> Callable[..., Any]:
        recorder = self._session.recorder

        def count(arguments: Any, options: Any, result: Any) -> None:
            recorder.note_on_host(RECEIVE, received(arguments, options, result))

        return self._session.guard(count, any_thread=True)

    def _timed_wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        begin, end = self._begin, self._end

        # The name and the first argument matter: a kind of work that is written in Python knows by
        # them that it is called from its own method, and does not call that again without end.
        @functools.wraps(function)
        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return function(work, *arguments, **options)
            try:
                if not begin():
                    return function(work, *arguments, **options)
                try:
                    return function(work, *arguments, **options)
                finally:
                    end()
            except BaseException as error:
                self._is_open = False  # its end may have been interrupted
                drop_our_frames(error)
                raise

        return left_alone(wait)

    def _begin_call(self) -> bool:
        """A call begins; whether it is one to be timed."""
        if self._is_open or not self._is_trainings_own():
            return False
        self._session.recorder.note(BEGIN, COMMUNICATION)
        self._is_open = True
        for tell in self._session.told_of_waiting:
            tell(BEGIN)
        return True

    def _end_call(self) -> None:
        self._is_open = False
        for tell in self._session.told_of_waiting:
            tell(END)
        self._session.recorder.note(END, COMMUNICATION)

    def _is_trainings_own(self) -> bool:
        """Whether the loop itself waits here: its thread, or its backward pass in another one."""
        session = self._session
        if not session.tracing:
            return False
        if session.thread != get_ident() and not in_backward(session):
            return False
        gpu = session.recorder.gpu
        # On a stream of its own (FSDP gathers ahead that way) a collective holds nobody up.
        return gpu is None or gpu.is_on_its_stream()


def _elements_of_output(arguments: Any, options: Any, result: Any) -> int:
    """How many elements an exchange wrote: into one tensor, or into a list of them."""
    named = options.get("output", options.get("output_tensor_list"))
    output = arguments[0] if arguments else named
    parts = output if isinstance(output, (list, tuple)) else (output,)
    return sum(prod(part.shape) for part in parts)


def _elements_of_result(arguments: Any, options: Any, result: Any) -> int:
    """The same of one that returns its tensor, of which the shape is known on its way."""
    return prod(result.shape)


def _keep_traceable() -> None:
    """Let torch compile our wrapped collectives as it compiles its own, which it knows by
    identity."""
    functional = sys.modules.get(_FUNCTIONAL)
    known: dict[Any, Any] = getattr(functional, "traceable_collective_remaps", {})
    for collective, traceable in list(known.items()):
        known.setdefault(getattr(collective, "__wrapped__", collective), traceable)


def in_backward(session: Session) -> bool:
    """Whether this code runs inside a backward pass of the training loop, in whatever thread."""
    return session.recorder.backwards_open > 0 and torch._C._current_graph_task_id() >= 0
