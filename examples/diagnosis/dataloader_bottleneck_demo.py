"""The same training twice: once with a slow input path, once with a fast one.

    traceml run examples/diagnosis/dataloader_bottleneck_demo.py --run-name compare_slow \
        --args --scenario slow --sleep-ms 2
    traceml run examples/diagnosis/dataloader_bottleneck_demo.py --run-name compare_fast \
        --args --scenario fast
    traceml compare compare_slow compare_fast

Nothing in this script knows of TraceML.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES = 256
CLASSES = 10


class SyntheticSamples(Dataset):
    """Samples that cost nothing to make, but for a delay where one is asked for."""

    def __init__(self, count: int, sleep_s: float) -> None:
        self.inputs = torch.randn(count, FEATURES)
        self.labels = torch.randint(0, CLASSES, (count,))
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.sleep_s:
            time.sleep(self.sleep_s)  # stands for decoding, augmenting or fetching a sample
        return self.inputs[index], self.labels[index]


def build_model(hidden: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(FEATURES, hidden), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, CLASSES))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", choices=("slow", "fast"), default="slow")
    parser.add_argument("--sleep-ms", type=float, default=2.0, help="per sample, in the slow path")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--num-samples", type=int, default=15360)
    parser.add_argument("--hidden-dim", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--print-every", type=int, default=20, help="steps between two lines")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # one core, so that a busy machine does not blur the story
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sleep_s = options.sleep_ms / 1000 if options.scenario == "slow" else 0.0
    loader = DataLoader(
        SyntheticSamples(options.num_samples, sleep_s),
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
    )
    model = build_model(options.hidden_dim, options.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for step, (inputs, labels) in enumerate(loader, start=1):
        inputs, labels = inputs.to(device), labels.to(device)
        loss = criterion(model(inputs), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % options.print_every == 0 or step == len(loader):
            print(
                f"{options.scenario}: step {step}/{len(loader)}, loss {loss.item():.3f}", flush=True
            )


if __name__ == "__main__":
    main()
