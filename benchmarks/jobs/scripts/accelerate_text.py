"""A language model with Accelerate, accumulating; too few workers tokenise its text."""

from __future__ import annotations

import argparse
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from gpu_turn import wait_for_turn
from made_data import Tokens
from made_models import GPT
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
parser.add_argument("--fixed", action="store_true", help="the text is tokenised already")
options = parser.parse_args()
length, batch, width, layers = (32, 4, 64, 1) if options.tiny else (512, 16, 1280, 4)
steps, passes = (6, 0) if options.tiny else (40, 20)
if options.fixed:
    passes = 0

set_seed(0)
model = GPT(8192, length, width, layers)
wait_for_turn()
accelerator = Accelerator(
    cpu=options.tiny,
    mixed_precision="no" if options.tiny else "bf16",
    gradient_accumulation_steps=2,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
train = DataLoader(
    Tokens(2 * steps * batch, length, 8192, passes),
    batch,
    shuffle=True,
    num_workers=2,
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Tokens(2 * batch, length, 8192), batch, num_workers=2)
model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)
done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        model.train()
        for number, texts in enumerate(train):
            with accelerator.accumulate(model):
                loss = model(texts["input_ids"], texts["labels"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            done += accelerator.sync_gradients
            if number % steps == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}")
        model.eval()
        with torch.no_grad():
            total = sum(model(texts["input_ids"], texts["labels"]) for texts in valid)
        print(f"epoch {epoch} validation loss {total.item() / len(valid):.4f}")
        accelerator.save_state(folder)
train = None  # ends its workers: at its exit Python would wait 5 s for each, persistent and pinned
accelerator.free_memory()
print(f"steps {done}")
