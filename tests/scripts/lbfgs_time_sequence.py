"""The time-sequence example: full-batch LBFGS in double precision over an LSTMCell, no loader.

The count is the number of optimizer.step calls, each of which evaluates the closure many times.
"""

import torch
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 8)
        self.linear = nn.Linear(8, 1)

    def forward(self, inputs, future=0):
        outputs = []
        h_t = torch.zeros(inputs.size(0), 8, dtype=torch.double)
        c_t = torch.zeros(inputs.size(0), 8, dtype=torch.double)
        for input_t in inputs.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            output = self.linear(h_t)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            output = self.linear(h_t)
            outputs += [output]
        return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    phase = torch.rand(8, 1, dtype=torch.double) * 6
    data = torch.sin(torch.arange(20, dtype=torch.double) / 3 + phase)
    train_input, train_target = data[3:, :-1], data[3:, 1:]
    test_input, test_target = data[:3, :-1], data[:3, 1:]
    seq = Sequence().double()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=5)
    steps = 0
    for i in range(12):
        print("STEP: ", i)

        def closure():
            optimizer.zero_grad()
            out = seq(train_input)
            loss = criterion(out, train_target)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        steps += 1
        with torch.no_grad():
            pred = seq(test_input, future=5)
            test_loss = criterion(pred[:, :-5], test_target)
            print(f"train loss: {loss.item():.5f} test loss: {test_loss.item():.5f}")
    print(f"steps: {steps}")
