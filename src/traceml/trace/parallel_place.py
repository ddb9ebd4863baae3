"""Reads where this rank stands in the job's device mesh and pipeline, after its first steps.

Meshes are noted as they are made. Everything else is read from what the process already holds: the
stages of a pipeline from the callers' variables, the ranks of Megatron and DeepSpeed from their
modules, and where none of these is in use, the process groups that torch itself keeps. Nothing is
imported, and after the last reading nothing of this is called any more.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from traceml.model.parallel_place import (
    EXPERT,
    MAX_DIMENSIONS,
    SPLITS_MODEL,
    MeshDimension,
    ParallelPlace,
)
from traceml.trace.interruptions import drop_our_frames, is_interruption
from traceml.trace.models import Models, held_by_callers
from traceml.trace.script_objects import own_attributes
from traceml.trace.session import Session

READ_AFTER_STEPS = (1, 10)
"""Complete steps after which the place is read; the second time for what a script makes late."""
MAX_MESHES = 32
MAX_NAME = 32
"""Letters of a dimension's name."""

_MEGATRON = "megatron.core.parallel_state"
_MEGATRON_DIMENSIONS = {
    "pp": "pipeline_model_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "ep": "expert_model_parallel",
    "tp": "tensor_model_parallel",
}
"""The functions of Megatron's module are called `get_…_rank` and `get_…_world_size`."""
_DEEPSPEED_GRID = {
    "pp": ("stage_id", "pipe_parallel_size"),
    "dp": ("data_parallel_id", "data_parallel_size"),
}
"""Attributes of the grid that a DeepSpeed pipeline holds: this rank's index, and how many."""
_PROCESS_GROUPS = "torch.distributed.distributed_c10d"
_STAGES = "torch.distributed.pipelining.stage"
_DEFAULT_GROUPS = ("default_pg", "mesh_default", "undefined", "")


class PlaceReader:
    """Sends this rank's place once it is known, and again where a later reading finds more."""

    def __init__(self, session: Session, models: Models) -> None:
        self._session = session
        self._models = models
        self._read_guarded = session.guard(self._read_when_due)
        session.forgets.append(self.forget)
        self.forget()
        self._watch_meshes()

    def forget(self) -> None:
        """Begin anew: a forked child that trains has a place of its own."""
        self._meshes: list[tuple[MeshDimension, ...]] = []
        self._due = list(READ_AFTER_STEPS)
        self._sent = ParallelPlace()
        if self._read_guarded not in self._session.looks:
            self._session.looks.append(self._read_guarded)

    def _watch_meshes(self) -> None:
        module: Any = sys.modules.get("torch.distributed.device_mesh")
        kind = getattr(module, "DeviceMesh", None)
        if kind is None or "__init__" not in vars(kind):
            return
        self._session.replace(kind, "__init__", self._noting(kind.__init__))

    def _noting(self, initialise: Callable[..., None]) -> Callable[..., None]:
        note = self._session.guard(self._note_mesh, any_thread=True)

        @functools.wraps(initialise)
        def __init__(mesh: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
            try:
                initialise(mesh, *arguments, **options)
                note(mesh)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return __init__

    def _note_mesh(self, mesh: Any) -> None:
        """A mesh was made; slicing one makes another, so that many are alike."""
        coordinate = mesh.get_coordinate()
        if coordinate is None or len(self._meshes) >= MAX_MESHES:
            return  # this rank is not in it
        names = mesh.mesh_dim_names or [f"dim {place}" for place in range(len(coordinate))]
        noted = tuple(map(_dimension, names, coordinate, tuple(mesh.shape)))
        if noted not in self._meshes:
            self._meshes.append(noted)

    def _read_when_due(self) -> None:
        """After each step, as long as a reading is due."""
        steps = self._session.recorder.ends
        if self._due and steps < self._due[0]:
            return
        self._due = [due for due in self._due if due > steps]
        if not self._due:
            self._session.looks.remove(self._read_guarded)
        self._send(self.place())

    def _send(self, place: ParallelPlace) -> None:
        if place == self._sent:
            return
        self._sent = place
        self._session.messages.write(
            {
                "kind": "place",
                "pid": os.getpid(),
                "dimensions": [list(each) for each in place.dimensions],
                "stages": list(place.stages),
                "model": list(place.model),
            }
        )

    def place(self) -> ParallelPlace:
        """Where this rank stands, as far as it is known by now."""
        known = [*self._in_meshes(), *_in_megatron(), *self._in_deepspeed()]
        by_name: dict[str, MeshDimension] = {}
        for each in known or _in_groups():
            if each.size > 1:
                by_name.setdefault(each.name, each)
        dimensions = tuple(by_name.values())[:MAX_DIMENSIONS]
        if len(dimensions) == 1 and dimensions[0].name.lower() not in SPLITS_MODEL:
            dimensions = ()  # it says no more than the rank's number does
        found = (own_attributes(stage).get("stage_index") for stage in _stages_of_callers())
        stages = sorted({each for each in found if type(each) is int})
        return ParallelPlace(dimensions, tuple(stages), self._model())

    def _model(self) -> tuple[int, ...]:
        """The numbers of modules and of parameters of the trained models; empty where the rank
        trains alone."""
        if not _process_groups():
            return ()
        models = self._models.training()
        modules = sum(1 for model in models for _ in model.modules())
        return (modules, sum(1 for model in models for _ in model.parameters())) if models else ()

    def _in_meshes(self) -> list[MeshDimension]:
        """The dimensions of the mesh that has the most, and the experts' of any other.

        Slices of a mesh and flattened ones say nothing that the whole mesh does not.
        """
        if not self._meshes:
            return []
        whole = max(self._meshes, key=len)
        known = {each.name for each in whole}
        experts = {
            each.name: each
            for mesh in self._meshes
            for each in mesh
            if each.name.lower() in EXPERT and each.name not in known
        }
        return [*whole, *experts.values()]

    def _in_deepspeed(self) -> list[MeshDimension]:
        """What the grid of a DeepSpeed pipeline says."""
        if "deepspeed" not in sys.modules:
            return []
        models = [own_attributes(model) for model in self._models.living()]
        for grid in [known.get(name) for known in models for name in ("grid", "_grid")]:
            known = own_attributes(grid)
            found = [
                _dimension(name, known[index], known[size])
                for name, (index, size) in _DEEPSPEED_GRID.items()
                if type(known.get(index)) is int and type(known.get(size)) is int
            ]
            if found:
                return found
        return []


def _dimension(name: Any, index: Any, size: Any) -> MeshDimension:
    return MeshDimension(str(name)[:MAX_NAME], int(index), int(size))


def _in_megatron() -> list[MeshDimension]:
    """What Megatron's own functions answer, where it is in use and set up."""
    module: Any = sys.modules.get(_MEGATRON)
    is_ready = getattr(module, "model_parallel_is_initialized", None)
    if is_ready is None or not is_ready():
        return []
    found = []
    for name, words in _MEGATRON_DIMENSIONS.items():
        index = _asked(module, f"get_{words}_rank")
        size = _asked(module, f"get_{words}_world_size")
        if index is not None and size is not None:
            found.append(_dimension(name, index, size))
    return found


def _asked(module: Any, name: str) -> int | None:
    """What a function without arguments answers; `None` where a version has none, or no group."""
    function = getattr(module, name, None)
    if function is None:
        return None
    try:
        answer = function()
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        if is_interruption(error):
            raise
        return None
    return answer if type(answer) is int else None


def _in_groups() -> list[MeshDimension]:
    """The described process groups of this rank, smaller than the whole job, by their own names.

    A group without a description tells nothing: frameworks make many for their own ends.
    """
    groups = _process_groups()
    if not groups:
        return []
    module: Any = sys.modules[_PROCESS_GROUPS]
    rank, everybody = module.get_rank(), module.get_world_size()
    found: dict[str, MeshDimension] = {}
    for group, members in list(groups.items()):
        text = str(getattr(group, "group_desc", ""))
        if text in _DEFAULT_GROUPS or rank not in members or not 1 < len(members) < everybody:
            continue
        name = text.removeprefix("mesh_")
        found.setdefault(name, _dimension(name, members[rank], len(members)))
    return list(found.values())


def _process_groups() -> dict[Any, Any]:
    """The process groups that torch keeps, with their ranks; none where a rank trains alone."""
    module: Any = sys.modules.get(_PROCESS_GROUPS)
    world = getattr(module, "_world", None)
    groups: dict[Any, Any] = getattr(world, "pg_group_ranks", None) or {}
    return groups if groups and module.is_initialized() else {}


def _stages_of_callers() -> Iterator[Any]:
    """The pipeline stages that the callers hold, by themselves or in a schedule."""
    module: Any = sys.modules.get(_STAGES)
    kind = getattr(module, "_PipelineStageBase", None)
    if kind is None:
        return
    for value in held_by_callers():
        if _is_a(value, kind):
            yield value
            continue
        known = own_attributes(value)
        several = known.get("_stages")
        for stage in several if type(several) is list else (known.get("_stage"),):
            if _is_a(stage, kind):
                yield stage


_bases_of: Any = type.__dict__["__mro__"].__get__


def _is_a(value: Any, kind: type) -> bool:
    """Whether an object is of a kind. An abstract one's own way to ask keeps the asked classes in a
    set, and a script's class need not let itself be hashed."""
    return any(each is kind for each in _bases_of(type(value)))
