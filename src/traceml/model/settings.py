"""The settings of a training run that advice has to know: what is on already, and what is not.

The training process loads this, so it is a named tuple: a dataclass takes a millisecond to make.
"""

from __future__ import annotations

from typing import NamedTuple


class Settings(NamedTuple):
    """What one rank trains with; `None` is "not known", and an empty text is "not used"."""

    parameter_dtype: str | None = None
    """Of most of the model's parameters: `float32`, `bfloat16`, …"""
    autocast_dtype: str | None = None
    """The dtype of `torch.autocast`, or of FSDP's mixed precision, during forward; empty where
    forward runs without either."""
    has_grad_scaler: bool | None = None
    matmul_precision: str | None = None
    """`torch.get_float32_matmul_precision()`: TF32 is used unless it is `highest`."""
    cudnn_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    is_deterministic: bool | None = None
    channels_last: bool | None = None
    """Whether the weights of convolutions lie in memory that way; unknown where there are none."""
    compile_mode: str | None = None
    """`default`, `reduce-overhead`, `backend eager`, … of the compiled model; `unknown` where only
    functions are compiled, and empty where nothing is."""
    uses_cuda_graphs: bool | None = None
    checkpoints_activations: bool | None = None
    optimizer: str | None = None
    """The class's name, for example `AdamW`."""
    optimizer_can_fuse: bool | None = None
    """Whether its constructor takes `fused`; of several, whether any does that is not fused yet."""
    optimizer_is_fused: bool | None = None
    """Whether the steps of all optimizers are."""
    optimizer_is_foreach: bool | None = None
    num_workers: int | None = None
    """Of the loader that training fetches from, as are the next four."""
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    batch_size: int | None = None
    accumulation_steps: int | None = None
    """Backward passes per optimizer step."""
    parallelism: str | None = None
    """`DDP`, `FSDP`, `FSDP2`, `DeepSpeed`, `DataParallel`; empty where none of them is used."""
    ddp_bucket_cap_mb: float | None = None
    ddp_static_graph: bool | None = None
    ddp_bucket_view: bool | None = None
    """`gradient_as_bucket_view`."""
    cpu_threads: int | None = None
    """`torch.get_num_threads()`."""


NOT_RECORDED = Settings()
