"""What a model's own parts are called, whatever wraps it; without torch, for failures before it."""

from __future__ import annotations

from typing import Any

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
"""Names that wrappers put between a model and its parts: of `torch.compile`, FSDP, activation
checkpointing and Lightning Fabric."""
_WRAPPING_PACKAGES = (
    "torch.nn.parallel.",
    "deepspeed.runtime.",
    "apex.parallel.",
    "lightning.pytorch.overrides.",
    "pytorch_lightning.overrides.",
)
"""Where the classes are that keep the model they wrap as `module`, such as DDP's."""
_GENERATED = {
    "torch.distributed.fsdp": "FSDP",
    "torch.distributed._composable.fsdp": "FSDP",
    "torch.nn.utils.parametrize": "Parametrized",
}
"""Where torch makes a class of its own for a module, by what it puts before the class's name."""


def wrapped(module: Any) -> Any | None:
    """What a module wraps without adding a part to the model; `None` for a part of a model."""
    inner = getattr(module, "_modules", None)
    if not isinstance(inner, dict):
        return None  # no module, or one of TorchScript's
    for name in WRAPPERS:
        if inner.get(name) is not None:
            return inner[name]
    is_wrapper = "module" in inner and type(module).__module__.startswith(_WRAPPING_PACKAGES)
    return inner["module"] if is_wrapper else None


def unwrapped(model: Any) -> Any:
    """The author's own model inside what DDP, FSDP and `torch.compile` put around it."""
    while (inner := wrapped(model)) is not None:
        model = inner
    return model


def own_name(name: str) -> str:
    """A module's dotted name without those of wrappers."""
    return ".".join(part for part in name.split(".") if part and part not in WRAPPERS)


def authors_class(module: Any) -> type:
    """The class that its author gave a module: FSDP2 (`fully_shard`) and parametrizations make one
    of their own from it."""
    kind = type(module)
    for each in kind.__mro__:
        is_generated = any(
            each.__module__.startswith(place) and each.__name__.startswith(prefix)
            for place, prefix in _GENERATED.items()
        )
        if not is_generated:
            return each
    return kind
