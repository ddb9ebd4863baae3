"""What a model's own parts are called, whatever wraps it; without torch, for failures before it."""

from __future__ import annotations

from typing import Any

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names that wrappers put between a model and its parts."""


def unwrapped(model: Any) -> Any:
    """The author's own model inside what DDP and `torch.compile` put around it."""
    while model is not None:
        inner = getattr(model, "_modules", {})
        if "_orig_mod" in inner:
            model = inner["_orig_mod"]
        elif "module" in inner and type(model).__module__.startswith("torch.nn.parallel"):
            model = inner["module"]
        else:
            break
    return model


def own_name(name: str) -> str:
    """A module's dotted name without those of wrappers."""
    return ".".join(part for part in name.split(".") if part and part not in WRAPPERS)
