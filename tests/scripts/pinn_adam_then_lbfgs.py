"""Physics-informed network: residual by autograd.grad(create_graph), Adam first, LBFGS to finish.

The count is the Adam steps plus the LBFGS step calls.
"""

import torch


class DNN(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        stages = []
        for i in range(len(layers) - 2):
            stages += [torch.nn.Linear(layers[i], layers[i + 1]), torch.nn.Tanh()]
        self.layers = torch.nn.Sequential(*stages, torch.nn.Linear(layers[-2], layers[-1]))

    def forward(self, x):
        return self.layers(x)


class PhysicsInformedNN:
    """Solve u'' = -sin(x) on [0, pi] with u(0) = u(pi) = 0."""

    def __init__(self):
        self.x_f = torch.linspace(0, torch.pi, 40).view(-1, 1).requires_grad_(True)
        self.x_b = torch.tensor([[0.0], [torch.pi]])
        self.dnn = DNN([1, 16, 16, 1])
        self.optimizer_adam = torch.optim.Adam(self.dnn.parameters(), lr=1e-2)
        self.optimizer = torch.optim.LBFGS(
            self.dnn.parameters(), lr=1.0, max_iter=8, line_search_fn="strong_wolfe"
        )
        self.evaluations = 0
        self.steps = 0

    def net_u(self, x):
        return self.dnn(x)

    def net_f(self, x):
        u = self.net_u(x)
        u_x = torch.autograd.grad(u, x, torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)[0]
        return u_xx + torch.sin(x)

    def loss_func(self):
        self.optimizer.zero_grad()
        loss = self.net_f(self.x_f).pow(2).mean() + self.net_u(self.x_b).pow(2).mean()
        loss.backward()
        self.evaluations += 1
        if self.evaluations % 20 == 0:
            print(f"evaluation {self.evaluations}, loss {loss.item():.3e}")
        return loss

    def train(self, adam_iterations, lbfgs_calls):
        self.dnn.train()
        for _ in range(adam_iterations):
            self.loss_func()
            self.optimizer_adam.step()
            self.steps += 1
        for _ in range(lbfgs_calls):
            self.optimizer.step(self.loss_func)
            self.steps += 1


torch.manual_seed(1234)
torch.set_num_threads(1)
model = PhysicsInformedNN()
model.train(adam_iterations=20, lbfgs_calls=5)
print(f"steps: {model.steps}")
