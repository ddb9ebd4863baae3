"""A transformer, trained in one of the usual ways: fp32, checkpointed, compiled, accumulating."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from gpu_turn import wait_for_turn
from made_data import Tokens
from made_models import GPT
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
parser.add_argument("--compile-mode", default="", help="of torch.compile; not compiled without")
parser.add_argument("--checkpointing", action="store_true", help="compute activations again")
parser.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches per step")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=40, help="per epoch")
parser.add_argument("--reads-gradient-norms", action="store_true", help="one by one, on the host")
options = parser.parse_args()
length, width, layers = (32, 64, 1) if options.tiny else (512, 768, 8)
batch, device = (4, "cpu") if options.tiny else (options.batch, "cuda")

torch.manual_seed(0)
model = GPT(8192, length, width, layers, saves_memory=options.checkpointing)
wait_for_turn()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
net = torch.compile(model, mode=options.compile_mode) if options.compile_mode else model
count = options.steps * options.accumulate * batch
train = DataLoader(
    Tokens(count, length, 8192),
    batch,
    shuffle=True,
    num_workers=6,
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Tokens(2 * batch, length, 8192), batch, num_workers=2, pin_memory=True)


def loss_of(net: nn.Module, texts: dict[str, torch.Tensor]) -> torch.Tensor:
    ids = texts["input_ids"].to(device, non_blocking=True)
    lower = options.dtype == "bfloat16"
    with torch.autocast(device, torch.bfloat16) if lower else nullcontext():
        return net(ids, texts["labels"].to(device, non_blocking=True))


done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        model.train()
        for number, texts in enumerate(train, 1):
            loss = loss_of(net, texts) / options.accumulate
            loss.backward()
            if number % options.accumulate:
                continue
            if options.reads_gradient_norms:
                norms = [each.grad.norm().item() for each in model.parameters()]
                assert max(norms) < 1e6
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if done % (options.steps // 3) == 1:
                print(f"epoch {epoch} step {done} loss {loss.item() * options.accumulate:.4f}")
        model.eval()
        with torch.no_grad():  # two batches are not worth compiling for
            checked = [loss_of(model, texts).item() for texts in valid]
        print(f"epoch {epoch} validation loss {sum(checked) / len(checked):.4f}")
        torch.save(model.state_dict(), Path(folder) / "model.pt")
del train  # ends its workers: at its exit Python would wait 5 s for each, persistent and pinned
print(f"steps {done}")
