"""A small convolutional image classifier, for digits and thumbnails."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Blocks of convolution 3x3, BatchNorm, ReLU and max-pool 2, then a classifier with one hidden layer.

    Every block halves the image, rounding down. The convolutions have no bias, because the BatchNorm after each
    subtracts it again. For 3x32x32 images and 10 classes the default is the `small` workload: Linear 1024-128-10.

    Shapes: images [batch, in_channels, image_size, image_size] -> logits [batch, num_classes].

    Args:
        in_channels: channels of an image, 1 for grey and 3 for colour.
        image_size: height and width of an image in pixels.
        num_classes: number of logits.
        channels: output channels of each block, so its length is the number of blocks.
        hidden: width of the hidden layer.

    Raises:
        ValueError: when the image is too small to be halved once in every block.

    Source: BatchNorm after each convolution is from Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: int,
        num_classes: int,
        channels: Sequence[int] = (32, 64, 64),
        hidden: int = 128,
    ) -> None:
        super().__init__()
        final_size = image_size >> len(channels)
        if final_size < 1:
            raise ValueError(
                f"image_size={image_size} cannot be halved {len(channels)} times, once for each entry of channels: "
                f"give fewer channels or images of {1 << len(channels)} pixels or more."
            )
        widths = [in_channels, *channels]
        self.features = nn.Sequential(*[_block(*pair) for pair in pairwise(widths)])
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(widths[-1] * final_size * final_size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, in_channels, image_size, image_size] -> logits [batch, num_classes]."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def _block(in_channels: int, out_channels: int) -> nn.Sequential:
    """[batch, in_channels, height, width] -> [batch, out_channels, height // 2, width // 2]."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
