"""A Learner with a home-made optimizer that is no torch.optim.Optimizer, as in fast.ai courses.

There is no optimizer torch knows: the count is the number of calls to its step().
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lion:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        self.params = list(params)
        self.lr, self.betas, self.weight_decay = lr, betas, weight_decay
        self.moments = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        beta1, beta2 = self.betas
        for param, moment in zip(self.params, self.moments, strict=True):
            if param.grad is None:
                continue
            param.mul_(1 - self.lr * self.weight_decay)
            param.add_(torch.sign(moment.lerp(param.grad, 1 - beta1)), alpha=-self.lr)
            moment.lerp_(param.grad, 1 - beta2)

    def zero_grad(self):
        for param in self.params:
            param.grad = None


class Learner:
    def __init__(self, model, dls, loss_func, opt_func, lr):
        self.model, self.dls, self.loss_func = model, dls, loss_func
        self.opt = opt_func(model.parameters(), lr=lr)
        self.n_steps = 0

    def one_batch(self, batch, train):
        x, y = batch
        loss = self.loss_func(self.model(x), y)
        if train:
            loss.backward()
            self.opt.step()
            self.n_steps += 1
            self.opt.zero_grad()
        return loss.item()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            train = [self.one_batch(batch, True) for batch in self.dls[0]]
            self.model.eval()
            with torch.no_grad():
                valid = [self.one_batch(batch, False) for batch in self.dls[1]]
            print(epoch, sum(train) / len(train), sum(valid) / len(valid))


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(200, 12)
y = (x[:, 0] * x[:, 1] > 0).long()
dls = (
    DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True),
    DataLoader(TensorDataset(x[160:], y[160:]), batch_size=20),
)
learn = Learner(
    nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)),
    dls,
    nn.CrossEntropyLoss(),
    Lion,
    1e-3,
)
learn.fit(3)
print(f"steps: {learn.n_steps}")
