"""Data made on the spot: nothing is read from a disk or a network."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset


class Images(Dataset):
    """Pictures that are cropped, flipped and normalised in numpy, as an image folder's are."""

    def __init__(self, count: int, size: int, classes: int = 100, passes: int = 0) -> None:
        self.count, self.size, self.classes, self.passes = count, size, classes, passes
        generator = np.random.default_rng(0)
        self.raw = generator.integers(0, 256, (size + 32, size + 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        top, left = generator.integers(0, 32, 2)
        picture = self.raw[top : top + self.size, left : left + self.size].astype(np.float32)
        picture = picture / 127.5 - 1
        for _ in range(self.passes):
            picture = (picture - picture.mean((0, 1))) / (picture.std((0, 1)) + 1e-3)
        if generator.random() < 0.5:
            picture = picture[:, ::-1]
        pixels = torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))
        return pixels, index % self.classes


class UnevenImages(Dataset):
    """Pictures of different sizes, each with a few boxes."""

    def __init__(self, count: int, smallest: int, largest: int) -> None:
        self.count, self.smallest, self.largest = count, smallest, largest

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        height, width = torch.randint(
            self.smallest // 32, self.largest // 32 + 1, (2,), generator=generator
        ).tolist()
        picture = torch.rand(3, height * 32, width * 32, generator=generator)
        boxes = torch.rand(1 + index % 8, 4, generator=generator)
        return picture, boxes


class Tokens(Dataset):
    """Sequences of token ids; `passes` is how often each is gone through in Python first."""

    def __init__(self, count: int, length: int, vocabulary: int, passes: int = 0) -> None:
        self.count, self.length, self.vocabulary, self.passes = count, length, vocabulary, passes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = np.random.default_rng(index)
        start = int(generator.integers(0, self.vocabulary))
        ids = (start + 7 * np.arange(self.length)) % self.vocabulary
        for _ in range(self.passes):
            ids = np.array([int(word) for word in " ".join(map(str, ids)).split()])
        tokens = torch.from_numpy(ids)
        return {"input_ids": tokens, "labels": tokens.clone()}
