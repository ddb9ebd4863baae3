"""Speedrun style: an own Muon optimizer for matrices, AdamW for the rest, a generator of batches.

Both optimizers step in every iteration, so the count is the number of iterations.
"""

import torch
from torch import nn


def zeropower_via_newtonschulz5(g, steps=5):
    a, b, c = (3.4445, -4.7750, 2.0315)
    x = g / (g.norm() + 1e-7)
    if g.size(0) > g.size(1):
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.size(0) > g.size(1) else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p.grad))
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = zeropower_via_newtonschulz5(p.grad.lerp(buf, group["momentum"]))
                p.add_(update, alpha=-group["lr"])


class Model(nn.Module):
    def __init__(self, vocab=20, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([nn.Linear(dim, dim, bias=False) for _ in range(3)])
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + torch.relu(block(nn.functional.rms_norm(x, (x.size(-1),)))).square()
        return nn.functional.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())


def data_generator(tokens, batch_size, seq_len):
    while True:
        starts = torch.randint(len(tokens) - seq_len - 1, (batch_size,))
        window = torch.stack([tokens[s : s + seq_len + 1] for s in starts])
        yield window[:, :-1], window[:, 1:]


torch.manual_seed(0)
torch.set_num_threads(1)
num_iterations, val_every = 24, 8
train_loader = data_generator(torch.arange(500) % 20, 4, 12)
val_loader = data_generator(torch.arange(100) % 20, 4, 12)
model = Model()
optimizers = [
    torch.optim.AdamW([*model.embed.parameters(), *model.lm_head.parameters()], lr=3e-3),
    Muon(model.blocks.parameters()),
]
schedulers = [
    torch.optim.lr_scheduler.LambdaLR(opt, lambda it: 1 - it / num_iterations) for opt in optimizers
]

iterations = 0
for step in range(num_iterations + 1):
    last_step = step == num_iterations
    if last_step or step % val_every == 0:
        model.eval()
        with torch.no_grad():
            val_loss = sum(model(*next(val_loader)) for _ in range(3)) / 3
        print(f"step:{step}/{num_iterations} val_loss:{val_loss:.4f}")
        model.train()
    if last_step:
        break
    model(*next(train_loader)).backward()
    for opt, sched in zip(optimizers, schedulers, strict=True):
        opt.step()
        sched.step()
    model.zero_grad(set_to_none=True)
    iterations += 1

print(f"steps: {iterations}")
