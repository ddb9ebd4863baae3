"""Linear regression from scratch as in the textbooks: data_iter generator, own sgd function.

There is no optimizer object: the count is the number of sgd calls.
"""

import random

import torch


def synthetic_data(w, b, num_examples):
    x = torch.normal(0, 1, (num_examples, len(w)))
    y = torch.matmul(x, w) + b
    return x, (y + torch.normal(0, 0.01, y.shape)).reshape((-1, 1))


def data_iter(batch_size, features, labels):
    indices = list(range(len(features)))
    random.shuffle(indices)
    for i in range(0, len(indices), batch_size):
        batch_indices = torch.tensor(indices[i : i + batch_size])
        yield features[batch_indices], labels[batch_indices]


def linreg(x, w, b):
    return torch.matmul(x, w) + b


def squared_loss(y_hat, y):
    return (y_hat - y.reshape(y_hat.shape)) ** 2 / 2


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()


random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
features, labels = synthetic_data(torch.tensor([2, -3.4]), 4.2, 200)
w = torch.normal(0, 0.01, size=(2, 1), requires_grad=True)
b = torch.zeros(1, requires_grad=True)
lr, num_epochs, batch_size = 0.03, 2, 10

n = 0
for epoch in range(num_epochs):
    for X, y in data_iter(batch_size, features, labels):
        loss = squared_loss(linreg(X, w, b), y)
        loss.sum().backward()
        sgd([w, b], lr, batch_size)
        n += 1
    with torch.no_grad():
        train_l = squared_loss(linreg(features, w, b), labels)
        print(f"epoch {epoch + 1}, loss {float(train_l.mean()):f}")

print(f"steps: {n}")
