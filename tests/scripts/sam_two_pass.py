"""Sharpness-aware minimisation: an optimizer around an optimizer, two forward-backwards per batch.

SAM's second_step calls the base optimizer's step, so one batch is one step: the count is batches.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def _grad_norm(self):
        norms = [
            p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None
        ]
        return torch.norm(torch.stack(norms), p=2)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(160, 10), torch.randint(0, 3, (160,))
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    criterion = nn.CrossEntropyLoss()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    batches = 0
    for epoch in range(2):  # the explicit form of the README
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.first_step(zero_grad=True)
            criterion(model(inputs), targets).backward()
            optimizer.second_step(zero_grad=True)
            batches += 1
        print(f"epoch {epoch}: {loss.item():.4f}")
    for inputs, targets in loader:  # and the closure form

        def closure(inputs=inputs, targets=targets):
            loss = criterion(model(inputs), targets)
            loss.backward()
            return loss

        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step(closure)
        optimizer.zero_grad()
        batches += 1
    print(f"closure epoch: {loss.item():.4f}")
    print(f"steps: {batches}")


if __name__ == "__main__":
    main()
