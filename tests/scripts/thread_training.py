"""A custom training loop in a background thread while the main thread watches its progress."""

import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TrainingThread(threading.Thread):
    def __init__(self, model, loader, epochs, reports):
        super().__init__(name="trainer")
        self.model, self.loader, self.epochs, self.reports = model, loader, epochs, reports
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.criterion = nn.MSELoss()
        self.steps = 0

    def run(self):
        try:
            for epoch in range(self.epochs):
                for x, y in self.loader:
                    self.optimizer.zero_grad()
                    loss = self.criterion(self.model(x), y)
                    loss.backward()
                    self.optimizer.step()
                    self.steps += 1
                self.reports.put((epoch, loss.item()))
        finally:
            self.reports.put(None)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(160, 5)
    loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=16, shuffle=True)
    reports = queue.Queue()
    worker = TrainingThread(
        nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)), loader, 3, reports
    )
    worker.start()
    while (report := reports.get()) is not None:
        print("epoch {} loss {:.4f}".format(*report), flush=True)
    worker.join()
    print(f"steps: {worker.steps}")


if __name__ == "__main__":
    main()
