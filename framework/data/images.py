"""From bytes to tensors: reading image files and normalising pixels, shared by every image source."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from framework.data.rooms import room

# Channel statistics of the ImageNet training images in 0..1 (R, G, B), as torchvision's published weights use them:
# https://docs.pytorch.org/vision/stable/models.html
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

CACHED_PIXELS = 2**16  # float32 values that stay in a core's cache from one pass over them to the next


class Normalise:
    """Turns uint8 pixels into normalised float32: `(x / 255 - mean) / std` for each channel.

    The two constants of the equal form `x * scale + shift` are prepared once, so that an image costs one conversion
    and two passes in place. Instances pickle, as they hold nothing but two small tensors.

    Args:
        mean: mean of each channel, in 0..1.
        std: standard deviation of each channel, in 0..1, each above 0.

    Raises:
        ValueError: the two differ in length, are empty, or a deviation is not above 0.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or not mean:
            raise ValueError(f"mean and std need one number per channel each, but mean={mean} and std={std}")
        if min(std) <= 0:
            raise ValueError(f"std={std} must be above 0 in every channel, as pixels are divided by it")
        deviation = torch.tensor(std, dtype=torch.float64)
        centre = torch.tensor(mean, dtype=torch.float64)
        self.scale = (1 / (255 * deviation)).to(torch.float32).view(-1, 1, 1)
        self.shift = (-centre / deviation).to(torch.float32).view(-1, 1, 1)

    def __call__(self, image: Tensor) -> Tensor:
        """Normalises one image: uint8 [C, H, W] -> float32 [C, H, W], contiguous and newly allocated."""
        assert image.dtype == torch.uint8
        assert image.shape[0] == self.scale.shape[0]
        pixels = image.to(torch.float32, memory_format=torch.contiguous_format)
        return pixels.mul_(self.scale).add_(self.shift)

    def batch(self, images: Tensor) -> Tensor:
        """Normalises many images, bit by bit as one by one: uint8 [N, C, H, W] -> float32 [N, C, H, W] in a `room`."""
        assert images.dtype == torch.uint8
        assert images.shape[1] == self.scale.shape[0]
        made = room(images.shape, torch.float32)
        step = max(1, CACHED_PIXELS // max(1, images[:1].numel()))
        for part, pixels in zip(made.split(step), images.split(step), strict=True):
            part.copy_(pixels).mul_(self.scale).add_(self.shift)
        return made

    def from_picture(self, picture: Image.Image) -> Tensor:
        """Normalises a decoded Pillow image (grey or RGB) -> float32 [C, H, W]."""
        return self.from_hwc(np.array(picture))

    def from_hwc(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        """Normalises a writable numpy image: uint8 [H, W, C], or [H, W] when grey -> float32 [C, H, W]."""
        image = torch.from_numpy(pixels)
        return self(image.unsqueeze(0) if image.dim() == 2 else image.permute(2, 0, 1))


def normaliser(channels: int) -> Normalise:
    """The usual statistics: ImageNet's for 3 channels, otherwise 0.5 and 0.5 (pixels in -1..1)."""
    if channels == 3:
        return Normalise(IMAGENET_MEAN, IMAGENET_STD)
    return Normalise((0.5,) * channels, (0.5,) * channels)


def read_rgb(path: Path) -> Image.Image:
    """Decodes an image file to RGB.

    Raises:
        ValueError: the file cannot be decoded; the sentence names it, since Pillow does not for a truncated one.
    """
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except OSError as error:
        raise ValueError(f"data.path: the image {path} cannot be read ({error}): replace or remove the file") from error
