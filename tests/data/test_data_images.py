"""Normalisation and reading of images."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from framework.data.augment import Augment
from framework.data.images import IMAGENET_MEAN, IMAGENET_STD, Normalise, normaliser, read_rgb


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def reference(pixels: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    centre, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return (pixels / 255 - centre) / deviation


def test_normalise_is_the_textbook_formula_per_channel(pixels: torch.Tensor) -> None:
    before = pixels.clone()
    result = normaliser(3)(pixels)
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    torch.testing.assert_close(result, reference(pixels, IMAGENET_MEAN, IMAGENET_STD), rtol=1e-5, atol=1e-5)
    assert torch.equal(pixels, before)


def test_other_channel_counts_lie_between_minus_one_and_one() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    result = normaliser(1)(ramp)
    assert result.min() == -1
    assert result.max() == pytest.approx(1)
    assert normaliser(2)(ramp.expand(2, -1, -1)).shape == (2, 16, 16)


def test_hwc_and_grey_arrays_give_the_same_as_chw(pixels: torch.Tensor) -> None:
    normalise = normaliser(3)
    result = normalise.from_hwc(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    assert result.is_contiguous()
    assert torch.equal(result, normalise(pixels))
    grey = normaliser(1)
    assert torch.equal(grey.from_hwc(pixels[0].numpy()), grey(pixels[:1]))


def test_a_wrong_number_of_channels_is_not_broadcast(pixels: torch.Tensor) -> None:
    with pytest.raises(AssertionError):
        normaliser(3)(pixels[:1])
    with pytest.raises(AssertionError):
        normaliser(3)(pixels.to(torch.float32))


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        ((0.5,), (0.5, 0.5), "one number per channel"),
        ((), (), "one number per channel"),
        ((0.5,), (0.0,), r"std=\(0.0,\) must be above 0"),
    ],
)
def test_unusable_statistics_are_refused(mean: tuple[float, ...], std: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Normalise(mean, std)


def test_read_rgb_converts_every_mode(tmp_path: Path) -> None:
    Image.new("L", (6, 4), 100).save(tmp_path / "grey.png")
    picture = read_rgb(tmp_path / "grey.png")
    assert (picture.mode, picture.size) == ("RGB", (6, 4))
    assert picture.getpixel((0, 0)) == (100, 100, 100)


@pytest.mark.parametrize("keep", [0, 2000])
def test_a_broken_file_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "broken.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"data\.path: the image .*broken\.jpg cannot be read .* replace or remove"):
        read_rgb(path)


@pytest.mark.parametrize("size", [(50, 30), (10, 40), (32, 32)])
@pytest.mark.parametrize("train", [True, False])
def test_augment_gives_a_square_from_any_picture(train: bool, size: tuple[int, int]) -> None:
    result = Augment(train, 32)(Image.new("RGB", size, (255, 0, 0)))
    assert result.shape == (3, 32, 32)
    assert result.dtype == torch.float32
    expected = reference(torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1), IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(result, expected.expand(3, 32, 32), rtol=1e-4, atol=1e-4)


def test_augment_draws_from_torch_for_training_only() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    train, fixed = Augment(True, 16), Augment(False, 16)
    torch.manual_seed(1)
    first = train(noise)
    assert not torch.equal(first, train(noise))
    torch.manual_seed(1)
    assert torch.equal(first, pickle.loads(pickle.dumps(train))(noise))
    state = torch.get_rng_state()
    assert torch.equal(fixed(noise), fixed(noise))
    assert torch.equal(state, torch.get_rng_state())


def test_augment_refuses_a_size_below_one() -> None:
    with pytest.raises(ValueError, match=r"data\.image_size=0 must be at least 1"):
        Augment(True, 0)
