"""A whole training step captured in one CUDA graph, and replayed."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_turn import wait_for_turn
from made_data import Tokens
from made_models import GPT
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU, and not captured")
options = parser.parse_args()
length, batch, width, layers, steps = (32, 4, 64, 1, 6) if options.tiny else (256, 32, 768, 6, 80)
device = "cpu" if options.tiny else "cuda"

torch.manual_seed(0)
model = GPT(8192, length, width, layers)
wait_for_turn()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=not options.tiny)
train = DataLoader(
    Tokens(steps * batch, length, 8192),
    batch,
    shuffle=True,
    num_workers=4,  # the first step that waits for them is no warm-up: they must start quickly
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Tokens(2 * batch, length, 8192), batch, num_workers=2)
ids = torch.zeros(batch, length, dtype=torch.long, device=device)  # the graph reads from it


def train_step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16, cache_enabled=False):
        loss = model(ids, ids)
    loss.backward()
    optimizer.step()
    return loss


def captured() -> tuple[Callable[[], None], torch.Tensor]:
    """What replays a step, and the loss that each replay writes; three steps warm up before."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            train_step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train_step()
    return graph.replay, loss


def uncaptured() -> tuple[Callable[[], None], torch.Tensor]:
    """The same without a graph."""
    kept = torch.zeros(())

    def run() -> None:
        kept.copy_(train_step().detach())

    for _ in range(3):
        run()
    return run, kept


replay, last_loss = uncaptured() if options.tiny else captured()

done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        for number, texts in enumerate(train):
            ids.copy_(texts["input_ids"], non_blocking=True)
            replay()
            done += 1
            if number % (steps // 3) == 0:
                print(f"epoch {epoch} batch {number} loss {last_loss.item():.4f}")
        model.eval()
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            for texts in valid:
                model(texts["input_ids"].to(device), texts["labels"].to(device))
        model.train()
        torch.save(model.state_dict(), Path(folder) / "model.pt")
del train  # ends its workers: at its exit Python would wait 5 s for each, persistent and pinned
print(f"steps {done + 3}")
