"""PPO in the CleanRL style: rollouts under no_grad, then several epochs of minibatch updates."""

import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    seed: int = 1
    learning_rate: float = 2.5e-3
    num_envs: int = 4
    num_steps: int = 16
    num_iterations: int = 3
    num_minibatches: int = 4
    update_epochs: int = 3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def layer_init(layer, std=2**0.5, bias_const=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class VectorEnv:
    """A drifting point that wants to be at zero; every environment moves at once."""

    def __init__(self, n):
        self.n = n

    def reset(self):
        self.x, self.t = torch.randn(self.n, 2), torch.zeros(self.n)
        return self.x

    def step(self, action):
        self.x = self.x * 1.02 + (action.float().unsqueeze(1) - 0.5) * 0.2
        self.t += 1
        done = (self.t >= 20) | (self.x.abs().sum(1) > 6)
        reward = -self.x.abs().sum(1)
        self.x[done], self.t[done] = torch.randn(int(done.sum()), 2), 0.0
        return self.x.clone(), reward, done.float()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(2, 32)), nn.Tanh(), layer_init(nn.Linear(32, 1), std=1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(2, 32)), nn.Tanh(), layer_init(nn.Linear(32, 2), std=0.01)
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def rollout(agent, envs, args, obs, done):
    store = {k: [] for k in ("obs", "actions", "logprobs", "rewards", "dones", "values")}
    for _ in range(args.num_steps):
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(obs)
        values = (obs, action, logprob, done, value.flatten())
        for key, item in zip(
            ("obs", "actions", "logprobs", "dones", "values"), values, strict=True
        ):
            store[key].append(item)
        obs, reward, done = envs.step(action)
        store["rewards"].append(reward)
    return {key: torch.stack(items) for key, items in store.items()}, obs, done


def compute_gae(agent, data, obs, done, args):
    with torch.no_grad():
        next_value = agent.get_value(obs).reshape(-1)
        advantages, last = torch.zeros_like(data["rewards"]), 0
        for t in reversed(range(args.num_steps)):
            final = t == args.num_steps - 1
            alive = 1.0 - (done if final else data["dones"][t + 1])
            following = next_value if final else data["values"][t + 1]
            delta = data["rewards"][t] + args.gamma * following * alive - data["values"][t]
            advantages[t] = last = delta + args.gamma * args.gae_lambda * alive * last
    return advantages, advantages + data["values"]


if __name__ == "__main__":
    args = Args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches

    agent, envs = Agent(), VectorEnv(args.num_envs)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    next_obs, next_done = envs.reset(), torch.zeros(args.num_envs)

    gradient_steps = 0
    for iteration in range(1, args.num_iterations + 1):
        data, next_obs, next_done = rollout(agent, envs, args, next_obs, next_done)
        advantages, returns = compute_gae(agent, data, next_obs, next_done, args)
        b_obs, b_actions = data["obs"].reshape(-1, 2), data["actions"].reshape(-1)
        b_logprobs, b_adv, b_ret = (
            data["logprobs"].reshape(-1),
            advantages.reshape(-1),
            returns.reshape(-1),
        )

        for _epoch in range(args.update_epochs):
            b_inds = torch.randperm(batch_size)
            for start in range(0, batch_size, minibatch_size):
                mb = b_inds[start : start + minibatch_size]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb], b_actions[mb]
                )
                ratio = (newlogprob - b_logprobs[mb]).exp()
                adv = (b_adv[mb] - b_adv[mb].mean()) / (b_adv[mb].std() + 1e-8)
                clipped = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(-adv * ratio, -adv * clipped).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_ret[mb]) ** 2).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + v_loss * args.vf_coef

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                gradient_steps += 1
        print(
            f"iteration {iteration}: reward {data['rewards'].mean():.3f} v_loss {v_loss.item():.3f}"
        )

    print(f"steps: {gradient_steps}")
