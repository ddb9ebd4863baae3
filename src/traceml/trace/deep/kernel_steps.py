"""Steps in which the GPU's own activity is recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import get_ident

from traceml.trace.deep.kernels import OTHERS, KernelRecording, StepActivity, step_activity
from traceml.trace.deep.layer_file import LayerFile, MergedSteps
from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.timed_steps import is_on_one_gpu
from traceml.trace.profiler_turns import NSYS, ProfilerTurns
from traceml.trace.session import Session

GRAPHS = "CUDA graphs are in use, and they break when a recording ends: no kernel is recorded"
NSIGHT = "Nsight Systems profiles this run, and the GPU serves one profiler: no kernel is recorded"
MAX_LAUNCHES = 4096
"""Kernels by name and layer that are told apart; further ones are counted for their layer."""
RESTATE_BYTES = 256 << 10
"""All of them are written again after so much: who reads pieces of a long file finds them."""


class LaunchTable:
    """Numbers the kernels of a run by their name and the layer that launches them; those that are
    new are written before the step that has them."""

    def __init__(self, file: LayerFile) -> None:
        self._file = file
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child, which has a file of its own."""
        self._places: dict[tuple[str, int], int] = {}
        self._names: tuple[str, ...] = ()
        self._stated = self._stated_at = 0

    def numbers(self, layers: Sequence[ModelLayer], seen: StepActivity) -> dict[str, list[int]]:
        """How often each kernel of the table ran in a step, and how long."""
        names = tuple(layer.name for layer in layers)
        if names != self._names:
            self.forget()
            self._names = names
        calls, took = [0] * len(self._places), [0] * len(self._places)
        for (name, layer), (count, ns) in seen.launches.items():
            place = self._place(name, layer)
            while place >= len(calls):
                calls.append(0)
                took.append(0)
            calls[place] += count
            took[place] += ns
        self._state(layers)
        return {"launch_calls": calls, "launch_ns": took}

    def _place(self, name: str, layer: int) -> int:
        if len(self._places) >= MAX_LAUNCHES and (name, layer) not in self._places:
            name = OTHERS
        return self._places.setdefault((name, layer), len(self._places))

    def _state(self, layers: Sequence[ModelLayer]) -> None:
        """Write the kernels that are new; now and then all of them."""
        if self._file.written_bytes - self._stated_at > RESTATE_BYTES:
            self._stated = 0
        new = list(self._places)[self._stated :]
        if not new:
            return
        names = list(dict.fromkeys(name for name, _ in new))
        numbers = {name: number for number, name in enumerate(names)}
        line = {
            "launches_from": self._stated,
            "kernel_names": names,
            "launches": [(numbers[name], layer) for name, layer in new],
        }
        self._file.write(layers, line)
        self._stated, self._stated_at = len(self._places), self._file.written_bytes


class KernelSteps:
    """Records kernels, and on the host which layer works when."""

    def __init__(
        self,
        session: Session,
        file: LayerFile,
        uses_graphs: Callable[[], bool | None],
        turns: ProfilerTurns,
    ) -> None:
        self._session, self._uses_graphs, self._turns = session, uses_graphs, turns
        self._file = file
        self._launches, self._written = LaunchTable(file), MergedSteps(file, lists_steps=True)
        self._layers: Sequence[ModelLayer] = ()
        self._marks: LayerMarks | None = None
        self._recording: KernelRecording | None = None

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Record the step that begins; not without a GPU, nor beside another profiler.

        Nor with CUDA graphs, which break when CUPTI is taken out again.
        """
        if not is_on_one_gpu(self._session, layers):
            return False
        why = GRAPHS if self._uses_graphs() else NSIGHT if NSYS in os.environ else None
        if why is not None:
            self._file.say(why)
            return False
        recording = KernelRecording(self._turns, self._session.device)
        if not recording.begin():
            return False
        self._layers, self._recording = layers, recording
        self._marks = LayerMarks(self._session, layers, None)
        self._marks.begin()
        return True

    def see_loss(self) -> None:
        """A backward pass begins."""
        if self._marks is not None:
            self._marks.see_backward()

    def lose_backward(self) -> None:
        """Does nothing: the kernels of that backward pass run in the step all the same, though it
        is not known for which layer."""

    def end(self, step: int, steps: int = 1) -> str | None:
        """The step has ended; why it was not seen to its end, `None` where it was."""
        marks, recording = self._marks, self._recording
        if marks is None or recording is None:
            return None
        marks.end()
        found = recording.end()
        if found and marks.is_complete:
            self._write(step, steps, step_activity(found, marks.marks, recording.offset_ns))
        return marks.lost

    def take_out(self) -> bool:
        """Take everything out of torch; whether nothing is left there.

        Torch's profiler is one of a thread: where a thread of backward compiles, the recording goes
        on until the step ends, and is thrown away.
        """
        if self._marks is not None:
            self._marks.end()
        self._marks, self._layers = None, ()
        if self._recording is not None and self._session.thread not in (None, get_ident()):
            return False
        if self._recording is not None:
            self._recording.end()
            self._recording = None
        return True

    def forget(self) -> None:
        """Begin anew in a forked child, which must not touch CUDA."""
        self._launches.forget()
        self._written.forget()
        if self._recording is not None:
            self._recording.forget()
            self._recording = None

    def finish(self) -> None:
        """The process ends: write what is pending."""
        self._written.flush()

    def _write(self, step: int, steps: int, seen: StepActivity) -> None:
        numbers: dict[str, list[int] | int] = {
            "busy_ns": seen.busy,
            "kernels": seen.kernels,
            "copies_ns": seen.copies,
            "copies_alone_ns": seen.copies_alone,
            "communication_ns": seen.communication,
            "communication_alone_ns": seen.communication_alone,
        }
        numbers |= self._launches.numbers(self._layers, seen)
        self._written.add(self._layers, step, numbers, steps)
