"""Finds this process's place among all ranks: in the environment, or in the process group."""

from __future__ import annotations

import os
import sys
from typing import Any

from traceml.model.environment import SCRIPT

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_NODE_RANK",
    ),
)


def place() -> tuple[int, int, int, int, int]:
    """Rank, world size, local rank, local world size and node rank of this process."""
    rank, world, local_rank, local_world, node = place_in_environment()
    torch_distributed: Any = sys.modules.get("torch.distributed")
    initialised = getattr(torch_distributed, "is_initialized", None)
    if initialised is not None and initialised():
        rank, known_world = torch_distributed.get_rank(), torch_distributed.get_world_size()
        if known_world != world:  # spawned by the script itself: one node as far as we know
            local_rank, local_world, node = rank, known_world, 0
        world = known_world
    return rank, world, local_rank, local_world, node


def place_in_environment() -> tuple[int, int, int, int, int]:
    """The same as the launcher of this process says it; rank 0 of 1 where there is none."""
    for rank, world, local_rank, local_world, node in _RANK_VARIABLES:
        if _number(rank) is None:
            continue
        ranks = _number(world) or 1
        return (
            _number(rank) or 0,
            ranks,
            _number(local_rank) or 0,
            _number(local_world) or ranks,
            _number(node) or 0,
        )
    return 0, 1, 0, 1, 0


def has_rank() -> bool:
    """Whether a launcher gave this process a rank."""
    return any(_number(names[0]) is not None for names in _RANK_VARIABLES)


def was_started_again() -> bool:
    """Whether torch's launcher has started the ranks again after a failure."""
    return bool(_number("TORCHELASTIC_RESTART_COUNT"))


def is_helper() -> bool:
    """Whether a script started this process beside its training, as any other command.

    What multiprocessing starts for the script is a part of it.
    """
    script = os.environ.get(SCRIPT, "").partition(":")[0]
    multiprocessing: Any = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return False
    return script not in ("", str(os.getpid()))


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
