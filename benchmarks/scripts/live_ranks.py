"""Eight-rank training that goes on until it is told to stop; rank 0 says when each step ended.

usage: live_ranks.py FOLDER STEP_SECONDS
Each line of FOLDER/steps is the monotonic clock at a step's end; FOLDER/stop ends the training.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
folder, step_s = Path(sys.argv[1]), float(sys.argv[2])
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch, go_on = torch.randn(8, 16), torch.ones(1)

with (folder / f"steps-{dist.get_rank()}").open("w", buffering=1) as said:
    while go_on.item():
        began = time.monotonic()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            go_on.fill_(not (folder / "stop").exists())
        dist.broadcast(go_on, 0)
        time.sleep(max(0.0, began + step_s - time.monotonic()))
        said.write(f"{time.monotonic()}\n")
dist.destroy_process_group()
