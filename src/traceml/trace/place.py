"""Finds this process's place among all ranks: in the environment, or in the process group."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from traceml.model.environment import RING_FOLDER, RUN_FOLDER, SCRIPT
from traceml.model.launcher_place import place_in_environment, read_boot_id
from traceml.trace.interruptions import is_interruption

_SHARED_MEMORY = Path("/dev/shm")


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


def is_helper() -> bool:
    """Whether a script started this process beside its training, as any other command.

    What multiprocessing starts for the script is a part of it.
    """
    script = os.environ.get(SCRIPT, "").partition(":")[0]
    multiprocessing: Any = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return False
    return script not in ("", str(os.getpid()))


def is_begun_elsewhere() -> bool:
    """Whether the run that the environment names was begun on another machine.

    If so, its folder in shared memory is not here; and its manifest, if it can be read here, has
    another hostname or, where hostnames are equal, another boot id.
    """
    rings, folder = os.environ.get(RING_FOLDER), os.environ.get(RUN_FOLDER)
    if not folder or (rings and Path(rings).is_dir()):
        return False
    try:
        manifest = json.loads((Path(folder) / "run.json").read_text())
        machine, system = manifest.get("hostname"), manifest.get("boot_id")
    except (OSError, ValueError, AttributeError) as error:
        if is_interruption(error):
            raise
        return True
    own = _boot_id()
    return bool(machine != socket.gethostname() or (system and own and system != own))


def machine_id() -> str:
    """An identifier of this machine that no other machine has, nor any container on it with shared
    memory of its own, and so an agent of its own: containers often have one hostname."""
    return f"{socket.gethostname()} {_boot_id()} {_shared_memory_id()}"


def _shared_memory_id() -> int | None:
    try:
        return _SHARED_MEMORY.stat().st_dev
    except OSError as error:
        if is_interruption(error):
            raise
        return None


def _boot_id() -> str:
    try:
        return read_boot_id()
    except OSError as error:
        if is_interruption(error):
            raise
        return ""
