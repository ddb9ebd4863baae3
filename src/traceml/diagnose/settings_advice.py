"""Recommendations that several rules share, in words: settings that a run could still turn on.

Each function returns words for a setting that is off and could be on, and an empty text for one
that is on or impossible. Where a setting is not known, the words state the condition.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceml.facts.facts import Facts
from traceml.model.settings import Settings

HALF = frozenset({"bfloat16", "float16", "half"})
MATMUL_TF32 = "torch.set_float32_matmul_precision('high')"
UNKNOWN_MODE = "unknown"
"""The recorded mode where only functions are compiled …"""
BACKEND = "backend "
"""… and how it begins where the model is compiled by another backend, which has no modes."""
GRAPH_MODES = frozenset({"reduce-overhead", "max-autotune", f"{BACKEND}cudagraphs"})
"""The modes and backends of torch.compile that replay CUDA graphs."""
FULL_SHARE = 0.80  # of a GPU reserved: a larger batch may not fit
ROOM_SHARE = 0.50  # a device filled less than half has room for a larger batch


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Returns the non-empty options as a list in words: `a, b and c`."""
    known = [part for part in parts if part]
    if len(known) < 2:
        return "".join(known)
    return f"{', '.join(known[:-1])} {last} {known[-1]}"


def is_half(settings: Settings) -> bool | None:
    """Returns whether forward computes in 16 bits; `None` where it is not known."""
    if settings.autocast_dtype or settings.parameter_dtype in HALF:
        return True
    known = settings.autocast_dtype is not None and settings.parameter_dtype is not None
    return False if known else None


def is_float16(settings: Settings) -> bool | None:
    """Returns whether float16 is used, whose range can overflow; `None` where it is not known."""
    if "float16" in (settings.autocast_dtype, settings.parameter_dtype):
        return True
    return False if is_half(settings) is not None else None


def against_overflow(settings: Settings) -> str:
    """Returns a clause on overflow at 65,504; empty where the run does not use float16."""
    kinds = (settings.autocast_dtype, settings.parameter_dtype)
    if "float16" in kinds:
        scaler = "" if settings.has_grad_scaler else ", or with a GradScaler"
        return f"; float16 overflows above 65,504: try bfloat16{scaler}"
    return "; if it trains in float16, try bfloat16" if None in kinds else ""


def lower_precision(settings: Settings, tf32: bool = True) -> str:
    """Recommends a lower precision; with TF32 where it is off."""
    half = is_half(settings)
    if half:
        return ""
    if half is None:
        return "bfloat16 autocast (if forward does not run under autocast yet)"
    is_off = tf32 and settings.matmul_precision == "highest"
    return "bfloat16 autocast" + (f" (or at least TF32: {MATMUL_TF32})" if is_off else "")


def allowing_tf32(settings: Settings) -> str:
    """Recommends TF32 for float32 arithmetic; mentions convolutions where the model has them."""
    matmul = MATMUL_TF32 if settings.matmul_precision in (None, "highest") else ""
    is_off = settings.cudnn_tf32 is False and settings.channels_last is not None
    return listed((matmul, "torch.backends.cudnn.allow_tf32=True" if is_off else ""))


def compiling(settings: Settings) -> str:
    """Recommends compiling the model."""
    if settings.compile_mode is None:
        return "torch.compile (if it is not used yet)"
    return "" if settings.compile_mode else "torch.compile"


def convolutions(settings: Settings) -> str:
    """Recommends faster convolutions on a GPU; empty where the model has none."""
    if settings.channels_last is None:
        return ""
    layout = "" if settings.channels_last else "channels_last memory"
    may_search = settings.cudnn_benchmark is False and not settings.is_deterministic
    search = "torch.backends.cudnn.benchmark=True (for inputs of one size)" if may_search else ""
    return listed((layout, search))


def cuda_graphs(settings: Settings) -> str:
    """Recommends CUDA graphs, which launch a step's kernels all at once."""
    mode = settings.compile_mode
    if settings.uses_cuda_graphs or mode in GRAPH_MODES:
        return ""
    if mode == UNKNOWN_MODE:
        return "CUDA graphs (torch.compile's mode='reduce-overhead', if it is not set yet)"
    if mode and mode.startswith(BACKEND):
        return f"CUDA graphs (torch.compile's mode='reduce-overhead', not {mode})"
    if mode:
        return f"CUDA graphs (mode='reduce-overhead' instead of '{mode}')"
    known = settings.compile_mode is not None and settings.uses_cuda_graphs is not None
    condition = "" if known else " (if neither is used yet)"
    return f"torch.compile(mode='reduce-overhead') or CUDA graphs{condition}"


def fused_optimizer(settings: Settings) -> str:
    """Recommends a fused optimizer: one kernel for the whole optimizer step."""
    if settings.optimizer_is_fused or settings.optimizer_can_fuse is False:
        return ""
    if settings.optimizer_can_fuse is None:
        return "fused=True (if the optimizer takes it and it is not set)"
    return "fused=True for the optimizer"


def recomputing(settings: Settings) -> str:
    """Recommends activation checkpointing: recomputing activations in backward instead of keeping
    them."""
    if settings.checkpoints_activations is None:
        return "activation checkpointing (if it is not used yet)"
    return "" if settings.checkpoints_activations else "activation checkpointing"


def is_sharded(settings: Settings) -> bool:
    """Returns whether the ranks share one optimizer state."""
    kinds = settings.parallelism or ""
    return "FSDP" in kinds or "DeepSpeed" in kinds


def filled_share(facts: Facts) -> float | None:
    """Returns the share of its GPU's memory that the fullest rank reserved; `None` where not
    known."""
    filled = [
        rank.memory.peak_reserved_bytes / rank.rank.device_total_bytes
        for rank in facts.ranks_used
        if rank.memory.peak_reserved_bytes is not None and rank.rank.device_total_bytes
    ]
    return max(filled, default=None)


def larger_batch(facts: Facts) -> str:
    """Recommends a larger batch; empty where there is no memory for one."""
    filled = filled_share(facts)
    return "" if filled is not None and filled >= FULL_SHARE else "a larger batch"


def fewer_workers(facts: Facts) -> str:
    """Recommends fewer workers, whose memory would be free then; empty where there are none."""
    workers = facts.loader.workers
    if workers is None:
        return "fewer workers (if there are any)"
    if workers == 1:
        return "loading without a worker (num_workers=0)"
    return f"fewer workers than {workers}" if workers else ""


def less_prefetching(facts: Facts) -> str:
    """Recommends prefetching fewer batches; empty without workers."""
    ahead = facts.settings.prefetch_factor
    if facts.loader.workers == 0 or ahead == 1:
        return ""
    return "a smaller prefetch_factor" + ("" if ahead is None else f" than {ahead}")
