"""A training on Ray Train: two workers, on whichever machines the cluster has.

`traceml run -- python examples/launch/ray_train.py` traces the workers, with nothing changed here;
so does `--callback`, without `traceml run`.
"""

import argparse

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn


def train(config):
    model = ray.train.torch.prepare_model(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        optimizer.step()
    ray.train.report({"loss": loss.item()})


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--callback", action="store_true", help="where `traceml run` is not used")
    return parser.parse_args()


def main():
    arguments = options()
    callbacks = []
    if arguments.callback:
        from traceml.integrations.ray import TraceMLCallback

        callbacks.append(TraceMLCallback(run_name="ray-train"))
    ray.init()
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": arguments.steps},
        scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=arguments.use_gpu),
        run_config=RunConfig(callbacks=callbacks),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
