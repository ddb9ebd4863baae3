"""Steps in which the GPU's own activity is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traceml.trace.deep.kernels import KernelRecording, StepActivity, step_activity
from traceml.trace.deep.layer_file import LayerFile, by_place
from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import OUTSIDE
from traceml.trace.deep.timed_steps import is_on_one_gpu
from traceml.trace.session import Session


class KernelSteps:
    """Records kernels, and on the host which layer works when."""

    def __init__(
        self, session: Session, file: LayerFile, uses_graphs: Callable[[], bool | None]
    ) -> None:
        self._session, self._file, self._uses_graphs = session, file, uses_graphs
        self._layers: Sequence[ModelLayer] = ()
        self._marks: LayerMarks | None = None
        self._recording: KernelRecording | None = None

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Record the step that begins; not without a GPU, nor beside another profiler.

        Nor with CUDA graphs, which do not bear that CUPTI is taken out again.
        """
        if not is_on_one_gpu(self._session, layers) or self._uses_graphs():
            return False
        recording = KernelRecording(self._session)
        if not recording.begin():
            return False
        self._layers, self._recording = layers, recording
        self._marks = LayerMarks(self._session, layers, None)
        self._marks.begin()
        return True

    def end(self, step: int) -> bool:
        """The step has ended; whether it was seen to its end."""
        marks, recording = self._marks, self._recording
        if marks is None or recording is None:
            return False
        marks.end()
        found = recording.end()
        if found and marks.is_complete:
            self._write(step, step_activity(found, marks.marks, recording.offset_ns))
        return not marks.was_evaluated

    def take_out(self) -> bool:
        """Take everything out of torch."""
        if self._marks is not None:
            self._marks.end()
        if self._recording is not None:
            self._recording.end()
        self._marks = self._recording = None
        self._layers = ()
        return True

    def forget(self) -> None:
        """Begin anew in a forked child, which must not touch CUDA."""
        if self._recording is not None:
            self._recording.forget()

    def _write(self, step: int, seen: StepActivity) -> None:
        count = len(self._layers)
        line = {
            "step": step,
            "busy_ns": seen.busy,
            "kernels": seen.kernels,
            "copies_ns": seen.copies,
            "communication_ns": seen.communication,
            "communication_alone_ns": seen.communication_alone,
            "by_kernel": seen.by_name,
            "layer_busy_ns": by_place(seen.layer_busy, count),
            "layer_kernels": by_place(seen.layer_kernels, count),
            "outside_busy_ns": seen.layer_busy.get(OUTSIDE, 0),
        }
        self._file.write(self._layers, line)
