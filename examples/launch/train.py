"""A small training that runs under every launcher in this folder: torchrun, Slurm, MPI, Kubernetes.

It contains nothing of TraceML: `traceml run` traces it as it is.
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

RANKS = (  # what torchrun, Slurm and Open MPI call rank, world size and local rank
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


def find_rank():
    for names in RANKS:
        if names[0] in os.environ:
            return tuple(int(os.environ[name]) for name in names)
    return 0, 1, 0


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=20.0, help="pause after every step")
    parser.add_argument("--fail-at", type=int, default=-1, help="let the last rank fail")
    return parser.parse_args()


def save_and_end(number, frame):
    """What a job does that is about to be preempted: save, and leave the rest to its next start."""
    print(f"rank {find_rank()[0]} got {signal.Signals(number).name}", flush=True)
    if number == signal.SIGTERM:
        sys.exit(0)


def main():
    arguments = options()
    rank, world, local_rank = find_rank()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, save_and_end)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16 * arguments.steps * world, 32))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, world, rank))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (batch,) in enumerate(loader):
        if step == arguments.fail_at and rank == world - 1:
            raise RuntimeError("planted failure")
        optimizer.zero_grad()
        loss = model(batch.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(arguments.step_ms / 1e3)
    print(f"rank {rank} of {world} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
