"""Saving: torch's own, and what the libraries around it save by.

A saver inside another is part of it, and one in another thread holds up nobody.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from traceml.steps.events import BEGIN, CHECKPOINT, END
from traceml.trace.compiling import left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.script_objects import Arrivals
from traceml.trace.session import Session

_DISTRIBUTED = ("save", "async_save", "save_state_dict", "_save_state_dict")

SAVERS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    # `_save_state_dict` and `serialize_file` are what the functions around them write by, also
    # where a script or a library got hold of those before we came.
    ("torch.distributed.checkpoint.state_dict_saver", None, _DISTRIBUTED),
    ("torch.distributed.checkpoint", None, _DISTRIBUTED),
    ("safetensors.torch", None, ("save_file", "save_model", "serialize_file")),
    ("transformers.modeling_utils", "PreTrainedModel", ("save_pretrained",)),
    ("transformers.trainer", "Trainer", ("_save_checkpoint", "save_model")),
    ("accelerate.accelerator", "Accelerator", ("save_state", "save_model")),
    ("pytorch_lightning.trainer.trainer", "Trainer", ("save_checkpoint",)),
    ("lightning.pytorch.trainer.trainer", "Trainer", ("save_checkpoint",)),
    ("lightning_fabric.fabric", "Fabric", ("save",)),
    ("lightning.fabric.fabric", "Fabric", ("save",)),
    ("diffusers.models.modeling_utils", "ModelMixin", ("save_pretrained",)),
    ("diffusers.pipelines.pipeline_utils", "DiffusionPipeline", ("save_pretrained",)),
    ("peft.peft_model", "PeftModel", ("save_pretrained",)),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", ("save_checkpoint",)),
)
"""A module, its class if the savers are methods, and the savers. What pickles in general (joblib,
pickle itself) is not among them: it need not be a checkpoint."""


def watch(session: Session, arrivals: Arrivals) -> None:
    """Time every saver, whenever the script loads it."""
    session.replace(torch, "save", _timed(session, torch.save))
    for module, kind, names in SAVERS:
        arrivals.wait_for(module, functools.partial(_watch_module, session, kind, names))


def _watch_module(session: Session, kind: str | None, names: tuple[str, ...], module: Any) -> None:
    owner = module if kind is None else getattr(module, kind, None)
    for name in names if owner is not None else ():
        saver = vars(owner).get(name)
        if callable(saver) and not isinstance(saver, type):
            session.replace(owner, name, _timed(session, saver))


def _timed(session: Session, save: Callable[..., Any]) -> Callable[..., Any]:
    note = session.guard(session.recorder.note)

    @functools.wraps(save)
    def timed_save(*arguments: Any, **options: Any) -> Any:
        try:
            note(BEGIN, CHECKPOINT)
            try:
                return save(*arguments, **options)
            finally:
                note(END, CHECKPOINT)
        except BaseException as error:
            session.failures.note("checkpoint")
            drop_our_frames(error)
            raise

    return left_alone(timed_save) if isinstance(save, FunctionType) else timed_save
