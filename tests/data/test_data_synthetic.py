"""Random data in memory."""

import pytest
import torch

from framework.data.images import normaliser
from framework.data.synthetic import SyntheticImages, SyntheticTokens


def test_images_are_stored_as_bytes_and_given_normalised() -> None:
    data = SyntheticImages(count=40, channels=3, image_size=16, classes=5)
    image, label = data[7]
    assert len(data) == 40
    assert data.images.dtype == torch.uint8
    assert image.shape == (3, 16, 16)
    assert image.dtype == torch.float32
    assert torch.equal(image, normaliser(3)(data.images[7]))
    assert type(label) is int
    assert set(data.labels.tolist()) == set(range(5))
    assert (int(data.images.min()), int(data.images.max())) == (0, 255)


def test_images_beyond_what_is_held_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.data.synthetic.HELD_BYTES", 3 * 8 * 8 * 5)
    data = SyntheticImages(count=12, channels=3, image_size=8, classes=5)
    assert len(data) == 12
    assert len(data.images) == 5
    assert torch.equal(data[7][0], data[2][0])
    assert data[7][1] == data[2][1]
    assert not torch.equal(data[7][0], data[3][0])


def test_tokens_are_shifted_by_one() -> None:
    data = SyntheticTokens(count=20, context=12, vocab=6)
    tokens, targets = data[3]
    assert len(data) == 20
    assert tokens.shape == targets.shape == (12,)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens[1:], targets[:-1])
    assert set(data.tokens.flatten().tolist()) == set(range(6))


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    images = [SyntheticImages(4, 1, 8, 10, seed=seed).images for seed in (0, 0, 1)]
    tokens = [SyntheticTokens(4, 8, 100, seed=seed).tokens for seed in (0, 0, 1)]
    for first, same, other in (images, tokens):
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("key", ["count", "channels", "image_size", "classes"])
def test_image_sizes_below_one_are_refused_by_name(key: str) -> None:
    sizes = {"count": 4, "channels": 1, "image_size": 8, "classes": 2} | {key: 0}
    with pytest.raises(ValueError, match=rf"data\.{key}=0 must be at least 1"):
        SyntheticImages(**sizes)


@pytest.mark.parametrize("key", ["count", "context", "vocab"])
def test_token_sizes_below_one_are_refused_by_name(key: str) -> None:
    sizes = {"count": 4, "context": 8, "vocab": 2} | {key: -1}
    with pytest.raises(ValueError, match=rf"data\.{key}=-1 must be at least 1"):
        SyntheticTokens(**sizes)


def test_indices_end() -> None:
    with pytest.raises(IndexError):
        SyntheticImages(4, 1, 8, 2)[4]
    with pytest.raises(IndexError):
        SyntheticTokens(4, 8, 2)[4]
