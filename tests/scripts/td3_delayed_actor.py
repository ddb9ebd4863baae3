"""TD3: twin critics every iteration, actor every second one, replay tensors instead of a loader.

The count is the number of critic iterations: a delayed actor update rides in the one that makes it.
"""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812


class Actor(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.l1 = nn.Linear(state_dim, 32)
        self.l2 = nn.Linear(32, action_dim)

    def forward(self, state):
        return torch.tanh(self.l2(F.relu(self.l1(state))))


class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.l1 = nn.Linear(state_dim + action_dim, 32)
        self.l2 = nn.Linear(32, 1)
        self.l3 = nn.Linear(state_dim + action_dim, 32)
        self.l4 = nn.Linear(32, 1)

    def forward(self, state, action):
        sa = torch.cat([state, action], 1)
        return self.l2(F.relu(self.l1(sa))), self.l4(F.relu(self.l3(sa)))

    def q1(self, state, action):
        return self.l2(F.relu(self.l1(torch.cat([state, action], 1))))


class Replay:
    def __init__(self, size=500):
        self.state = torch.randn(size, 3)
        self.action = torch.rand(size, 1) * 2 - 1
        self.next_state = self.state * 0.9 + 0.1 * self.action
        self.reward = -self.next_state.norm(dim=1, keepdim=True)

    def sample(self, batch_size):
        ind = torch.randint(0, len(self.state), (batch_size,))
        return self.state[ind], self.action[ind], self.next_state[ind], self.reward[ind]


class TD3:
    def __init__(self, state_dim, action_dim, discount=0.99, tau=0.005, policy_freq=2):
        self.actor = Actor(state_dim, action_dim)
        self.actor_target = copy.deepcopy(self.actor)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic = Critic(state_dim, action_dim)
        self.critic_target = copy.deepcopy(self.critic)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)
        self.discount, self.tau, self.policy_freq = discount, tau, policy_freq
        self.total_it = 0

    def train(self, replay_buffer, batch_size=32):
        state, action, next_state, reward = replay_buffer.sample(batch_size)
        with torch.no_grad():
            noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
            next_action = (self.actor_target(next_state) + noise).clamp(-1, 1)
            target_q1, target_q2 = self.critic_target(next_state, next_action)
            target_q = reward + self.discount * torch.min(target_q1, target_q2)
        current_q1, current_q2 = self.critic(state, action)
        critic_loss = F.mse_loss(current_q1, target_q) + F.mse_loss(current_q2, target_q)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        self.total_it += 1

        if self.total_it % self.policy_freq == 0:
            actor_loss = -self.critic.q1(state, self.actor(state)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            for net, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
                for param, slow in zip(net.parameters(), target.parameters(), strict=True):
                    slow.data.copy_(self.tau * param.data + (1 - self.tau) * slow.data)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy, replay_buffer = TD3(3, 1), Replay()
    for t in range(30):
        policy.train(replay_buffer)
        if t % 10 == 0:
            print(f"Total T: {t + 1}")
    print(f"steps: {policy.total_it}")
