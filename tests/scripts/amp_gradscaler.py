"""GradScaler and autocast left in with enabled=False, and a DataParallel idle on a CPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"

net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
net = nn.DataParallel(net).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.001)
scaler = torch.amp.GradScaler(device, enabled=use_amp)
loss_fn = nn.MSELoss()

x = torch.randn(256, 16)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, pin_memory=use_amp)

n_steps = 0
for epoch in range(2):
    for data, target in loader:
        data = data.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            output = net(data)
            loss = loss_fn(output, target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
        scaler.step(opt)
        n_steps += 1
        scaler.update()
        opt.zero_grad()
    print(f"epoch {epoch} loss {loss.item():.4f}")

print(f"steps: {n_steps}")
