"""Adversarial training: PGD attack with its own backward calls, then the usual update.

The attack's backward passes update no weights: the count is the optimizer steps.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def attack_pgd(model, x, y, epsilon=0.3, alpha=0.1, attack_iters=3):
    delta = torch.zeros_like(x).uniform_(-epsilon, epsilon).requires_grad_(True)
    for _ in range(attack_iters):
        loss = nn.functional.cross_entropy(model(x + delta), y)
        loss.backward()
        delta.data = (delta.data + alpha * delta.grad.detach().sign()).clamp(-epsilon, epsilon)
        delta.grad.zero_()
    return delta.detach()


def attack_fgsm(model, x, y, epsilon=0.3):
    x = x.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), x)
    return epsilon * grad.sign()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(160, 12)
    y = (x[:, :6].sum(1) > x[:, 6:].sum(1)).long()
    train_loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=8, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    steps = 0
    for epoch in range(2):
        model.train()
        for inputs, labels in train_loader:
            delta = attack_pgd(model, inputs, labels)
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs + delta), labels)
            loss.backward()
            opt.step()
            steps += 1

        # evaluation needs gradients of the input, so no no_grad around it
        model.eval()
        robust = 0
        for inputs, labels in test_loader:
            delta = attack_fgsm(model, inputs, labels)
            with torch.no_grad():
                robust += (model(inputs + delta).argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, robust {robust}/{len(test_loader.dataset)}")
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
