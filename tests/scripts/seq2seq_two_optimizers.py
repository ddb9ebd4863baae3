"""The translation tutorial's trainIters: random pairs, no loader, encoder and decoder optimizers.

Both optimizers step in every iteration, so the count is the number of iterations.
"""

import random
import time

import torch
from torch import nn, optim

SOS_token, EOS_token, MAX_LENGTH = 0, 1, 8
teacher_forcing_ratio = 0.5
torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)

    def forward(self, token, hidden):
        embedded = self.embedding(token).view(1, 1, -1)
        return self.gru(embedded, hidden)

    def init_hidden(self):
        return torch.zeros(1, 1, self.hidden_size)


class DecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, token, hidden):
        output = torch.relu(self.embedding(token).view(1, 1, -1))
        output, hidden = self.gru(output, hidden)
        return torch.log_softmax(self.out(output[0]), dim=1), hidden


def random_pair():
    words = torch.randint(2, 10, (random.randint(2, MAX_LENGTH - 1), 1))
    return torch.cat([words, torch.tensor([[EOS_token]])]), torch.cat(
        [words.flip(0), torch.tensor([[EOS_token]])]
    )


def train(input_tensor, target_tensor, encoder, decoder, enc_optimizer, dec_optimizer, criterion):
    hidden = encoder.init_hidden()
    enc_optimizer.zero_grad()
    dec_optimizer.zero_grad()
    loss = 0
    for ei in range(input_tensor.size(0)):
        _, hidden = encoder(input_tensor[ei], hidden)
    decoder_input = torch.tensor([[SOS_token]])
    if random.random() < teacher_forcing_ratio:
        for di in range(target_tensor.size(0)):
            output, hidden = decoder(decoder_input, hidden)
            loss += criterion(output, target_tensor[di])
            decoder_input = target_tensor[di]
    else:
        for di in range(target_tensor.size(0)):
            output, hidden = decoder(decoder_input, hidden)
            decoder_input = output.topk(1)[1].squeeze().detach()
            loss += criterion(output, target_tensor[di])
            if decoder_input.item() == EOS_token:
                break
    loss.backward()
    enc_optimizer.step()
    dec_optimizer.step()
    return loss.item() / target_tensor.size(0)


def train_iters(encoder, decoder, n_iters, print_every=10, learning_rate=0.01):
    start = time.time()
    print_loss_total = 0
    encoder_optimizer = optim.SGD(encoder.parameters(), lr=learning_rate)
    decoder_optimizer = optim.SGD(decoder.parameters(), lr=learning_rate)
    training_pairs = [random_pair() for _ in range(n_iters)]
    criterion = nn.NLLLoss()
    done = 0
    for iteration in range(1, n_iters + 1):
        pair = training_pairs[iteration - 1]
        print_loss_total += train(
            *pair, encoder, decoder, encoder_optimizer, decoder_optimizer, criterion
        )
        done += 1
        if iteration % print_every == 0:
            print(f"{time.time() - start:.1f}s ({iteration}) {print_loss_total / print_every:.4f}")
            print_loss_total = 0
    return done


if __name__ == "__main__":
    iterations = train_iters(EncoderRNN(10, 16), DecoderRNN(16, 10), 30)
    print(f"steps: {iterations}")
