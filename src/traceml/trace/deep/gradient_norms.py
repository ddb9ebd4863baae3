"""The norm of each layer's gradient, before anything clips it, read without waiting for the device.

As often as its cost allows, and in every step for a while after a gradient that is not finite, or
a gradient or a loss that grows far. On a GPU the norms of all layers are copied to the host
together, behind what the device still has to do, and read some steps later.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import torch

from traceml.model.layer_names import MODEL, repeated_name
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.deep.growth_watch import GrowthWatch, UsualNorm
from traceml.trace.deep.late_numbers import (
    HALF,
    LateNumbers,
    can_compute,
    computing_apart,
    for_file,
    plain_numbers,
    sum_type,
)
from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_names import LayerName, ModelLayer, layers_of, without_modules
from traceml.trace.deep.time_budget import TimeBudget, UsualCost
from traceml.trace.gpu import current_stream
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.loss import number_on_host
from traceml.trace.models import Models
from traceml.trace.session import Session
from traceml.trace.tensor_memory import gradient_of

NORMS_SHARE = 0.005
"""Of the training time: what measuring norms may add."""
HEAD_START_NS = 3_000_000_000
"""Training time that counts as passed when the first backward pass has ended: of the first steps
more norms are wanted than of later ones."""
EARLY_SHARE = 0.05
"""Of the training time so far: what even those may add."""
DEVICE_BYTES_PER_NS = 500
"""How fast a GPU reads gradients, by a cautious guess: what it costs there is not seen here."""
ALARM_STEPS = 8
"""Steps in a row that are measured, whatever it costs, after a gradient that is no longer usual."""
MAX_ALARMS = 4
GROWING_STEPS = 8
"""How many steps in a row are measured after the loss or the norm has grown."""
MAX_NUMBERS, MIN_ROWS = 60_000, 24
"""Norms of a process that are written beside those around an alarm, however long the run: so many
numbers, but no fewer steps than this. The summary reads them of every rank."""
MAX_RECENT, MAX_FIRST = 64, 100
LONG_RUN = 1e6
"""Steps of a run for which these suffice."""
REFRESH_EVERY = 200
"""Measured steps after which the layers are looked at anew: a script may add some."""
REMEMBERED_STEPS = 8
"""Steps whose number of backward passes is remembered: some loops add up the gradients of several
passes, and only the last of a step has the whole gradient."""

MAX_NAMED = 4
"""Layers that the note on sparse gradients names."""
SPARSE = (
    "Gradient norms leave out layers whose gradients are sparse, because adding up a sparse "
    "gradient takes time: {}"
)

SUMS_IN_FLOAT32 = torch.torch_version.TorchVersion(torch.__version__) >= "2.5"
"""Whether `_foreach_norm` takes a type to sum the squares in."""


class BackwardPasses(Protocol):
    """Who wants to know when a backward pass begins and ends."""

    def begin_backward(self) -> None:
        """The script asks for gradients."""

    def end_backward(self) -> None:
        """They are all there."""


class StepNorms(NamedTuple):
    """The norms of one step."""

    step: int
    layers: Sequence[LayerName]
    norms: list[float | None]
    """By the layer's place; `None` for a layer that has no gradient of its own."""
    is_scaled: bool
    """Whether a scaler had scaled the loss: it skips a step whose gradients are not finite."""


class _Owned(NamedTuple):
    """The parameters of the model, none kept alive, and which layer each belongs to."""

    layers: list[LayerName]
    parameters: list[weakref.ref[torch.Tensor]]
    places: list[int]


class _Measured(NamedTuple):
    """What a row of norms is about."""

    layers: Sequence[LayerName]
    places: list[int]
    """The layer of each norm."""
    is_scaled: bool
    """Whether the last number is the factor of a scaler."""
    stream: Any
    """The stream on which they are computed; `None` on the host."""


class _Cadence(NamedTuple):
    """Which measured steps are written."""

    recent: int
    """So many are kept in memory, and written at an alarm and at the end."""
    first: int
    """All up to this one are; after it ever fewer: …"""
    growth: float
    """… the next one when the number of steps has grown by this."""


def _cadence(layers: int) -> _Cadence:
    rows = max(MIN_ROWS, MAX_NUMBERS // max(layers, 1))
    first = min(MAX_FIRST, rows // 3)
    growth = math.exp(math.log(LONG_RUN / first) / (rows // 3))
    return _Cadence(min(MAX_RECENT, rows // 3), first, growth)


class GradientNorms:
    """Measures the gradients of layers when backward has ended."""

    def __init__(
        self,
        session: Session,
        models: Models,
        file: LayerFile,
        look_at_loss: Callable[[Any], bool],
        alarm: Callable[[], None],
        may_look: Callable[[], bool],
        passes: BackwardPasses,
    ) -> None:
        """`look_at_loss` says whether the loss that backward begins with is not finite; `alarm` is
        called when a gradient is no longer finite, or has grown far; `may_look` says whether the
        device may be looked at; `passes` wants to know when a backward pass begins and ends,
        without what is measured around it."""
        self._session, self._models, self._file, self._alarm = session, models, file, alarm
        self._look_at_loss, self._may_look = look_at_loss, may_look
        self._passes = passes
        self._begin_guarded = session.guard(self._begin)
        session.on_loss_arrived.append(session.guard(self._see_loss))
        self._measure_guarded = session.guard(self._measure)
        self._leave_guarded = session.guard(self._leave_pass)
        self._watch_scaler()
        self._watch_backward()
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._budget: TimeBudget | None = None
        """Begins with the first backward pass."""
        self._measuring, self._sending, self._reading = UsualCost(), UsualCost(), UsualCost()
        self._refresh_ns = 0
        """How much of the present measurement went into looking which layers there are."""
        self._owned: _Owned | None = None
        self._models_seen: tuple[int, ...] = ()
        self._numbers = LateNumbers()
        self._latest: tuple[_Measured, torch.Tensor] | None = None
        """The norms after the last backward pass so far of the step that runs; `None` where it was
        not measured."""
        self._is_pass_open = self._is_step_chosen = False
        self._step_passes = 0
        """Backward passes of the step that runs."""
        self._usual_passes: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        """The same of the steps before it."""
        self._recent: deque[StepNorms] = deque()
        self._scaler: Callable[[], Any] = _none
        self._measured = self._alarm_steps = self._alarms = self._growing_steps = 0
        self._loss_growth, self._norm_growth = GrowthWatch(), GrowthWatch()
        self._next_written = 0.0
        self._usual = UsualNorm()
        self._has_told_of_sparse = False

    # What the script does

    def _watch_backward(self) -> None:
        function = torch.autograd.backward

        @functools.wraps(function)
        def backward(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return function(*arguments, **options)
            try:
                self._begin_guarded(arguments[0] if arguments else options.get("tensors"))
                result = function(*arguments, **options)
                self._measure_guarded()
                return result
            except BaseException as error:
                self._leave_guarded()
                drop_our_frames(error)
                raise

        self._session.replace(torch.autograd, "backward", left_alone(backward))

    def _watch_scaler(self) -> None:
        """Know the scaler of the loss: the gradients are larger by its factor."""
        scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        original, keep = scaler.scale, self._session.guard(self._keep_scaler)

        @functools.wraps(original)
        def scale(this: Any, outputs: Any) -> Any:
            try:
                scaled = original(this, outputs)
                keep(this)
                return scaled
            except BaseException as error:
                drop_our_frames(error)
                raise

        self._session.replace(scaler, "scale", scale)

    def _keep_scaler(self, scaler: Any) -> None:
        if not is_compiling():
            self._scaler = weakref.ref(scaler)

    # After each backward pass

    def _begin(self, loss: Any) -> None:
        if self._session.recorder.backwards_open:
            return
        if self._look_at_loss(loss):
            self._raise_alarm()
        elif (value := number_on_host(loss)) is not None:
            self._see_loss(value)
        self._is_pass_open = True
        self._passes.begin_backward()

    def _end_pass(self) -> None:
        """What was measured before this pass is only a part of the step's gradient."""
        self._latest = None
        if self._is_pass_open:
            self._is_pass_open = False
            self._passes.end_backward()

    def _leave_pass(self) -> None:
        """An exception leaves a backward pass; the script may catch it and go on."""
        if not self._session.recorder.backwards_open:
            self._end_pass()

    def _raise_alarm(self) -> None:
        """Measure the next steps one by one."""
        if not self._alarm_steps and self._alarms < MAX_ALARMS:
            self._alarms += 1
            self._alarm_steps = ALARM_STEPS
            self._alarm()

    def _see_loss(self, loss: float) -> None:
        """Has the next steps measured one by one, if this loss has grown."""
        if self._loss_growth.has_grown(loss):
            self._growing_steps = GROWING_STEPS

    def _measure(self) -> None:
        if self._session.recorder.backwards_open:
            return
        self._end_pass()
        self._step_passes += 1
        self._measure_pass()
        if self._session.marks_by_backward:
            self.end_step()  # which this pass was: those who look were told before it was measured

    def _measure_pass(self) -> None:
        if not can_compute() or not self._models.is_known_which_trains():
            return
        began = perf_counter_ns()
        if not self._is_to_measure(began):
            return
        if self._numbers.has_room and not self._file.is_full and self._may_look():
            self._refresh_ns = 0
            device_bytes = self._measure_now()
            took = perf_counter_ns() - began - self._refresh_ns
            self._spend(self._measuring.charge(took) + self._refresh_ns)
            self._spend(device_bytes / DEVICE_BYTES_PER_NS)

    def _may_spend(self, now: int) -> bool:
        """Whether the budget, which begins with the first question, allows a measurement now."""
        if self._budget is None:
            self._budget = TimeBudget(NORMS_SHARE, now, HEAD_START_NS, EARLY_SHARE)
        return self._budget.allows(now)

    def _spend(self, cost_ns: float) -> None:
        if self._budget is not None:
            self._budget.spend(cost_ns)

    def _is_to_measure(self, now: int) -> bool:
        """Whether to measure after this pass: not where the step surely has more of them.

        How many it has is known when it ends. So where one pass is measured, the later ones are as
        well, up to the number that is usual: in a loop with steps of two kinds, those with more
        passes would else never be measured after their last.
        """
        passes, usual = self._step_passes, self._usual_passes or (1,)
        is_close = self._alarm_steps or self._growing_steps
        if not is_close and passes < min(usual):
            return False
        if (is_close or self._is_step_chosen) and passes <= max(usual):
            return True
        # In the first step no model is known yet, and looking for none takes time, too.
        self._is_step_chosen = bool(self._models.living()) and self._may_spend(now)
        return self._is_step_chosen

    def _measure_now(self) -> int:
        """Have the norms computed; how many bytes a GPU reads for that."""
        owned = self._layers()
        places, gradients, sparse = [], [], []
        with computing_apart():
            for place, reference in zip(owned.places, owned.parameters, strict=True):
                parameter = reference()
                gradient = None if parameter is None else gradient_of(parameter)
                numbers = plain_numbers(gradient)
                if numbers is not None:
                    places.append(place)
                    gradients.append(numbers)
                elif gradient is not None and gradient.layout == torch.sparse_coo:
                    sparse.append(place)
            self._tell_of_sparse([owned.layers[place] for place in sparse])
            devices = {gradient.device for gradient in gradients}
            if len(devices) != 1:
                return 0  # none at all, or a model over several devices
            norms = torch.stack(_norms(gradients)).float()
            if (
                norms.is_cpu and torch.isinf(norms).any()
            ):  # on a GPU that would have to be waited for
                norms = _norms_in_double(gradients)
            scale = self._scale()
            is_scaled = scale is not None and scale.device == norms.device
            if scale is not None and is_scaled:
                norms = torch.cat((norms, scale.reshape(1).float()))
            about = _Measured(owned.layers, places, is_scaled, current_stream(norms))
            self._latest = about, norms
            if norms.is_cpu:
                return 0
            return sum(gradient.numel() * gradient.element_size() for gradient in gradients)

    def _tell_of_sparse(self, layers: Sequence[LayerName]) -> None:
        """Write once which layers have no norm because their gradients are sparse."""
        if layers and not self._has_told_of_sparse:
            self._has_told_of_sparse = True
            names = list(dict.fromkeys(repeated_name(each.name) or MODEL for each in layers))
            more = len(names) - MAX_NAMED
            named = [*names[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
            self._file.say(SPARSE.format(", ".join(named)))

    def _layers(self) -> _Owned:
        seen = tuple(map(id, (*self._models.living(), *self._models.optimizers())))
        if self._owned is None or seen != self._models_seen or self._measured % REFRESH_EVERY == 0:
            began = perf_counter_ns()
            self._models_seen, self._owned = seen, _owned_by(layers_of(self._models.training()))
            self._refresh_ns = perf_counter_ns() - began
        self._measured += 1
        return self._owned

    def _scale(self) -> torch.Tensor | None:
        scaler, self._scaler = self._scaler(), _none
        scale = getattr(scaler, "_scale", None)
        return scale if isinstance(scale, torch.Tensor) else None

    def end_step(self) -> None:
        """A step has ended: send for its norms, and read those that have come by now; that, too,
        is a part of what measuring costs."""
        if self._step_passes:
            self._usual_passes.append(self._step_passes)
            self._alarm_steps = max(0, self._alarm_steps - 1)
            if self._latest is not None:  # steps that could not be measured do not count
                self._growing_steps = max(0, self._growing_steps - 1)
        self._step_passes, self._is_step_chosen = 0, False
        if self._latest is None and not self._numbers.is_expecting:
            return
        began = perf_counter_ns()
        if self._latest is not None:
            self._send_for_latest(self._session.count_stepped())
            began, sent_from = perf_counter_ns(), began
            self._spend(self._sending.charge(began - sent_from))
        has_read = self._read_arrived()
        took = perf_counter_ns() - began
        self._spend(self._reading.charge(took) if has_read else took)

    def _send_for_latest(self, step: int) -> None:
        latest, self._latest = self._latest, None
        if latest is not None and can_compute():
            about, norms = latest
            with computing_apart():
                self._numbers.send_for((step, about), norms, about.stream)

    def drop_latest(self) -> None:
        """Send for no norms of the step that runs."""
        self._latest = None

    def _read_arrived(self) -> bool:
        """Take the norms that have come by now; returns whether there were any."""
        has_read = False
        for (step, about), values in self._numbers.arrived():
            self._take(step, about, values)
            has_read = True
        return has_read

    def finish(self) -> None:
        """The process ends: write the last steps, and one that did not come to its end."""
        self._send_for_latest(self._session.count_stepped() + 1)
        self._numbers.wait()
        self._read_arrived()
        self._write_recent()

    # What the norms say

    def _take(self, step: int, about: _Measured, values: list[float]) -> None:
        layers = about.layers
        scale = values.pop() if about.is_scaled else 1.0
        norms = _by_layer(about.places, values, scale, len(layers))
        found = StepNorms(step, layers, norms, about.is_scaled)
        self._recent.append(found)
        if len(self._recent) > _cadence(len(layers)).recent:
            self._thin_out(self._recent.popleft())
        norm = math.hypot(*filter(None, found.norms))
        if self._norm_growth.has_grown(norm):
            self._growing_steps = GROWING_STEPS
        if self._usual.is_exploded(norm):
            self._raise_alarm()
        if self._alarm_steps:
            self._write_recent()

    def _thin_out(self, oldest: StepNorms) -> None:
        """Write a step that is old now, where enough steps lie behind the last one written."""
        if oldest.step >= self._next_written:
            self._write(oldest)

    def _write_recent(self) -> None:
        while self._recent:
            self._write(self._recent.popleft())

    def _write(self, found: StepNorms) -> None:
        cadence = _cadence(len(found.layers))
        is_early = found.step <= cadence.first
        self._next_written = found.step + 1 if is_early else found.step * cadence.growth
        norms = [for_file(norm) for norm in found.norms]
        line: dict[str, Any] = {"step": found.step, "norms": norms}
        if found.is_scaled:
            line["is_scaled"] = True
        self._file.write(found.layers, line)


def _owned_by(layers: list[ModelLayer]) -> _Owned:
    """A parameter that several layers share counts for the first."""
    owned = _Owned(without_modules(layers), [], [])
    seen: set[int] = set()
    for place, layer in enumerate(layers):
        for parameter in layer.module._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                owned.parameters.append(weakref.ref(parameter))
                owned.places.append(place)
    return owned


def _norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    types = {gradient.dtype for gradient in gradients}
    if len(types) == 1 and not types & set(HALF):
        return list(torch._foreach_norm(gradients, 2))
    if types <= set(HALF) and SUMS_IN_FLOAT32:
        return list(torch._foreach_norm(gradients, 2, dtype=torch.float32))
    return [
        torch.linalg.vector_norm(each, 2, dtype=sum_type(each.dtype)).float() for each in gradients
    ]


def _norms_in_double(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The norms of gradients that are finite, although their squares are more than float32 holds:
    as those of an explosion are before it is not finite."""
    double = torch.float64
    return torch.stack(
        [torch.linalg.vector_norm(each, 2, dtype=double) for each in gradients]
    ).float()


def _by_layer(
    places: Sequence[int], values: Sequence[float], scale: float, count: int
) -> list[float | None]:
    """The norm of all gradients of each layer, without the factor of a scaler."""
    squares: dict[int, float] = {}
    for place, value in zip(places, values, strict=True):
        squares[place] = squares.get(place, 0.0) + value * value
    return [
        None if (square := squares.get(place)) is None else math.sqrt(square) / (scale or 1.0)
        for place in range(count)
    ]


def _none() -> None:
    """There is no scaler."""
