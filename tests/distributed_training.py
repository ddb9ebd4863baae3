"""Trains a small model on several ranks over gloo, with a delay planted in one of them.

A script of its own, for `traceml run --nproc-per-node N`; each rank prints a digest of what it has
learnt, so that a run with tracing can be compared with one without. With `--fork-ranks N` it starts
its ranks itself, after torch has been imported once for all of them.
"""

import argparse
import gc
import hashlib
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WIDTH = 32


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("ddp", "fsdp1", "fsdp2", "explicit"), default="ddp")
    parser.add_argument("--fork-ranks", type=int, default=0, help="instead of torchrun's")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--until", type=Path, help="go on after that until this file exists")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--where", default="backward")
    parser.add_argument("--delay-ms", type=float, default=40.0)
    parser.add_argument("--branches", action="store_true", help="other layers in every step")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--recompute", action="store_true", help="re-entrant checkpointing")
    parser.add_argument("--buffers", action="store_true", help="a BatchNorm, broadcast by rank 0")
    parser.add_argument("--own-hook", action="store_true", help="a comm hook of the user's")
    parser.add_argument("--nested", action="store_true", help="DDP inside a module of the user's")
    parser.add_argument("--backwards", type=int, default=1, help="passes per forward")
    return parser.parse_args()


ARGUMENTS = options()


def delay(where):
    """Be late, on the late rank, if this is the place."""
    if ARGUMENTS.where == where and dist.get_rank() == ARGUMENTS.late_rank:
        time.sleep(ARGUMENTS.delay_ms / 1e3)


class LateBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        delay("backward")
        return gradient


class Samples(Dataset):
    def __len__(self):
        return 10**9 if ARGUMENTS.until else 8 * ARGUMENTS.steps * ARGUMENTS.micro_batches

    def __getitem__(self, index):
        if index % 8 == 0:
            delay("input")
        generator = torch.Generator().manual_seed(index * 64 + dist.get_rank())
        return torch.randn(WIDTH, generator=generator)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.normal = nn.BatchNorm1d(WIDTH) if ARGUMENTS.buffers else nn.Identity()
        self.last = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, inputs):
        delay("forward")
        self.calls += 1
        # The branch comes first: where the other one is taken, other gradients come last.
        chosen = (self.calls % 2,) if ARGUMENTS.branches else (0, 1)
        hidden = inputs
        for index in chosen:
            hidden = torch.tanh(self.branches[index](hidden))
        hidden = LateBackward.apply(hidden)
        if ARGUMENTS.recompute:
            hidden = checkpoint(self.first, hidden, use_reentrant=True)
        else:
            hidden = self.first(hidden)
        return self.last(self.normal(hidden))


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs)


def in_halves(state, bucket):
    """What people register to halve the traffic; DDP takes one such hook and no second."""
    halved = bucket.buffer().to(torch.bfloat16)
    work = dist.all_reduce(halved, async_op=True)
    return work.get_future().then(
        lambda future: future.value()[0].to(torch.float32) / dist.get_world_size()
    )


def spread(model):
    """The model as all ranks train it."""
    if ARGUMENTS.kind == "ddp":
        model = DistributedDataParallel(
            model, find_unused_parameters=ARGUMENTS.branches, static_graph=ARGUMENTS.static_graph
        )
        if ARGUMENTS.own_hook:
            model.register_comm_hook(None, in_halves)
        return Wrapper(model) if ARGUMENTS.nested else model
    if ARGUMENTS.kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.first)
        return fully_shard(model)
    if ARGUMENTS.kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    return model


class LateSGD(torch.optim.SGD):
    def step(self, closure=None):
        delay("optimizer")
        return super().step(closure)


def accumulating(model):
    return (model.inner if ARGUMENTS.nested else model).no_sync()


def steps():
    """Once for each step; with --until, all ranks agree on whether another one follows."""
    yield from range(ARGUMENTS.steps)
    while ARGUMENTS.until and _agree(not ARGUMENTS.until.exists()):
        yield


def _agree(is_wanted):
    wanted = torch.tensor([float(is_wanted)])
    dist.all_reduce(wanted)
    return bool(wanted.item())


def train(model, optimizer):
    batches = iter(DataLoader(Samples(), batch_size=8))
    taken = 0
    for _ in steps():
        optimizer.zero_grad()
        for micro_batch in range(ARGUMENTS.micro_batches):
            waits = micro_batch < ARGUMENTS.micro_batches - 1
            with accumulating(model) if waits else nullcontext():
                loss = (model(next(batches)) ** 2).mean()
                for _ in range(ARGUMENTS.backwards - 1):
                    loss.backward(retain_graph=True)
                loss.backward()
        delay("between")
        if ARGUMENTS.kind == "explicit":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        taken += 1
    if ARGUMENTS.until:
        print(f"rank {dist.get_rank()} took {taken} steps", flush=True)
    return loss


def digest(model, loss):
    learnt = hashlib.sha256(loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        learnt.update(local.detach().numpy().tobytes())
    return learnt.hexdigest()


def fork_ranks(world_size):
    """Return in each rank; the process they come from ends with the worst of their statuses."""
    import torch._dynamo  # noqa: F401  # every optimizer needs it, and it takes a second to import

    gc.freeze()  # what all ranks share is not looked through in each of them
    children = []
    for rank in range(world_size):
        child = os.fork()
        if not child:
            names = ("RANK", "LOCAL_RANK"), ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
            for pair, number in zip(names, (rank, world_size), strict=True):
                os.environ.update(dict.fromkeys(pair, str(number)))
            return {"init_method": f"file://{Path.cwd()}/meeting", "rank": rank}
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, statuses)))


def main():
    torch.set_num_threads(1)
    ranks = ARGUMENTS.fork_ranks
    meeting = {**fork_ranks(ranks), "world_size": ranks} if ranks else {}
    dist.init_process_group("gloo", **meeting)
    torch.manual_seed(0)
    model = spread(Net())
    optimizer = LateSGD(model.parameters(), lr=0.05)
    loss = train(model, optimizer)
    print(f"rank {dist.get_rank()}: {digest(model, loss)}", flush=True)
    dist.barrier()
    # DDP sits in reference cycles; a gloo group that it keeps alive until exit may abort there
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
