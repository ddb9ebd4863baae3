"""A process's place among the ranks of its job, as the launcher that started it says it in the
environment: torchrun, Slurm, Open MPI, MPICH, Ray, or people who export the same variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class RankPlace(NamedTuple):
    """Where a process stands in its job."""

    rank: int = 0
    world: int = 1
    """The number of ranks."""
    local_rank: int = 0
    local_world: int = 1
    """The number of ranks on this machine."""
    node: int = 0


class _Told(NamedTuple):
    """What one launcher says; `None` is what it does not say."""

    rank: int
    world: int | None
    local_rank: int | None
    local_world: int | None
    node: int | None


def place_in_environment() -> RankPlace:
    """Returns the place that the launcher gave this process; rank 0 of 1 where there is none.

    People often export `RANK` from what Slurm or MPI says: what they left out is taken from there.
    """
    told = list(_told())
    if not told:
        return RankPlace()
    rank = told[0].rank
    same = [each for each in told if each.rank == rank]
    world = _first([each.world for each in same]) or 1
    machines = _machines()
    local_world = _first([each.local_world for each in same])
    if local_world is None:
        local_world = max(1, world // machines)
    node = _first([each.node for each in same])
    if node is None:  # launchers fill one machine after the other, unless told otherwise
        node = rank // local_world if local_world < world else 0
    local_rank = _first([each.local_rank for each in same])
    return RankPlace(rank, world, local_rank or 0, local_world, node)


def has_rank() -> bool:
    """Returns whether a launcher gave this process a rank."""
    return any(True for _ in _told())


def spans_machines() -> bool:
    """Returns whether the launcher of this process started ranks on other machines too."""
    place = place_in_environment()
    return place.world > place.local_world or (place.world > 1 and _machines() > 1)


def machine_count() -> int:
    """Returns on how many machines the launcher of this process started ranks."""
    place = place_in_environment()
    return max(_machines(), -(-place.world // place.local_world))


def counts_machines() -> bool:
    """Returns whether the launcher of this process says how many of its ranks, all or those on this
    machine, are where: people who start ranks by hand, and scripts that do, say `RANK` alone."""
    told = list(_told())
    same = [each.local_world for each in told if each.rank == told[0].rank]
    return _first(same) is not None or _machines() > 1


def read_boot_id() -> str:
    """Returns the random number that the running system drew when it started; raises OSError where
    it has none. In a training process an interruption may look like one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def slurm_restarts() -> int:
    """Returns how often Slurm has put this job back into its queue and started it again."""
    return _number("SLURM_RESTART_COUNT") or 0


def restart_count() -> int | None:
    """Returns how often torch's launcher has started the ranks again; `None` under others."""
    return _number("TORCHELASTIC_RESTART_COUNT")


def may_restart() -> bool:
    """Returns whether torch's launcher starts this process again when it fails."""
    most, done = _number("TORCHELASTIC_MAX_RESTARTS"), restart_count()
    return most is not None and done is not None and done < most


def is_elastic() -> bool:
    """Returns whether torch's launcher started this process: it may start its ranks again, also
    because a machine has come or gone."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch_id() -> str | None:
    """Returns a text that is the same for all processes of one launch on this machine, and no
    other's; `None` where the launcher has none."""
    if is_elastic():
        return None  # torchrun's, of which one step of Slurm may start several
    if _slurm_rank() is not None:
        step = "-".join(os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        return f"slurm-{step}-{slurm_restarts()}"
    return os.environ.get("PMIX_NAMESPACE") or None


_MACHINES = ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "PET_NNODES")
"""What torch's launcher, Slurm and Kubernetes' operator set to the number of machines."""


def _told() -> Iterator[_Told]:
    rank = _number("RANK")
    if rank is not None:
        node = _number("GROUP_RANK")
        # Ray calls it NODE_RANK; DeepSpeed has LOCAL_SIZE and CROSS_RANK.
        yield _Told(
            rank,
            _number("WORLD_SIZE"),
            _number("LOCAL_RANK"),
            _first([_number("LOCAL_WORLD_SIZE"), _number("LOCAL_SIZE")]),
            _first([node, _number("NODE_RANK"), _number("CROSS_RANK")]),
        )
    rank = _slurm_rank()
    if rank is not None:
        on_this_machine = os.environ.get("SLURM_GTIDS", "")
        yield _Told(
            rank,
            _number("SLURM_NTASKS"),
            _number("SLURM_LOCALID"),
            len(on_this_machine.split(",")) if on_this_machine else None,
            _number("SLURM_NODEID"),
        )
    rank = _number("OMPI_COMM_WORLD_RANK")
    if rank is not None:
        # Its NODE_RANK counts processes on a machine, and no machines.
        yield _Told(
            rank,
            _number("OMPI_COMM_WORLD_SIZE"),
            _number("OMPI_COMM_WORLD_LOCAL_RANK"),
            _number("OMPI_COMM_WORLD_LOCAL_SIZE"),
            None,
        )
    rank = _number("PMI_RANK")  # of MPICH and Intel MPI
    if rank is not None:
        yield _Told(
            rank,
            _number("PMI_SIZE"),
            _number("MPI_LOCALRANKID"),
            _number("MPI_LOCALNRANKS"),
            None,
        )


def _slurm_rank() -> int | None:
    """The rank of a task that `srun` started.

    A batch script has the number 0 as well, and so has everything that it starts without `srun`.
    """
    return None if _number("SLURM_STEP_ID") is None else _number("SLURM_PROCID")


def _machines() -> int:
    return max(1, *(_number(name) or 1 for name in _MACHINES))


def _first(values: list[int | None]) -> int | None:
    return next((value for value in values if value is not None), None)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
