"""Accelerate with `TraceMLTracker`: each process that its launcher starts is a rank of one run."""

from __future__ import annotations

import torch
from accelerate import Accelerator

from traceml.integrations.accelerate import TraceMLTracker

accelerator = Accelerator(cpu=True, log_with=[TraceMLTracker(run_name="trained")])
accelerator.init_trackers("project", config={"lr": 0.01})
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.randn(48, 8), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for step, batch in enumerate(data, start=1):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.log({"loss": loss.item()}, step=step)
accelerator.save_state("state")
accelerator.end_training()
print(f"steps: {step}")
