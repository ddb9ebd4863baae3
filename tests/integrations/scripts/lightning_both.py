"""Makes a trainer of one Lightning package, and loads the other one afterwards."""

from __future__ import annotations

import importlib

import lightning.pytorch

from traceml.integrations import zero_code

trainer = lightning.pytorch.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
importlib.import_module("pytorch_lightning")
first = zero_code.make_lightning_callbacks()
second = zero_code.make_pytorch_lightning_callbacks()
print(f"callbacks: {len(first)} and {len(second)}")
