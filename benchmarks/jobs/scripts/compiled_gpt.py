"""A compiled GPT whose batches a function of the script puts together, one sequence at a time.

That takes the host far longer than a step takes the GPU, also where the host is fast.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from gpu_turn import wait_for_turn
from made_models import GPT

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
parser.add_argument("--fixed", action="store_true", help="all batches are on the device already")
options = parser.parse_args()
length, batch, width, layers = (32, 4, 64, 1) if options.tiny else (256, 64, 768, 6)
steps = 12 if options.tiny else 200
device = "cpu" if options.tiny else "cuda"

torch.manual_seed(0)
text = np.random.default_rng(0).integers(0, 8192, 1_000_000).astype(np.uint16)
model = GPT(8192, length, width, layers)
wait_for_turn()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
compiled = torch.compile(model, backend="eager" if options.tiny else "inductor")


def get_batch(generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut random sequences out of the text."""
    starts = generator.integers(0, len(text) - length - 1, batch)
    inputs = torch.stack([torch.from_numpy(text[s : s + length].astype(np.int64)) for s in starts])
    targets = torch.stack(
        [torch.from_numpy(text[s + 1 : s + 1 + length].astype(np.int64)) for s in starts]
    )
    for row in range(batch):  # a word left out here and there, for a sturdier model
        hidden = [p for p in range(length) if sum(generator.random() for _ in range(4)) < 0.8]
        inputs[row, hidden] = 0
    return inputs.to(device), targets.to(device)


def autocast() -> torch.autocast:
    return torch.autocast(device, torch.bfloat16, enabled=not options.tiny)


generator = np.random.default_rng(1)
kept = [get_batch(generator) for _ in range(8)] if options.fixed else []
with tempfile.TemporaryDirectory() as folder:
    for step in range(steps):
        inputs, targets = kept[step % 8] if kept else get_batch(generator)
        with autocast():
            loss = compiled(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % (steps // 6) == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step % (steps // 2) == steps // 2 - 1:
            model.eval()
            with torch.no_grad(), autocast():  # five batches are not worth compiling for
                checked = [model(*get_batch(generator)).item() for _ in range(5)]
            print(f"step {step} validation loss {sum(checked) / 5:.4f}")
            torch.save(model.state_dict(), Path(folder) / "model.pt")
            model.train()
print(f"steps {steps}")
