"""REINFORCE in the style of pytorch/examples: one episode by repeated forwards, one update each."""

import argparse
from itertools import count

import torch
from torch import nn, optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="REINFORCE example")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--episodes", type=int, default=25)
args = parser.parse_args()

torch.manual_seed(args.seed)
torch.set_num_threads(1)


class Corridor:
    """Walk right to the end of a corridor; each move costs a little."""

    def __init__(self, length=6, limit=30):
        self.length, self.limit = length, limit

    def reset(self):
        self.position, self.moves = 0, 0
        return self.observe()

    def observe(self):
        return torch.tensor([self.position / self.length, self.moves / self.limit])

    def step(self, action):
        self.position = max(0, self.position + (1 if action == 1 else -1))
        self.moves += 1
        done = self.position >= self.length or self.moves >= self.limit
        return self.observe(), 1.0 if self.position >= self.length else -0.05, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 32)
        self.affine2 = nn.Linear(32, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.affine1(x))), dim=-1)


env = Corridor()
policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = 1e-8


def select_action(state):
    m = Categorical(policy(state.unsqueeze(0)))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    running, returns = 0.0, []
    for r in policy.rewards[::-1]:
        running = r + args.gamma * running
        returns.insert(0, running)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    policy_loss = [-lp * ret for lp, ret in zip(policy.saved_log_probs, returns, strict=True)]
    optimizer.zero_grad()
    torch.cat(policy_loss).sum().backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


def main():
    updates = 0
    for i_episode in range(args.episodes):
        state, total = env.reset(), 0.0
        for t in count(1):  # noqa: B007
            state, reward, done = env.step(select_action(state))
            policy.rewards.append(reward)
            total += reward
            if done:
                break
        finish_episode()
        updates += 1
        if i_episode % 10 == 0:
            print(f"Episode {i_episode}\tLast reward: {total:.2f}\tLength: {t}")
    print(f"steps: {updates}")


if __name__ == "__main__":
    main()
