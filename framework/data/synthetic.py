"""Random data of real size in memory: what a step costs when reading and decoding cost nothing."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from framework.data.images import normaliser
from framework.data.rooms import gathered

HELD_BYTES = 2**29  # a long epoch of large images must not fill the memory


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Random uint8 images in one tensor, normalised when asked for; draws no random numbers after construction.

    Item: (float32 [channels, image_size, image_size], label 0..classes-1).

    Args:
        count: number of images. At most `HELD_BYTES` of them are distinct; further ones repeat these in turn.
        channels: channels of each image.
        image_size: side in pixels.
        classes: number of classes.
        seed: fixes pixels and labels.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, count: int, channels: int, image_size: int, classes: int, seed: int = 0) -> None:
        _require_positive({"count": count, "channels": channels, "image_size": image_size, "classes": classes})
        generator = torch.Generator().manual_seed(seed)
        held = min(count, max(1, HELD_BYTES // (channels * image_size**2)))
        pixels = held * channels * image_size**2
        eights = torch.randint(-(2**63), 2**63 - 1, (-(-pixels // 8),), generator=generator)  # a draw for 8 pixels
        self.images = eights.view(torch.uint8)[:pixels].view(held, channels, image_size, image_size)
        self.labels = torch.randint(0, classes, (held,), generator=generator)
        self.count = count
        self.normalise = normaliser(channels)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= self.count:
            raise IndexError(index)
        held = index % len(self.labels)
        return self.normalise(self.images[held]), int(self.labels[held])

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """The items `indices`, stacked: float32 [batch, channels, image_size, image_size], int64 [batch]."""
        if max(indices) >= self.count:
            raise IndexError(max(indices))
        held = torch.tensor(indices) % len(self.labels)
        return self.normalise.batch(self.images[held]), gathered(self.labels, held)


class SyntheticTokens(Dataset[tuple[Tensor, Tensor]]):
    """Random tokens in one tensor; draws no random numbers after construction.

    Item: (int64 [context], int64 [context]), the second shifted by one token.

    Args:
        count: number of sequences; they hold 8 * count * (context + 1) bytes.
        context: tokens that the model sees at once.
        vocab: number of different tokens.
        seed: fixes the tokens.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, count: int, context: int, vocab: int, seed: int = 0) -> None:
        _require_positive({"count": count, "context": context, "vocab": vocab})
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, vocab, (count, context + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self.tokens[index]
        return row[:-1], row[1:]

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """The items `indices`, stacked: int64 [batch, context] twice."""
        rows = torch.tensor(indices)
        return gathered(self.tokens[:, :-1], rows), gathered(self.tokens[:, 1:], rows)


def _require_positive(sizes: dict[str, int]) -> None:
    """Raises a ValueError that names the first size below 1."""
    for key, value in sizes.items():
        if value < 1:
            raise ValueError(f"data.{key}={value} must be at least 1")
