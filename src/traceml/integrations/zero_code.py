"""Names the phases of frameworks where a run is traced, without a word in the script.

Lightning asks for callbacks whenever a trainer is made, by the entry points
`lightning.pytorch.callbacks_factory` and `pytorch_lightning.callbacks_factory`, also where there is
no run: it costs next to nothing there. transformers and Accelerate ask nobody: under `traceml run`
their modules are waited for (`trace/inject/sitecustomize.py`).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from traceml.model.environment import RUN_FOLDER


def make_lightning_callbacks() -> list[Any]:
    """Returns the callback of a trainer of `lightning` that is being made; nothing where there is
    no run, or no callback can be made."""
    return _callbacks_of("lightning.pytorch")


def make_pytorch_lightning_callbacks() -> list[Any]:
    """Returns the same for a trainer of `pytorch_lightning`."""
    return _callbacks_of("pytorch_lightning")


def _callbacks_of(package: str) -> list[Any]:
    if not os.environ.get(RUN_FOLDER):
        return []
    from traceml.trace.current import current

    session = current()
    if session is None or not session.active:
        return []
    made = session.guard(_make_lightning_callback, any_thread=True)()
    # Ours is a callback of the packages that were loaded when it was first needed.
    base = getattr(sys.modules.get(package), "Callback", None)
    return [made] if made is not None and base is not None and isinstance(made, base) else []


def _make_lightning_callback() -> Any:
    from traceml.integrations.lightning import DefaultLightningCallback

    return DefaultLightningCallback()


def join_transformers() -> None:
    """Gives every Trainer of this process a callback, by the library's list of default callbacks:
    it offers no other way. Raises whatever a version of the library raises that is built in another
    way."""
    from traceml.trace.current import current

    session = current()
    if session is not None and session.active:
        from traceml.integrations.huggingface import DefaultTrainerCallback

        sys.modules["transformers.trainer"].DEFAULT_CALLBACKS.append(DefaultTrainerCallback)


def join_accelerate() -> None:
    """Names the phases of the accelerators of this process."""
    name_accelerator_phases(sys.modules["accelerate.accelerator"].Accelerator)


def name_accelerator_phases(accelerator: type) -> None:
    """Makes named regions of the calls of an accelerator's methods."""
    from traceml.integrations.library_support import name_methods

    name_methods(accelerator, ["log"], "logging")
    name_methods(accelerator, ["save_state", "save_model"], "checkpoint")
