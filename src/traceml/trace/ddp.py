"""DDP's communication: it happens inside backward, where only the engine could see it.

All-reduce makes backward equally long on every rank. What tells the ranks apart is the moment at
which a rank has its own gradients; from there to the end of backward it waits for the others.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.autograd import Variable

from traceml.steps.events import HAVE_LOCAL_GRADIENTS
from traceml.trace.collectives import Communication, in_backward
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.models import WeaklyKnown
from traceml.trace.session import Session

LAST_GRADIENTS = 2
"""Parameters whose gradients come last and are watched: a layer's weight and its bias."""
FIRST_SAMPLES = 10
"""DDP times each of its first iterations, this many, and then every hundredth."""
STATISTICS_AFTER_NS = 5_000_000_000
"""A reading costs 45 µs: the second comes this long after the first, and each next one twice as
long after the one before."""


class DdpModels:
    """The DDP models of this process; a script has one, a GAN two."""

    def __init__(self, session: Session, communication: Communication) -> None:
        self._session = session
        self._communication = communication
        self._known = WeaklyKnown()
        self._kind: Any = None
        self._unsorted = 0
        """How many of them have not yet agreed on the order of their gradients."""

    def watch_all(self) -> None:
        """Watch every DDP model that is made from here on."""
        module: Any = sys.modules.get("torch.nn.parallel.distributed")
        if module is None or not module.dist.is_available():
            return
        self._kind = module.DistributedDataParallel
        replace, timed = self._session.replace, self._communication.timed
        replace(self._kind, "__init__", self._remembering(self._kind.__init__))
        if hasattr(self._kind, "_sync_buffers"):  # else rank 0's delay is everybody's forward
            replace(self._kind, "_sync_buffers", timed(self._kind._sync_buffers))
        if hasattr(module.dist.Reducer, "_rebuild_buckets"):
            rebuild = self._timed_while_unsorted(module.dist.Reducer._rebuild_buckets)
            replace(module.dist.Reducer, "_rebuild_buckets", rebuild)
        sink = getattr(module, "_DDPSink", None)
        if sink is not None:
            replace(sink, "backward", staticmethod(self._noting_end(sink.backward)))

    def find(self, model: nn.Module) -> None:
        """Watch the DDP models in this one: they may have been made before tracing began."""
        if self._kind is not None:
            for part in model.modules():
                if isinstance(part, self._kind):
                    self._add(part)

    def _remembering(self, initialise: Callable[..., None]) -> Callable[..., None]:
        add = self._session.guard(self._add, any_thread=True)

        @functools.wraps(initialise)
        def __init__(model: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
            try:
                initialise(model, *arguments, **options)
                add(model)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return __init__

    def _add(self, model: Any) -> None:
        if self._known.knows(model) or not self._session.tracing:
            return
        if not self._known:
            self._session.looks.append(_Statistics(self._session, self._known).read_when_due)
        self._known.add(model)
        if not model.find_unused_parameters or model.static_graph:
            LastGradients(self._session, model)
            self._unsorted += not getattr(model, "_has_rebuilt_buckets", False)

    def _timed_while_unsorted(self, rebuild: Callable[..., bool]) -> Callable[..., bool]:
        """In an early forward pass the ranks agree on the order, once, and wait for each other."""
        timed = self._communication.timed(rebuild)

        @functools.wraps(rebuild)
        def rebuild_buckets(reducer: Any) -> bool:
            try:
                if not self._unsorted:
                    return rebuild(reducer)
                is_sorted: bool = timed(reducer)
                self._unsorted = max(0, self._unsorted - is_sorted)
                return is_sorted
            except BaseException as error:
                drop_our_frames(error)
                raise

        return left_alone(rebuild_buckets)

    def _noting_end(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """A gradient function of DDP's outputs that also notes the end of the local backward pass.

        For models that use other parameters in every step, so that no single gradient comes last.
        DDP sends the gradients of its outputs through a node of its own, the first to run. A
        callback that the engine is given there runs before DDP waits for other ranks, because DDP
        adds its own callback later.
        """
        session = self._session
        note = session.guard(_noting_gradients(session), any_thread=True)

        def call_at_end(context: Any) -> None:
            model = context.ddp_weakref()
            if in_backward(session) and model.require_backward_grad_sync:
                Variable._execution_engine.queue_callback(note)

        guarded = session.guard(call_at_end, any_thread=True)

        @functools.wraps(backward)
        def noting(context: Any, *gradients: Any) -> Any:
            if is_compiling():
                return backward(context, *gradients)
            try:
                if session.tracing:
                    guarded(context)
                return backward(context, *gradients)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return noting


class LastGradients:
    """Notes when the gradients that come last in a DDP model's backward are there.

    Which those are is learnt in the first backward pass that communicates: DDP asks of such a model
    that every pass uses every parameter, so they are the same ones each time.
    """

    def __init__(self, session: Session, model: Any) -> None:
        self._session = session
        self._model = weakref.ref(model)
        self._came: dict[int, weakref.ref[Any]] = {}
        """The parameters whose gradients have come, in that order."""
        self._note = _noting_gradients(session)
        self._handles: list[Any] = []
        self._hook(self._learn, [each for each in model.parameters() if each.requires_grad])
        session.looks.append(self._keep_last)
        session.restores.append(self._remove)

    def _hook(self, function: Callable[[Any], None], parameters: list[Any]) -> None:
        guarded = self._session.guard(function, any_thread=True)
        for each in parameters:
            self._handles.append(each.register_post_accumulate_grad_hook(guarded))

    def _learn(self, parameter: Any) -> None:
        if self._communicates():
            self._came.pop(id(parameter), None)
            self._came[id(parameter)] = weakref.ref(parameter)
            self._note()  # of several moments the last one counts: this pass is right already

    def _keep_last(self) -> None:
        """After a step: once it is known which gradients come last, watch only those."""
        if not self._came and self._model() is not None:
            return
        self._session.looks.remove(self._keep_last)
        last = [reference() for reference in list(self._came.values())[-LAST_GRADIENTS:]]
        self._came.clear()
        self._remove()
        self._hook(self._has_come, [each for each in last if each is not None])

    def _has_come(self, parameter: Any) -> None:
        if self._communicates():
            self._note()

    def _communicates(self) -> bool:
        model = self._model()
        return model is not None and model.require_backward_grad_sync and in_backward(self._session)

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _noting_gradients(session: Session) -> Callable[[], None]:
    recorder, told = session.recorder, session.told_of_waiting

    def note() -> None:
        recorder.note(HAVE_LOCAL_GRADIENTS)
        for tell in told:
            tell(HAVE_LOCAL_GRADIENTS)

    return note


class _Statistics:
    """What DDP itself measured of its communication, passed on now and then."""

    def __init__(self, session: Session, models: WeaklyKnown) -> None:
        self._session = session
        self._models = models
        self._due_ns = 0
        self._pause_ns = STATISTICS_AFTER_NS
        self._iterations = 0

    def read_when_due(self) -> None:
        """After each step: read the statistics if it is time to."""
        if self._session.recorder.ends <= FIRST_SAMPLES:
            return
        now = time.perf_counter_ns()
        if now < self._due_ns:
            return
        self._due_ns = now + self._pause_ns
        self._pause_ns *= 2
        read = [model._get_ddp_logging_data() for model in self._models.living()]
        iterations = sum(each.get("iteration", 0) for each in read)
        if iterations == self._iterations:
            return
        self._iterations = iterations
        # None is left once the script has let go of its models: what was read before holds.
        if read and all(each.get("avg_backward_comm_time", 0) > 0 for each in read):
            self._session.messages.write(_summed(read))


def _summed(read: list[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of all models as one message; DDP keeps times in nanoseconds."""

    def total(name: str) -> int:
        return sum(int(each.get(name, 0)) for each in read)

    return {
        "kind": "ddp",
        "unix_ns": time.time_ns(),
        "communication_ns": total("avg_backward_comm_time"),
        "overlap_ns": total("avg_backward_compute_comm_overlap_time"),
        "gradient_bytes": total("total_parameter_size_bytes"),
        "buckets": sum(len(_sizes(each)) for each in read),
        "has_hook": any(each.get("comm_hook") for each in read),
    }


def _sizes(statistics: dict[str, Any]) -> list[str]:
    sizes = statistics.get("rebuilt_bucket_sizes") or statistics.get("bucket_sizes", "")
    return [size for size in str(sizes).split(",") if size.strip()]
