"""torchvision's sets by name."""

import inspect
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from framework.data import torchvision_set as module
from framework.data.collate import collate
from framework.data.torchvision_set import torchvision_set
from framework.data.whole import offers_batch

NOWHERE = "http://127.0.0.1:9/"


def write_mnist(root: Path) -> dict[str, torch.Tensor]:
    """A valid MNIST of 6 training and 4 held-out images; returns the pixels by part."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    pixels = {}
    for part, count in (("train", 6), ("t10k", 4)):
        generator = torch.Generator().manual_seed(count)
        pixels[part] = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        labels = bytes(range(count))
        header = struct.pack(">4I", 2051, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels[part].numpy().tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels)
    return pixels


def write_eurosat(root: Path) -> None:
    """Ten classes of one picture each: a set that has no parts of its own."""
    for number in range(10):
        folder = root / "eurosat" / "2750" / f"class{number}"
        folder.mkdir(parents=True)
        Image.new("RGB", (64, 64), (20 * number, 0, 0)).save(folder / "a.png")


@pytest.mark.parametrize(("train", "part", "count"), [(True, "train", 6), (False, "t10k", 4)])
def test_mnist_is_read_part_by_part(tmp_path: Path, train: bool, part: str, count: int) -> None:
    pixels = write_mnist(tmp_path)[part]
    data = torchvision_set("MNIST", train, str(tmp_path))
    assert len(data) == count
    for index in range(count):
        image, label = data[index]
        assert image.shape == (1, 28, 28)
        assert image.dtype == torch.float32
        assert (type(label), label) == (int, index)
        torch.testing.assert_close(image, (pixels[index : index + 1] / 255 - 0.5) / 0.5)
    with pytest.raises(IndexError):
        data[count]


def test_whole_batches_of_mnist_are_its_items_stacked(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    same_in_whole_batches(torchvision_set("MNIST", True, str(tmp_path)), [5, 0, 3, 3])
    assert not hasattr(torchvision_set("MNIST", True, str(tmp_path), image_size=32), "batch")


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_whole_batches_of_cifar_are_its_items_stacked(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = getattr(datasets, name)
    monkeypatch.setattr(kind, "_check_integrity", lambda _: True)
    monkeypatch.setattr(kind, "_load_meta", lambda _: None)
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    for number, (file, _) in enumerate([*kind.train_list, *kind.test_list]):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 3072), dtype=np.uint8)
        labels = {"labels" if name == "CIFAR10" else "fine_labels": [number, 1, 2, 3]}
        (folder / file).write_bytes(pickle.dumps({"data": pixels} | labels))
    for train in (True, False):
        same_in_whole_batches(torchvision_set(name, train, str(tmp_path)), [3, 0, 1])


def same_in_whole_batches(data: Any, indices: list[int]) -> None:
    assert offers_batch(data)
    whole, stacked = data.batch(indices), collate([data[index] for index in indices])
    for one, other in zip(whole, stacked, strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())


@pytest.mark.parametrize("name", module._HELD)
def test_what_is_held_is_what_torchvision_gives(name: str) -> None:
    """Its items are made from `data` and `targets`, and from nothing else."""
    source = inspect.getsource(getattr(datasets, name).__getitem__)
    assert re.search(r"img, target = self\.data\[index\], (int\()?self\.targets\[index\]", source)


def test_images_are_resized_and_nothing_is_drawn(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    state = torch.get_rng_state()
    data = torchvision_set("MNIST", True, str(tmp_path), image_size=32)
    assert data[0][0].shape == (1, 32, 32)
    assert torch.equal(data[0][0], data[0][0])
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_there_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    monkeypatch.setattr(datasets.MNIST, "download", None)
    assert len(torchvision_set("MNIST", True, str(tmp_path), download=True)) == 6


def test_a_set_without_parts_is_split_once(tmp_path: Path) -> None:
    write_eurosat(tmp_path)
    torch.manual_seed(1)
    parts = [[label for _, label in torchvision_set("EuroSAT", train, str(tmp_path))] for train in (True, False)]
    torch.manual_seed(2)
    assert [label for _, label in torchvision_set("EuroSAT", False, str(tmp_path))] == parts[1]
    assert [len(part) for part in parts] == [8, 2]
    assert sorted(parts[0] + parts[1]) == list(range(10))
    assert torchvision_set("EuroSAT", True, str(tmp_path))[0][0].shape == (3, 64, 64)


@pytest.mark.parametrize("name", sorted(module._SETS))
def test_the_table_fits_torchvisions_signatures(name: str) -> None:
    layout = module._SETS[name]
    owners = [getattr(datasets, name), *getattr(datasets, name).__bases__]
    known = {key for owner in owners for key in inspect.signature(owner.__init__).parameters}
    assert set(layout.train) | set(layout.held_out) <= known
    if layout.downloads:
        assert "download" in known


@pytest.mark.parametrize("name", sorted(module._SETS))
@pytest.mark.parametrize("train", [True, False])
def test_every_missing_set_is_one_sentence(tmp_path: Path, name: str, train: bool) -> None:
    with pytest.raises(ValueError, match=rf"^data\.path: {name} is not in {tmp_path}") as caught:
        torchvision_set(name, train, str(tmp_path), image_size=32)
    assert "; see " in str(caught.value)
    assert "http" in str(caught.value)
    if module._SETS[name].downloads:
        assert "set data.train.download=true" in str(caught.value)
    else:
        assert "torchvision cannot download it" in str(caught.value)


def test_files_and_addresses_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"/MNIST/raw \(.*see https?://.*, train-images-idx3-ubyte\.gz, .*t10k-labels"):
        torchvision_set("MNIST", True, str(tmp_path))
    with pytest.raises(ValueError, match=r"see https://www\.cs\.toronto\.edu/~kriz/cifar-10-python\.tar\.gz$"):
        torchvision_set("CIFAR10", True, str(tmp_path))


def test_a_failed_download_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "url", NOWHERE + "cifar-10-python.tar.gz")
    words = rf"CIFAR10 is not in {tmp_path} and could not be downloaded \(.*refused.*\): put its archives there by hand"
    with pytest.raises(ValueError, match=words):
        torchvision_set("CIFAR10", True, str(tmp_path), download=True)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [NOWHERE])
    with pytest.raises(ValueError, match=r"MNIST/raw and could not be downloaded .* keep data\.train\.download=true"):
        torchvision_set("MNIST", True, str(tmp_path), download=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MNITS", "set it to MNIST or"),
        ("cifar10", "set it to CIFAR10$"),
        ("imagenet", "set it to ImageNet$"),
        ("zzz", "set it to one of CIFAR10, CIFAR100, .*USPS$"),
        ("__all__", r"data\.train\.name=__all__ is not a torchvision classification set"),
    ],
)
def test_an_unknown_name_gives_the_nearest(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        torchvision_set(name, True, str(tmp_path))


def test_sizes_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.image_size must be set for Flowers102"):
        torchvision_set("Flowers102", True, str(tmp_path))
    with pytest.raises(ValueError, match=r"data\.image_size=0 must be at least 1"):
        torchvision_set("MNIST", True, str(tmp_path), image_size=0)
