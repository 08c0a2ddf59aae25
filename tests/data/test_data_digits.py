"""scikit-learn's digits."""

import pytest
import torch
from sklearn.datasets import load_digits

from framework.data.digits import Digits


def test_items_are_float_images_in_zero_to_one_with_int_labels() -> None:
    data = Digits(train=True)
    image, label = data[0]
    assert image.shape == (1, 8, 8)
    assert image.dtype == torch.float32
    assert type(label) is int
    assert data.images.min() == 0
    assert data.images.max() == 1
    assert sorted(set(data.labels.tolist())) == list(range(10))


def test_the_parts_are_disjoint_and_together_the_whole_set() -> None:
    pixels, labels = load_digits(return_X_y=True)
    parts = [Digits(train) for train in (True, False)]
    assert [len(part) for part in parts] == [1437, 360]
    rows = [
        (*(image.flatten() * 16).tolist(), label)
        for part in parts
        for image, label in zip(part.images, part.labels.tolist(), strict=True)
    ]
    expected = [(*image.tolist(), label) for image, label in zip(pixels, labels.tolist(), strict=True)]
    assert sorted(rows) == sorted(expected)


def test_the_split_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = Digits(False)
    torch.manual_seed(2)
    assert torch.equal(first.images, Digits(False).images)
    assert not torch.equal(first.images, Digits(False, seed=1).images)


def test_the_held_out_share_is_stratified() -> None:
    counts = Digits(False, held_out=0.5).labels.bincount()
    assert counts.sum() == 899
    assert counts.max() - counts.min() <= 6


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 5])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"held_out=.* between 0\.01 and 0\.99: set data\.train\.held_out"):
        Digits(True, held_out=share)


def test_indices_end() -> None:
    with pytest.raises(IndexError):
        Digits(False)[360]
