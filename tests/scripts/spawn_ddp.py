"""mp.spawn of two DDP ranks over gloo on loopback, with DistributedSampler and a rank-0 checkpoint.

The count is the steps of each rank, the same on both; rank 0 prints it.
"""

import gc
import os
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def find_free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ddp_setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


class Trainer:
    def __init__(self, model, train_data, optimizer, rank, checkpoint):
        self.rank, self.train_data, self.optimizer = rank, train_data, optimizer
        self.checkpoint = checkpoint
        self.model = DistributedDataParallel(model)
        self.steps = 0

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.item()

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        losses = [self._run_batch(source, targets) for source, targets in self.train_data]
        if self.rank == 0:
            print(f"[rank 0] Epoch {epoch} | Steps: {len(losses)} | Loss {losses[-1]:.4f}")

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                torch.save(self.model.module.state_dict(), self.checkpoint)


def main(rank, world_size, port, checkpoint):
    torch.set_num_threads(1)
    ddp_setup(rank, world_size, port)
    torch.manual_seed(0)
    dataset = TensorDataset(torch.rand(160, 20), torch.rand(160, 1))
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer(model, loader, optimizer, rank, checkpoint)
    trainer.train(max_epochs=2)
    steps = trainer.steps
    # DDP sits in reference cycles; a gloo group that it keeps alive until exit may abort there
    del trainer
    gc.collect()
    dist.destroy_process_group()
    if rank == 0:
        print(f"steps: {steps}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        args = (2, find_free_port(), str(Path(folder) / "checkpoint.pt"))
        mp.spawn(main, args=args, nprocs=2)
