"""A whole training step captured in one CUDA graph, and replayed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from made_data import Tokens
from made_models import GPT
from torch.utils.data import DataLoader

length, batch, steps = 256, 32, 100
torch.manual_seed(0)
model = GPT(8192, length, 512, 6).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=True)
train = DataLoader(
    Tokens(steps * batch, length, 8192),
    batch,
    shuffle=True,
    num_workers=8,
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Tokens(2 * batch, length, 8192), batch, num_workers=2)
ids = torch.zeros(batch, length, dtype=torch.long, device="cuda")


def train_step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loss = model(ids, ids)
    loss.backward()
    optimizer.step()
    return loss


beside = torch.cuda.Stream()
beside.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(beside):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(beside)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured_loss = train_step()

done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        for number, texts in enumerate(train):
            ids.copy_(texts["input_ids"], non_blocking=True)
            graph.replay()
            done += 1
            if number % (steps // 3) == 0:
                print(f"epoch {epoch} batch {number} loss {captured_loss.item():.4f}")
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for texts in valid:
                model(texts["input_ids"].cuda(), texts["labels"].cuda())
        model.train()
        torch.save(model.state_dict(), Path(folder) / "model.pt")
print(f"steps {done + 3}")
