"""Reads the settings of torch, models, optimizers and loaders without running any user code.

Attributes are looked up in an object's own dictionary: a property or a `__getattr__` of the user's
is never called. No module is imported that the script has not loaded itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from traceml.trace.interruptions import is_interruption, variables_of
from traceml.trace.script_objects import own_attributes

MAX_FRAMES = 12
"""Between an optimizer's step and the GradScaler that calls it, and between a compiled function and
its backend, lie a few wrappers at most."""
SCALER_MODULES = (
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",  # before torch 2.3
    "torch.distributed.fsdp.sharded_grad_scaler",
)
PARALLEL_CLASSES = {
    "DistributedDataParallel": "DDP",
    "FullyShardedDataParallel": "FSDP",
    "FSDPModule": "FSDP2",
    "DeepSpeedEngine": "DeepSpeed",
    "DataParallel": "DataParallel",
}
PARALLEL_PACKAGES = ("torch", "deepspeed")
UNKNOWN_MODE = "unknown"
"""Something is compiled, and nothing says in which mode."""

Found = dict[str, Any]


def own(thing: Any, name: str, default: Any = None) -> Any:
    """An attribute from the object's own dictionary; nothing of its class is asked."""
    return own_attributes(thing).get(name, default)


# Torch


def of_torch(on_gpu: bool) -> Found:
    """The switches that hold for the whole process; those of cuDNN only where it is used."""
    found: Found = {
        "matmul_precision": _matmul_precision(),
        "is_deterministic": torch.are_deterministic_algorithms_enabled(),
        "cpu_threads": torch.get_num_threads(),
    }
    if on_gpu:
        found["cudnn_benchmark"] = torch._C._get_cudnn_benchmark()
        found["cudnn_tf32"] = _or_none(torch._C._get_cudnn_allow_tf32)
    return found


def _matmul_precision() -> str | None:
    """As `torch.set_float32_matmul_precision` names it, however it was set."""
    named = _or_none(torch.get_float32_matmul_precision)
    if named is not None:
        return str(named)
    # Set through the newer `fp32_precision`: then torch refuses to answer under the older name.
    newer = _or_none(lambda: torch.backends.cuda.matmul.fp32_precision)
    return {"none": "highest", "ieee": "highest", "tf32": "high"}.get(str(newer))


def _or_none(read: Any) -> Any:
    try:
        return read()
    except (RuntimeError, AttributeError) as error:
        if is_interruption(error):
            raise
        return None


def running_autocast(device_type: str) -> str:
    """The dtype of an autocast that is on at this moment; empty where none is."""
    try:
        is_on = torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type) if is_on else None
    except (TypeError, AttributeError, RuntimeError) as error:  # before torch 2.4: two devices
        if is_interruption(error):
            raise
        is_gpu = device_type != "cpu"
        is_on = torch.is_autocast_enabled() if is_gpu else torch.is_autocast_cpu_enabled()
        dtype = torch.get_autocast_gpu_dtype() if is_gpu else torch.get_autocast_cpu_dtype()
    return dtype_name(dtype) if is_on else ""


def dtype_name(dtype: Any) -> str:
    """`bfloat16`, without the package's name."""
    return str(dtype).removeprefix("torch.")


# The model


def parts_of(models: Iterable[nn.Module]) -> list[nn.Module]:
    """The models and everything inside them, each once."""
    found: dict[int, nn.Module] = {}
    waiting = list(models)
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            inner = own(module, "_modules") or {}
            waiting.extend(part for part in inner.values() if part is not None)
    return list(found.values())


def of_models(parts: list[nn.Module]) -> Found:
    """Parameters, parallelism and compilation of the modules of a model."""
    found = of_parameters(p for part in parts for p in _own_parameters(part))
    wrappers = _wrappers(parts)
    kinds = {PARALLEL_CLASSES[name] for _, name in wrappers}
    found["parallelism"] = " + ".join(sorted(kinds))
    found |= _of_ddp(wrappers)
    found |= _of_compilation(parts)
    mixed = _sharded_precision(wrappers)
    if mixed:
        found["autocast_dtype"] = mixed
    return found


def _wrappers(parts: list[nn.Module]) -> list[tuple[nn.Module, str]]:
    """The modules that share work between ranks or devices, with the names of their classes."""
    names = {kind: _parallel_name(kind) for kind in {type(part) for part in parts}}
    return [(part, name) for part in parts if (name := names[type(part)]) is not None]


def _parallel_name(kind: type) -> str | None:
    """What a class is called that is, or derives from, one of those of the known packages."""
    for each in kind.__mro__:
        if each.__name__ in PARALLEL_CLASSES and each.__module__.startswith(PARALLEL_PACKAGES):
            return each.__name__
    return None


def of_parameters(parameters: Iterable[Any]) -> Found:
    """The dtype of most of the numbers, and how the weights of convolutions lie in memory."""
    sizes: Counter[str] = Counter()
    layouts: Counter[bool] = Counter()
    with torch._C.DisableTorchFunctionSubclass():  # a tensor class of the user's is not asked
        for parameter in parameters:
            if isinstance(parameter, UninitializedParameter):
                continue
            sizes[dtype_name(parameter.dtype)] += parameter.numel()
            if type(parameter) is nn.Parameter and _has_layout(parameter.shape):
                is_last = parameter.is_contiguous(memory_format=torch.channels_last)
                layouts[is_last] += parameter.numel()
    found: Found = {}
    if sizes:
        found["parameter_dtype"] = sizes.most_common(1)[0][0]
    if layouts:
        found["channels_last"] = layouts.most_common(1)[0][0]
    return found


def _has_layout(shape: torch.Size) -> bool:
    """Whether it shows how these weights lie; a convolution of 1 × 1 lies the same way in both."""
    return len(shape) == 4 and shape[1] > 1 and shape[2] * shape[3] > 1


def _own_parameters(part: nn.Module) -> Iterator[Any]:
    for parameter in (own(part, "_parameters") or {}).values():
        if parameter is not None:
            yield parameter


def _of_ddp(wrappers: list[tuple[nn.Module, str]]) -> Found:
    for part, name in wrappers:
        if name == "DistributedDataParallel":
            cap_bytes = own(part, "bucket_bytes_cap")
            return {
                "ddp_bucket_cap_mb": cap_bytes / (1 << 20) if cap_bytes else None,
                "ddp_static_graph": own(part, "static_graph"),
                "ddp_bucket_view": own(part, "gradient_as_bucket_view"),
            }
    return {}


def _sharded_precision(wrappers: list[tuple[nn.Module, str]]) -> str:
    """What FSDP casts parameters to for forward: it takes autocast's place there."""
    for part, name in wrappers:
        policy = None
        if name == "FullyShardedDataParallel":
            policy = own(part, "mixed_precision")
        elif name == "FSDPModule":
            policy = _policy_of_fsdp2(part)
        dtype = getattr(policy, "param_dtype", None)
        if isinstance(dtype, torch.dtype) and dtype is not torch.float32:
            return dtype_name(dtype)
    return ""


def _policy_of_fsdp2(part: nn.Module) -> Any:
    """FSDP2 keeps its state beside the module, in a function of torch's own."""
    module: Any = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    state_of = getattr(module, "_get_module_fsdp_state", None)
    return None if state_of is None else own(state_of(part), "_mp_policy")


# Compilation


def _of_compilation(parts: list[nn.Module]) -> Found:
    """The mode of the compiled model, of its compiled parts, or of functions around it."""
    if "torch._dynamo" not in sys.modules:
        return {"compile_mode": ""}
    for part in parts:
        for compiled in (part, own(part, "_compiled_call_impl"), own(part, "forward")):
            context = _dynamo_context(compiled)
            if context is not None:
                return {"compile_mode": _mode_of(context)}
    return {"compile_mode": UNKNOWN_MODE if _something_is_compiled() else ""}


def _dynamo_context(compiled: Any) -> Any:
    """What `torch.compile` made of its options, from the module or the function it returned."""
    context = own(compiled, "dynamo_ctx")
    if context is not None:
        return context
    config = own(compiled, "get_compiler_config")  # a function of torch's own, bound to it
    cells = getattr(config, "__closure__", None) or ()
    found = [cell.cell_contents for cell in cells if own(cell.cell_contents, "callback")]
    return found[0] if found else None


def _mode_of(context: Any) -> str:
    backend = own(context, "callback")
    for _ in range(MAX_FRAMES):
        inner = own(backend, "_torchdynamo_orig_backend") or own(
            backend,
            "_torchdynamo_orig_callable",  # before torch 2.6
        )
        if inner is None:
            break
        backend = inner
    config = own(backend, "config")
    if type(config) is not dict:
        name = own(backend, "compiler_name")
        return f"backend {name}" if isinstance(name, str) else UNKNOWN_MODE
    graphs, tuned = config.get("triton.cudagraphs"), config.get("max_autotune")
    if tuned:
        return "max-autotune" if graphs else "max-autotune-no-cudagraphs"
    if graphs:
        return "reduce-overhead"
    return "custom options" if config else "default"


def _something_is_compiled() -> bool:
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["stats"].get("unique_graphs"))


# Optimizers


def of_optimizers(optimizers: Iterable[Any]) -> Found:
    """The classes, whether the steps of all of them are fused, and whether any could be that is
    not."""
    names, can, fused, foreach = [], [], [], []
    for optimizer in optimizers:
        name = type(optimizer).__name__
        names.append(name)
        for group in own(optimizer, "param_groups") or ():
            device = next((p.device.type for p in group["params"]), "cpu")
            can_fuse = "fused" in group and device in _devices_that_fuse()
            is_fused = bool(group.get("fused")) or "fused" in name.lower()
            can.append(can_fuse and not is_fused)
            fused.append(is_fused)
            if "foreach" in group:
                foreach.append(not is_fused and _is_foreach(group["foreach"], device))
    if not names:
        return {}
    return {
        "optimizer": " + ".join(dict.fromkeys(names)),
        "optimizer_can_fuse": any(can) or (bool(fused) and all(fused)),
        "optimizer_is_fused": bool(fused) and all(fused),
        "optimizer_is_foreach": any(foreach) if foreach else None,
    }


def _is_foreach(asked: Any, device: str) -> bool:
    return device == "cuda" if asked is None else bool(asked)  # torch's own default


def _devices_that_fuse() -> tuple[str, ...]:
    utils: Any = sys.modules.get("torch.utils._foreach_utils")
    supported = getattr(utils, "_get_fused_kernels_supported_devices", None)
    return ("cuda",) if supported is None else tuple(supported())


def grad_scaler_above(frame: FrameType | None) -> bool:
    """Whether an enabled GradScaler is among the callers of an optimizer's step."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        is_scaler = frame.f_globals.get("__name__") in SCALER_MODULES
        if is_scaler and own(variables_of(frame).get("self"), "_enabled"):
            return True
        frame = frame.f_back
    return False


# Loaders


def of_loader(iterator: Any) -> Found:
    """How the loader behind an iterator of torch's makes its batches."""
    workers = own(iterator, "_num_workers")
    batch_size = own(own(iterator, "_index_sampler"), "batch_size")
    return {
        "num_workers": workers,
        "pin_memory": bool(own(iterator, "_pin_memory")),
        "prefetch_factor": own(iterator, "_prefetch_factor") if workers else None,
        "persistent_workers": bool(own(iterator, "_persistent_workers")) if workers else None,
        "batch_size": batch_size if type(batch_size) is int else None,
    }
