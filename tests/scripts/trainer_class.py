"""A Trainer class with callbacks and early stopping, whose max_steps leaves a batch unused."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    def on_step_end(self, trainer): ...

    def on_epoch_end(self, trainer): ...


class ProgressPrinter(Callback):
    def on_step_end(self, trainer):
        if trainer.global_step % 10 == 0:
            print(f"\rstep {trainer.global_step}: loss {trainer.last_loss:.4f}", flush=True)


class Checkpoint(Callback):
    def __init__(self, folder):
        self.folder = Path(folder)

    def on_epoch_end(self, trainer):
        state = {
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "step": trainer.global_step,
        }
        torch.save(state, self.folder / f"epoch{trainer.epoch}.ckpt")


class EarlyStopping(Callback):
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def on_epoch_end(self, trainer):
        if trainer.val_loss < self.best:
            self.best, self.bad = trainer.val_loss, 0
        else:
            self.bad += 1
        trainer.should_stop |= self.bad >= self.patience


class Trainer:
    def __init__(self, model, train_loader, val_loader, callbacks, max_epochs, max_steps):
        self.model, self.train_loader, self.val_loader = model, train_loader, val_loader
        self.callbacks, self.max_epochs, self.max_steps = callbacks, max_epochs, max_steps
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.global_step, self.should_stop = 0, False

    def call(self, hook):
        for callback in self.callbacks:
            getattr(callback, hook)(self)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.model(x), y)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [self.training_step(batch).item() for batch in self.val_loader]
        self.model.train()
        return sum(losses) / len(losses)

    def fit(self):
        self.val_loss = self.validate()  # sanity check before the first step
        for epoch in range(self.max_epochs):
            self.epoch = epoch
            for batch in self.train_loader:
                if self.global_step >= self.max_steps:
                    self.should_stop = True
                    break
                self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                self.optimizer.step()
                self.global_step += 1
                self.last_loss = loss.item()
                self.call("on_step_end")
            self.val_loss = self.validate()
            self.call("on_epoch_end")
            if self.should_stop:
                break


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(200, 7)
    y = x[:, :2].prod(1, keepdim=True)
    train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16)
    model = nn.Sequential(nn.Linear(7, 24), nn.SiLU(), nn.Linear(24, 1))
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [ProgressPrinter(), Checkpoint(folder), EarlyStopping(patience=3)]
        trainer = Trainer(model, train_loader, val_loader, callbacks, max_epochs=5, max_steps=27)
        trainer.fit()
    print(f"steps: {trainer.global_step}")
