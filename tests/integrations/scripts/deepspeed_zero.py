"""DeepSpeed's engine with one of ZeRO's stages: two epochs with accumulation, each evaluated and
saved. Called with the stage, under torchrun."""

from __future__ import annotations

import sys

import deepspeed
import torch

EPOCHS, BATCHES, MICRO_BATCHES = 2, 24, 2
stage = int(sys.argv[1])


class Regression(torch.nn.Module):
    """A model that returns its loss, as DeepSpeed's examples do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))

    def forward(self, x):
        return self.net(x).square().mean()


deepspeed.init_distributed("gloo")
model = Regression()
world = torch.distributed.get_world_size()
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    training_data=torch.utils.data.TensorDataset(torch.randn(world * BATCHES * 8, 64)),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
    },
)
for epoch in range(EPOCHS):
    engine.train()
    for (x,) in loader:
        engine.backward(engine(x))
        engine.step()
    engine.eval()
    with torch.no_grad():
        for _ in range(4):
            engine(torch.randn(8, 64))
    engine.save_checkpoint("checkpoints", tag=f"epoch-{epoch}")
print(f"steps: {engine.global_steps}")
torch.distributed.destroy_process_group()
