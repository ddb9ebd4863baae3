"""LSTM encoder and decoder as separate modules, teacher forcing, one optimizer over both."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, SOS, HIDDEN = 12, 0, 24


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, src):
        _, state = self.rnn(self.embedding(src))
        return state


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.fc_out = nn.Linear(HIDDEN, VOCAB)

    def forward(self, token, state):
        output, state = self.rnn(self.embedding(token.unsqueeze(1)), state)
        return self.fc_out(output.squeeze(1)), state


def train_batch(encoder, decoder, src, trg, criterion, teacher_forcing_ratio):
    state = encoder(src)
    token = torch.full((src.size(0),), SOS)
    loss = 0.0
    for t in range(trg.size(1)):
        output, state = decoder(token, state)
        loss = loss + criterion(output, trg[:, t])
        teacher_force = random.random() < teacher_forcing_ratio
        token = trg[:, t] if teacher_force else output.argmax(1)
    return loss / trg.size(1)


source = torch.randint(1, VOCAB, (128, 6))
loader = DataLoader(TensorDataset(source, source.flip(1)), batch_size=16, shuffle=True)
encoder, decoder = Encoder(), Decoder()
optimizer = torch.optim.Adam(list(encoder.parameters()) + list(decoder.parameters()), lr=5e-3)
criterion = nn.CrossEntropyLoss()

n_updates = 0
for epoch in range(3):
    encoder.train()
    decoder.train()
    epoch_loss = 0.0
    for src, trg in loader:
        optimizer.zero_grad()
        loss = train_batch(encoder, decoder, src, trg, criterion, teacher_forcing_ratio=0.5)
        loss.backward()
        nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        n_updates += 1
        epoch_loss += loss.item()
    print(f"Epoch: {epoch + 1:02} | Train Loss: {epoch_loss / len(loader):.3f}")

print(f"steps: {n_updates}")
