"""Hugging Face Accelerate: prepared model, loader and scheduler, accumulation by accumulate().

The wrapped optimizer.step() is called on every batch but steps only when gradients are in sync.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training_function(config):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=config["accumulation"])
    set_seed(config["seed"])
    x = torch.randn(360, 8)
    y = (x.sum(1) > 0).long()
    train_dataloader = DataLoader(TensorDataset(x[:328], y[:328]), batch_size=16, shuffle=True)
    eval_dataloader = DataLoader(TensorDataset(x[328:], y[328:]), batch_size=16)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=30)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    completed_steps = 0
    for epoch in range(config["num_epochs"]):
        model.train()
        for inputs, targets in train_dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                completed_steps += 1

        model.eval()
        correct = 0
        for inputs, targets in eval_dataloader:
            with torch.no_grad():
                outputs = model(inputs)
            predictions, references = accelerator.gather_for_metrics((outputs.argmax(-1), targets))
            correct += (predictions == references).sum().item()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f} correct {correct}")
    accelerator.print(f"steps: {completed_steps}")


def main():
    torch.set_num_threads(1)
    training_function({"lr": 2e-3, "num_epochs": 3, "seed": 42, "accumulation": 4})


if __name__ == "__main__":
    main()
