"""Character RNN fed by a plain Python generator, the hidden state detached and carried along."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the hounds. " * 12
CHARS = sorted(set(TEXT))
STOI = {c: i for i, c in enumerate(CHARS)}


class CharRNN(nn.Module):
    def __init__(self, tokens, n_hidden=32, n_layers=1):
        super().__init__()
        self.n_hidden, self.n_layers, self.tokens = n_hidden, n_layers, tokens
        self.lstm = nn.LSTM(tokens, n_hidden, n_layers, batch_first=True)
        self.fc = nn.Linear(n_hidden, tokens)

    def forward(self, x, hidden):
        out, hidden = self.lstm(x, hidden)
        return self.fc(out.reshape(-1, self.n_hidden)), hidden

    def init_hidden(self, batch_size):
        weight = next(self.parameters()).data
        return tuple(weight.new_zeros(self.n_layers, batch_size, self.n_hidden) for _ in range(2))


def get_batches(encoded, batch_size, seq_length):
    """Yield (input, target) windows that follow each other in the text."""
    n_batches = (len(encoded) - 1) // (batch_size * seq_length)
    keep = n_batches * batch_size * seq_length
    xs = encoded[:keep].view(batch_size, -1)
    ys = encoded[1 : keep + 1].view(batch_size, -1)
    for n in range(0, xs.size(1), seq_length):
        yield xs[:, n : n + seq_length], ys[:, n : n + seq_length]


def train(net, data, epochs=2, batch_size=4, seq_length=16, lr=0.01, clip=5, print_every=10):
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    split = int(len(data) * 0.9)
    data, val_data = data[:split], data[split:]
    counter = 0
    net.train()
    for e in range(epochs):
        h = net.init_hidden(batch_size)
        for x, y in get_batches(data, batch_size, seq_length):
            inputs = nn.functional.one_hot(x, net.tokens).float()
            h = tuple(each.data for each in h)
            net.zero_grad()
            output, h = net(inputs, h)
            loss = criterion(output, y.reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), clip)
            opt.step()
            counter += 1

            if counter % print_every == 0:
                val_h = net.init_hidden(batch_size)
                val_losses = []
                net.eval()
                for vx, vy in get_batches(val_data, batch_size, seq_length):
                    val_h = tuple(each.data for each in val_h)
                    out, val_h = net(nn.functional.one_hot(vx, net.tokens).float(), val_h)
                    val_losses.append(criterion(out, vy.reshape(-1)).item())
                net.train()
                val = sum(val_losses) / len(val_losses)
                print(f"Epoch: {e + 1}/{epochs}... Step: {counter}... Val Loss: {val:.4f}")
    return counter


net = CharRNN(len(CHARS))
total = train(net, torch.tensor([STOI[c] for c in TEXT]))
print(f"steps: {total}")
