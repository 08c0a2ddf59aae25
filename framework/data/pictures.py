"""torchvision's sets of pictures as sets of normalised tensors."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from framework.data.images import normaliser
from framework.data.rooms import gathered


class Pictures(Dataset[tuple[Tensor, int]]):
    """A torchvision set as normalised tensors; draws no random numbers."""

    def __init__(self, source: Any, rows: Tensor, mode: str, resize: torch.nn.Module) -> None:
        self.source = source
        self.rows = rows
        self.mode = mode
        self.resize = resize
        self.normalise = normaliser(1 if mode == "L" else 3)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture, label = self.source[int(self.rows[index])]
        if picture.mode != self.mode:
            picture = picture.convert(self.mode)
        return self.normalise.from_picture(self.resize(picture)), int(label)


class HeldPictures(Dataset[tuple[Tensor, int]]):
    """The same where torchvision holds all pixels in one array and none is resized, so that it makes whole batches."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures
        pixels = torch.as_tensor(pictures.source.data)  # uint8 [N, H, W] or [N, H, W, 3]
        self.images = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
        self.labels = torch.as_tensor(pictures.source.targets, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pictures[index]

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """The items `indices`, stacked: float32 [batch, C, H, W], int64 [batch]."""
        rows = self.pictures.rows[torch.tensor(indices)]
        return self.pictures.normalise.batch(self.images[rows]), gathered(self.labels, rows)
