"""The Python that trains, as it describes itself in a mark.

The training process loads this, so it is a named tuple: a dataclass takes a millisecond to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

VARIABLES = (
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "TOKENIZERS_PARALLELISM", "LD_PRELOAD"),
    *("PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONMALLOC", "SLURM_CPUS_PER_TASK"),
    *("SLURM_JOB_NUM_NODES", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES"),
)
"""Environment variables that change how training runs, and have the same value in every rank."""
VARIABLE_FAMILIES = (
    *("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "GLOO_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_"),
    *("TORCHDYNAMO_", "TRITON_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_"),
    *("MALLOC_", "ACCELERATE_", "XLA_", "HSA_", "ROCR_", "HIP_"),
)
"""The beginnings of the names of others."""


class Interpreter(NamedTuple):
    """The Python that trains, as it describes itself."""

    executable: str
    version: str
    path: tuple[str, ...]
    """Where it looks for modules: its packages are found there."""
    argv: tuple[str, ...]
    """The script and its arguments, without secrets."""
    folder: str
    variables: Mapping[str, str]
    torch: str | None = None
    cuda: str | None = None
    hooks_in_c: bool | None = None
    """Whether `trace/recorder.c` is built there and in use."""
