"""A Trainer that knows TraceML by `report_to` alone, or not at all: accumulation, evaluation and
checkpoints. Called with what `report_to` is."""

from __future__ import annotations

import sys

import torch
from transformers import Trainer, TrainingArguments


class Regression(torch.nn.Module):
    """A loss as the Trainer expects it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def forward(self, x, labels=None):
        found = self.net(x)
        return {"loss": (found - labels).square().mean(), "logits": found}


class Pairs(torch.utils.data.Dataset):
    """Numbers and what they are to become."""

    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, 8)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return {"x": self.x[place], "labels": self.x[place][:1]}


trainer = Trainer(
    model=Regression(),
    args=TrainingArguments(
        output_dir="checkpoints",
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=1,
        report_to=sys.argv[1],
        disable_tqdm=True,
    ),
    train_dataset=Pairs(48),
    eval_dataset=Pairs(8),
)
trainer.train()
print(f"steps: {trainer.state.global_step}")
