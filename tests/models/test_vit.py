"""The vision transformer: its shapes, its gradients, that it sees all of an image, its errors."""

import pytest
import torch
from torch.nn import functional as F

from models.vit import ViT


def tiny(dropout: float = 0.0) -> ViT:
    torch.manual_seed(0)
    return ViT(image_size=8, patch_size=4, in_channels=1, num_classes=5, width=16, depth=2, heads=4, dropout=dropout)


def test_every_parameter_learns() -> None:
    model = tiny()
    logits = model(torch.randn(6, 1, 8, 8))
    assert logits.shape == (6, 5)
    F.cross_entropy(logits, torch.arange(6) % 5).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_one_position_for_each_patch_and_no_class_token() -> None:
    model = ViT(image_size=32, patch_size=4, in_channels=3, num_classes=10, width=192, depth=6, heads=3)
    assert model.positions.shape == (64, 192)
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_693_194


def test_mlp_ratio_sets_the_hidden_width() -> None:
    model = ViT(image_size=8, patch_size=4, in_channels=1, num_classes=5, width=16, depth=1, heads=4, mlp_ratio=3)
    assert {tuple(parameter.shape) for name, parameter in model.named_parameters() if "mlp.0.weight" in name} == {
        (48, 16)
    }


def test_logits_see_every_patch_and_its_place() -> None:
    model = tiny().eval()
    images = torch.zeros(5, 1, 8, 8)
    for index in range(4):
        row, column = 4 * (index // 2), 4 * (index % 2)
        images[index + 1, 0, row : row + 4, column : column + 4] = torch.arange(16.0).view(4, 4)
    logits = model(images)
    distances = torch.cdist(logits, logits) + torch.eye(5)
    assert distances.min() > 1e-6


def test_without_positions_the_order_of_patches_is_lost() -> None:
    model = tiny().eval()
    images = torch.randn(2, 1, 8, 8)
    swapped = images.roll(4, dims=3)
    assert not torch.allclose(model(images), model(swapped), atol=1e-5)
    with torch.no_grad():
        model.positions.zero_()
    torch.testing.assert_close(model(images), model(swapped))


def test_dropout_acts_in_training_only() -> None:
    model, images = tiny(dropout=0.5), torch.randn(2, 1, 8, 8)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


def test_attention_weights_are_dropped_too() -> None:
    attention, tokens = tiny(dropout=0.5).blocks[0].attention, torch.randn(2, 4, 16)
    assert not torch.equal(attention(tokens), attention(tokens))


def test_channels_last_and_autocast() -> None:
    model = tiny().to(memory_format=torch.channels_last)
    images = torch.randn(2, 1, 8, 8).to(memory_format=torch.channels_last)
    plain = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), plain, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(("image_size", "patch_size"), [(30, 4), (8, 0), (0, 4), (4, 8)])
def test_patch_must_divide_image(image_size: int, patch_size: int) -> None:
    sentence = rf"^image_size={image_size} is not a multiple of patch_size={patch_size}\.$"
    with pytest.raises(ValueError, match=sentence):
        ViT(image_size, patch_size, in_channels=3, num_classes=10, width=16, depth=1, heads=4)


@pytest.mark.parametrize(("width", "heads"), [(16, 3), (16, 0), (0, 4)])
def test_heads_must_divide_width(width: int, heads: int) -> None:
    with pytest.raises(ValueError, match=rf"^width={width} is not a multiple of heads={heads}\.$"):
        ViT(image_size=8, patch_size=4, in_channels=3, num_classes=10, width=width, depth=1, heads=heads)


def test_image_of_another_size() -> None:
    with pytest.raises(ValueError, match=r"^The images are 8x4 and this ViT has image_size=8\.$"):
        tiny()(torch.zeros(2, 1, 8, 4))
