"""CUDA graphs: what of a training step each one holds, and the steps that their launches make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traceml.steps import events
from traceml.steps.events import BACKWARDS, GRAPH, OPTIMIZER

if TYPE_CHECKING:
    from traceml.steps.step_machine import StepMachine

MAX_GRAPHS = 1024


@dataclass(slots=True)
class GraphContents:
    """What of a training step a CUDA graph holds, seen while it was captured."""

    backwards: int = 0
    optimizers: set[int] = field(default_factory=set)
    optimizer_steps: int = 0

    @property
    def phase(self) -> int | None:
        """What a replay's time is charged to; `None` where nothing that we know is in it."""
        if self.backwards:
            return GRAPH  # with the forward pass before it: one launch cannot be told apart
        return OPTIMIZER if self.optimizers else None


class GraphReplays:
    """Handles the events of the CUDA graphs of one training process."""

    def __init__(self, machine: StepMachine) -> None:
        self._machine = machine
        self.reset()

    def reset(self) -> None:
        """Know of no graph, and of no launch that is under way."""
        self.graphs: dict[int, GraphContents] = {}
        self.is_replaying = False

    def hold_in_graph(self, contents: int, now: int, graph: int, flags: int) -> None:
        """What a CUDA graph holds; its optimizers are told one by one."""
        self.graphs[graph] = GraphContents(contents >> 32, set(), contents & 0xFFFFFFFF)
        if len(self.graphs) > MAX_GRAPHS:
            del self.graphs[next(iter(self.graphs))]

    def hold_optimizer(self, optimizer: int, now: int, graph: int, flags: int) -> None:
        """A CUDA graph holds a step of this optimizer."""
        if graph in self.graphs:
            self.graphs[graph].optimizers.add(optimizer)

    def begin_replay(self, graph: int, now: int, mark: int, flags: int) -> None:
        """A CUDA graph that holds a part of the step, or all of it, is launched."""
        machine = self._machine
        self.is_replaying = not machine.frames
        if not self.is_replaying:
            return  # a part of the phase that it is launched in
        held = self._held_in(graph, flags)
        if not machine.explicit.is_used and self._ends_step_before(held):
            machine.close_at_optimizer_end()
        if held.backwards:
            machine.have_training_forward(now, mark)
            machine.step.had_forward = machine.step.had_backward = True
            machine.step.totals[BACKWARDS] += held.backwards
        if held.phase is not None:
            machine.begin(held.phase, now, mark)

    def end_replay(self, ended: int, now: int, mark: int, flags: int) -> None:
        """The launch returned; on the GPU's timeline the work ends at the mark."""
        if not self.is_replaying:
            return
        self.is_replaying = False
        machine = self._machine
        count, graph = events.split_optimizer_ended(ended)
        held = self._held_in(graph, flags)
        if not machine.explicit.is_used and (held.optimizers or machine.by_hand):
            machine.count_end(count)
        if held.phase is not None:
            machine.end(held.phase, now, mark)
        if held.optimizers:
            machine.step.stepped |= held.optimizers
            machine.have_stepped(held.optimizer_steps, now, mark)
        elif machine.by_hand and held.backwards:
            machine.have_stepped_by_hand(now, mark)

    def abort_replay(self, graph: int, now: int, mark: int, flags: int) -> None:
        """An exception leaves the launch."""
        phase = self._held_in(graph, flags).phase
        if self.is_replaying and phase is not None:
            self._machine.abort(phase, now, mark)
        self.is_replaying, self._machine.step.aborted = False, True

    def _held_in(self, graph: int, flags: int) -> GraphContents:
        """What a graph holds; where that was lost, as much as every launch of it says."""
        held = self.graphs.get(graph)
        if held is None:
            holds_optimizer = bool(flags & events.HOLDS_OPTIMIZER)
            held = GraphContents(
                int(bool(flags & events.HOLDS_BACKWARD)),
                {-graph - 1} if holds_optimizer else set(),
                int(holds_optimizer),
            )
        return held

    def _ends_step_before(self, held: GraphContents) -> bool:
        """Whether what a graph holds has happened in this step already, so that it is another."""
        step = self._machine.step
        if self._machine.by_hand:
            return bool(held.backwards and step.stepped and not step.fetched_in_step)
        return bool(held.optimizers & step.stepped)

    def as_plain(self) -> dict[str, Any]:
        """What JSON can hold."""
        graphs = [
            (number, held.backwards, sorted(held.optimizers), held.optimizer_steps)
            for number, held in self.graphs.items()
        ]
        return {"graphs": graphs, "is_replaying": self.is_replaying}

    def restore(self, plain: dict[str, Any]) -> None:
        """Know again what `as_plain` was made of."""
        self.is_replaying = plain["is_replaying"]
        self.graphs = {
            number: GraphContents(backwards, set(optimizers), steps)
            for number, backwards, optimizers, steps in plain["graphs"]
        }
