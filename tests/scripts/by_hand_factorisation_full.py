"""Matrix factorisation of one dense matrix with raw tensors, a hand-written update and no loader.

There is no optimizer object: the count is the number of updates.
"""

import torch


def factorise(matrix, mask, rank=3, iterations=30, lr=0.05, momentum=0.8):
    rows, columns = matrix.shape
    left = (torch.rand(rows, rank) - 0.5).requires_grad_(True)
    right = (torch.rand(rank, columns) - 0.5).requires_grad_(True)
    velocity = [torch.zeros_like(left), torch.zeros_like(right)]
    count = 0
    for iteration in range(iterations):
        error = (left @ right - matrix)[mask].pow(2).mean()
        error.backward()
        for factor, v in zip((left, right), velocity, strict=True):
            v.mul_(momentum).add_(factor.grad)
            factor.data -= lr * v
            factor.grad.zero_()
        count += 1
        if iteration % 10 == 0:
            print(f"iteration {iteration}: error {error.item():.4f}")
    return left.detach(), right.detach(), count


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    truth = torch.randn(30, 3) @ torch.randn(3, 20)
    known = torch.rand(30, 20) < 0.7
    w, h, n = factorise(truth, known)
    print(f"held-out error {(w @ h - truth)[~known].pow(2).mean().item():.4f}")
    print(f"steps: {n}")
