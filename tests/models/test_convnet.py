"""The small convolutional classifier: its shapes, its gradients and its one error."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from models.convnet import ConvNet


def test_default_is_the_small_workload() -> None:
    model = ConvNet(in_channels=3, image_size=32, num_classes=10)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [(conv.in_channels, conv.out_channels) for conv in convolutions] == [(3, 32), (32, 64), (64, 64)]
    assert all(conv.kernel_size == (3, 3) and conv.padding == (1, 1) for conv in convolutions)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert [(linear.in_features, linear.out_features) for linear in linears] == [(1024, 128), (128, 10)]
    kinds = [type(module).__name__ for module in model.features[0]]
    assert kinds == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]


@pytest.mark.parametrize(
    ("in_channels", "image_size", "channels"), [(1, 8, [4, 8]), (3, 9, (4, 8, 4)), (1, 1, []), (2, 7, [4])]
)
def test_every_parameter_learns(in_channels: int, image_size: int, channels: list[int]) -> None:
    torch.manual_seed(0)
    model = ConvNet(in_channels, image_size, num_classes=5, channels=channels, hidden=32)
    logits = model(torch.randn(6, in_channels, image_size, image_size))
    assert logits.shape == (6, 5)
    F.cross_entropy(logits, torch.arange(6) % 5).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_channels_last_survives_every_block() -> None:
    model = ConvNet(3, 16, num_classes=4, channels=(8, 8)).to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    for block in model.features:
        images = block(images)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert not images.is_contiguous()


def test_autocast_gives_half_precision_logits() -> None:
    model = ConvNet(1, 8, num_classes=4, channels=[4])
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(2, 1, 8, 8))
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


@pytest.mark.parametrize("image_size", [0, 1, 7])
def test_image_too_small(image_size: int) -> None:
    sentence = (
        rf"^image_size={image_size} cannot be halved 3 times, once for each entry of channels: "
        r"give fewer channels or images of 8 pixels or more\.$"
    )
    with pytest.raises(ValueError, match=sentence):
        ConvNet(3, image_size, num_classes=10)


def test_smallest_image_that_fits() -> None:
    assert ConvNet(3, 8, num_classes=10).eval()(torch.zeros(1, 3, 8, 8)).shape == (1, 10)
