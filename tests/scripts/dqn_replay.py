"""DQN in the style of the tutorial: target network, replay memory, one update per action."""

import math
import random
from collections import deque, namedtuple

import torch
from torch import nn, optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))

BATCH_SIZE, GAMMA, EPS_START, EPS_END, EPS_DECAY, TAU, LR = 16, 0.99, 0.9, 0.05, 50, 0.005, 1e-3
torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 32)
        self.layer2 = nn.Linear(32, n_actions)

    def forward(self, x):
        return self.layer2(torch.relu(self.layer1(x)))


class Balance:
    """A falling stick in one dimension."""

    def reset(self):
        self.angle, self.speed, self.age = random.uniform(-0.1, 0.1), 0.0, 0
        return self.angle, self.speed

    def step(self, action):
        self.speed += 0.1 * self.angle + (0.05 if action == 1 else -0.05)
        self.angle += self.speed
        self.age += 1
        return (self.angle, self.speed), 1.0, abs(self.angle) > 0.5, self.age >= 12


env = Balance()
policy_net, target_net = DQN(2, 2), DQN(2, 2)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(1000)
steps_done = 0
updates = 0


def select_action(state):
    global steps_done
    threshold = EPS_END + (EPS_START - EPS_END) * math.exp(-1.0 * steps_done / EPS_DECAY)
    steps_done += 1
    if random.random() > threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]])


def optimize_model():
    global updates
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE), strict=True))
    mask = torch.tensor([s is not None for s in batch.next_state])
    following = [s for s in batch.next_state if s is not None]
    state_action_values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_state_values = torch.zeros(BATCH_SIZE)
    if following:
        with torch.no_grad():
            next_state_values[mask] = target_net(torch.cat(following)).max(1).values
    expected = next_state_values * GAMMA + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    updates += 1


for i_episode in range(6):
    state = torch.tensor([env.reset()])
    done = False
    while not done:
        action = select_action(state)
        observation, reward, terminated, truncated = env.step(action.item())
        next_state = None if terminated else torch.tensor([observation])
        memory.push(state, action, next_state, torch.tensor([reward]))
        state = next_state
        optimize_model()
        target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
        for key in policy_state:
            target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
        target_net.load_state_dict(target_state)
        done = terminated or truncated
    print(f"episode {i_episode} lasted {env.age}")

print("Complete")
print(f"steps: {updates}")
