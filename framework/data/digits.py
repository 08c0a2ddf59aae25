"""Handwritten digits, 8x8: 1797 real images that ship with scikit-learn, so nothing is downloaded.

Source: https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits (its test part).
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset

from framework.data.rooms import gathered


class Digits(Dataset[tuple[Tensor, int]]):
    """scikit-learn's digits, held in memory; draws no random numbers after construction.

    Item: (float32 [1, 8, 8] in 0..1, label 0..9).

    Args:
        train: the training part, otherwise the held-out part.
        seed: fixes which images are held out; both parts need the same one.
        held_out: share of the images that is held out, stratified by label.

    Raises:
        ValueError: `held_out` leaves fewer than one image per class on either side.
    """

    def __init__(self, train: bool, seed: int = 0, held_out: float = 0.2) -> None:
        if not 0.01 <= held_out <= 0.99:
            raise ValueError(
                f"held_out={held_out} must lie between 0.01 and 0.99: set data.train.held_out and data.eval.held_out"
            )
        pixels, labels = load_digits(return_X_y=True)
        parts = train_test_split(np.arange(len(labels)), test_size=held_out, random_state=seed, stratify=labels)
        rows = np.sort(parts[0 if train else 1])
        self.images = torch.from_numpy(pixels[rows]).to(torch.float32).div_(16).view(-1, 1, 8, 8)
        self.labels = torch.from_numpy(labels[rows]).to(torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """The items `indices`, stacked: float32 [batch, 1, 8, 8], int64 [batch]."""
        rows = torch.tensor(indices)
        return gathered(self.images, rows), gathered(self.labels, rows)
