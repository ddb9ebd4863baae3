"""The settings of a run in words: one line for the text summary, rows for a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traceml.model.quantities import count
from traceml.summaries.record import Setting

Settings = Mapping[str, Setting]

LABELS = {
    "parameter_dtype": "Parameters",
    "autocast_dtype": "Autocast",
    "has_grad_scaler": "GradScaler",
    "matmul_precision": "Precision of float32 products",
    "cudnn_tf32": "TF32 in cuDNN",
    "cudnn_benchmark": "cuDNN benchmark",
    "is_deterministic": "Deterministic algorithms",
    "channels_last": "channels_last",
    "compile_mode": "torch.compile",
    "uses_cuda_graphs": "CUDA graphs",
    "checkpoints_activations": "Activation checkpointing",
    "optimizer": "Optimizer",
    "optimizer_can_fuse": "Optimizer takes fused",
    "optimizer_is_fused": "Optimizer is fused",
    "optimizer_is_foreach": "Optimizer is foreach",
    "num_workers": "Loader workers",
    "pin_memory": "pin_memory",
    "prefetch_factor": "prefetch_factor",
    "persistent_workers": "persistent_workers",
    "batch_size": "Batch of the loader",
    "accumulation_steps": "Micro-batches per optimizer step",
    "parallelism": "Parallelism",
    "ddp_bucket_cap_mb": "DDP buckets (MiB)",
    "ddp_static_graph": "DDP static_graph",
    "ddp_bucket_view": "DDP gradient_as_bucket_view",
    "cpu_threads": "CPU threads of torch",
    "differs_between_ranks": "Ranks differ in",
}
"""The name of each setting on a page; a test keeps it complete."""


def setting_rows(settings: Settings | None) -> Iterator[tuple[str, str]]:
    """Returns each known setting as its name and its value in words."""
    for name, value in (settings or {}).items():
        if value is not None and value != ():
            yield LABELS.get(name, name), _shown(value)


def settings_line(settings: Settings | None) -> str:
    """Returns the most important settings in a few words; empty where none is known."""
    return "" if settings is None else " · ".join(_parts(settings))


def _shown(value: Setting) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    if value == "":
        return "not used"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parts(settings: Settings) -> Iterator[str]:
    if settings.get("parameter_dtype"):
        yield f"{settings['parameter_dtype']} parameters"
    if settings.get("autocast_dtype"):
        scaled = " with GradScaler" if settings.get("has_grad_scaler") else ""
        yield f"{settings['autocast_dtype']} autocast{scaled}"
    if settings.get("compile_mode"):
        yield f"compiled ({settings['compile_mode']})"
    if settings.get("uses_cuda_graphs"):
        yield "CUDA graphs"
    if settings.get("checkpoints_activations"):
        yield "activation checkpointing"
    if settings.get("optimizer"):
        yield f"{settings['optimizer']}{' (fused)' if settings.get('optimizer_is_fused') else ''}"
    yield from _batches(settings)
    if settings.get("parallelism"):
        yield str(settings["parallelism"])
    uneven = settings.get("differs_between_ranks")
    if isinstance(uneven, tuple) and uneven:
        yield f"ranks differ in {', '.join(uneven)}"


def _batches(settings: Settings) -> Iterator[str]:
    batch, accumulated = settings.get("batch_size"), settings.get("accumulation_steps")
    times = f" × {accumulated}" if isinstance(accumulated, int) and accumulated > 1 else ""
    if batch is not None:
        yield f"batches of {batch}{times}"
    elif times:
        yield f"{accumulated} micro-batches"
    workers = settings.get("num_workers")
    if isinstance(workers, int):
        pinned = ", pinned" if settings.get("pin_memory") else ""
        yield f"{count(workers, 'worker')}{pinned}"
