"""Trains small models on several ranks over gloo, in the ways large models are trained.

A script of its own, for `traceml run`; each rank prints a digest of what it has learnt, so that a
run with tracing can be compared with one without. It forks its ranks after torch has been imported
once for all of them. Work is planted as sleeping, which no shared core makes longer.
"""

import argparse
import gc
import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 16
KINDS = (
    *("fsdp_and_tensor_parallel", "pipeline", "pipeline_by_hand"),
    *("sequence_lengths", "experts"),
)


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--delay-ms", type=float, default=120.0)
    parser.add_argument("--slow-stage", type=int, default=-1, help="of the pipeline: more layers")
    parser.add_argument("--schedule", choices=("GPipe", "1F1B"), default="1F1B")
    parser.add_argument("--replicas", type=int, default=1, help="of the pipeline")
    parser.add_argument("--long-rank", type=int, default=-1, help="its sequences are longer")
    parser.add_argument("--takes-turns", action="store_true", help="the long rank changes")
    parser.add_argument("--busy-expert", type=int, default=-1, help="most tokens go there")
    return parser.parse_args()


ARGUMENTS = options()


class LongerInBackward(torch.autograd.Function):
    """Takes its time in the backward pass."""

    @staticmethod
    def forward(context, inputs, milliseconds):
        context.milliseconds = milliseconds
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.milliseconds / 1e3)
        return gradient, None


class Block(nn.Module):
    def __init__(self, forward_ms=0.0, backward_ms=0.0):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.forward_ms, self.backward_ms = forward_ms, backward_ms

    def forward(self, inputs):
        time.sleep(self.forward_ms / 1e3)
        hidden = LongerInBackward.apply(inputs, self.backward_ms)
        return inputs + self.down(torch.tanh(self.up(hidden)))


def digest(model, losses):
    learnt = hashlib.sha256(torch.tensor(losses).numpy().tobytes())
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        learnt.update(local.detach().numpy().tobytes())
    return learnt.hexdigest()


def delay_if_late():
    if dist.get_rank() == ARGUMENTS.late_rank:
        time.sleep(ARGUMENTS.delay_ms / 1e3)


def train_fsdp_and_tensor_parallel():
    """Layers split over pairs of ranks, parameters sharded over the pairs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (ARGUMENTS.ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    losses = []
    for _ in range(ARGUMENTS.steps):
        inputs = torch.randn(8, WIDTH, generator=generator)
        loss = (model(inputs) ** 2).mean()
        loss.backward()
        delay_if_late()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def train_pipeline():
    """One stage per rank; with replicas, as many pipelines beside each other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stages = ARGUMENTS.ranks // ARGUMENTS.replicas
    mesh = init_device_mesh("cpu", (ARGUMENTS.replicas, stages), mesh_dim_names=("dp", "pp"))
    place, stage_index = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
    layer_ms = 5.0
    layers = 4 if stage_index == ARGUMENTS.slow_stage else 1
    if dist.get_rank() == ARGUMENTS.late_rank:
        layer_ms *= 10
    model = nn.Sequential(*(Block(layer_ms, layer_ms) for _ in range(layers)))
    stage = PipelineStage(
        model, stage_index, stages, torch.device("cpu"), group=mesh.get_group("pp")
    )
    kind = ScheduleGPipe if ARGUMENTS.schedule == "GPipe" else Schedule1F1B
    micro_batches = 4
    schedule = kind(stage, micro_batches, loss_fn=lambda out, target: ((out - target) ** 2).mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(place)
    losses = []
    for _ in range(ARGUMENTS.steps):
        inputs = torch.randn(2 * micro_batches, WIDTH, generator=generator)
        target = torch.zeros(2 * micro_batches, WIDTH)
        given = (inputs,) if stage_index == 0 else ()
        if stage_index == stages - 1:
            found = []
            schedule.step(*given, target=target, losses=found)
            losses.append(sum(each.item() for each in found))
        else:
            schedule.step(*given)
        if ARGUMENTS.replicas > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


def train_pipeline_by_hand():
    """Two stages that send and receive themselves, and say nothing of it; the second has more
    layers."""
    rank, half = dist.get_rank(), ARGUMENTS.ranks // 2
    is_last = rank >= half
    other = rank - half if is_last else rank + half
    alike = [dist.new_group(range(half)), dist.new_group(range(half, ARGUMENTS.ranks))][is_last]
    model = nn.Sequential(*(Block(30.0) for _ in range(3 if is_last else 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(ARGUMENTS.steps):
        inputs = torch.ones(4, WIDTH)
        if is_last:
            dist.recv(inputs, other)
            inputs.requires_grad_()
            loss = (model(inputs) ** 2).mean()
            loss.backward()
            dist.send(inputs.grad, other)
            losses.append(loss.item())
        else:
            out = model(inputs)
            dist.send(out.detach(), other)
            gradient = torch.empty_like(out)
            dist.recv(gradient, other)
            out.backward(gradient)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=alike)
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


MS_PER_TOKEN = 0.2


class Texts(Dataset):
    """Sequences of token numbers; those of one rank are longer, or of one after the other."""

    def __len__(self):
        return 4 * ARGUMENTS.steps

    def __getitem__(self, index):
        step, rank = index // 4, dist.get_rank()
        long_rank = step % ARGUMENTS.ranks if ARGUMENTS.takes_turns else ARGUMENTS.long_rank
        generator = torch.Generator().manual_seed(index * 64 + rank)
        length = int(torch.randint(20, 30, (), generator=generator))
        if rank == long_rank:
            length *= 6
        return torch.randint(0, 100, (length,), generator=generator)


def padded(texts):
    return nn.utils.rnn.pad_sequence(texts, batch_first=True)


class Reader(nn.Module):
    """Works as long as its sequences are."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.block = Block()

    def forward(self, tokens):
        time.sleep(tokens.numel() * MS_PER_TOKEN / 1e3)
        return self.block(self.embedding(tokens)).mean(dim=(1, 2))


def train_sequence_lengths():
    model = nn.parallel.DistributedDataParallel(Reader())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for tokens in DataLoader(Texts(), batch_size=4, collate_fn=padded):
        delay_if_late()
        loss = (model(tokens) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


class Exchange(torch.autograd.Function):
    """Sends each expert's tokens to its rank; backward sends the gradients back."""

    @staticmethod
    def forward(context, tokens, sent, received):
        context.splits = sent, received
        arrived = tokens.new_empty(sum(received), tokens.shape[1])
        dist.all_to_all_single(arrived, tokens.contiguous(), received, sent)
        return arrived

    @staticmethod
    def backward(context, gradient):
        sent, received = context.splits
        back = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(back, gradient.contiguous(), sent, received)
        return back, None, None


class Experts(nn.Module):
    """One expert per rank; the router is fixed, so that a busy expert stays so."""

    def __init__(self):
        super().__init__()
        self.expert = Block()
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        world = dist.get_world_size()
        even = len(tokens) // world
        sent = [even] * world
        if ARGUMENTS.busy_expert >= 0:
            sent = [even // 4] * world
            sent[ARGUMENTS.busy_expert] += len(tokens) - sum(sent)
        sizes = torch.tensor(sent)
        received = torch.empty_like(sizes)
        dist.all_to_all_single(received, sizes)
        received = received.tolist()
        arrived = Exchange.apply(tokens, sent, received)
        time.sleep(len(arrived) * MS_PER_TOKEN / 1e3)
        return self.head(Exchange.apply(self.expert(arrived), received, sent))


def train_experts():
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(ARGUMENTS.steps):
        loss = (model(torch.randn(64 * ARGUMENTS.ranks, WIDTH, generator=generator)) ** 2).mean()
        loss.backward()
        for parameter in model.head.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


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
            return rank
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, statuses)))


def main():
    torch.set_num_threads(1)
    rank = fork_ranks(ARGUMENTS.ranks)
    meeting = f"file://{Path.cwd()}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ARGUMENTS.ranks)
    torch.manual_seed(0)
    model, losses = globals()[f"train_{ARGUMENTS.kind}"]()
    print(f"rank {rank}: {digest(model, losses)}", flush=True)
    dist.barrier()
    del model
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
