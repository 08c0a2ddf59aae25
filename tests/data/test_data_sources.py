"""What holds for every source: workers can receive it, and it keeps no large Python containers."""

import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

from framework.data.digits import Digits
from framework.data.imagefolder import ImageFolder
from framework.data.photos import Photos, Stored
from framework.data.stdlib_text import StdlibText
from framework.data.synthetic import SyntheticImages, SyntheticTokens
from framework.data.torchvision_set import torchvision_set

COUNT = 300


def image_folder(root: Path, train: bool) -> ImageFolder:
    for part in ("train", "val"):
        folder = root / part / "only"
        folder.mkdir(parents=True)
        picture = folder / "0.png"
        Image.new("RGB", (9, 8), (9, 8, 7)).save(picture)
        for number in range(1, COUNT):
            (folder / f"{number}.png").hardlink_to(picture)
    return ImageFolder(str(root), train, 8)


def mnist(root: Path, train: bool) -> Any:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        header = struct.pack(">4I", 2051, COUNT, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(COUNT * 28 * 28))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, COUNT) + bytes(COUNT))
    return torchvision_set("MNIST", train, str(root))


SOURCES: dict[str, Callable[[Path, bool], Any]] = {
    "digits": lambda root, train: Digits(train),
    "imagefolder": image_folder,
    "photos": lambda root, train: Photos(train, str(root), COUNT, 8, Stored(16, 12)),
    "stdlib_text": lambda root, train: StdlibText(train, 16),
    "synthetic": lambda root, train: SyntheticImages(COUNT, 3, 8, 4),
    "synthetic_text": lambda root, train: SyntheticTokens(COUNT, 16, 50),
    "torchvision": mnist,
}


def containers(value: object) -> Iterator[object]:
    """Every list, tuple, dict and set that an object holds, found through its attributes."""
    if isinstance(value, torch.nn.Module) or not type(value).__module__.startswith(("framework", "builtins")):
        return
    if isinstance(value, list | tuple | dict | set | frozenset):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)
    elif type(value).__module__.startswith("framework"):
        yield from containers(vars(value))


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize("train", [True, False])
def test_a_source_reaches_workers_whole(tmp_path: Path, name: str, train: bool) -> None:
    source = SOURCES[name](tmp_path, train)
    copy = pickle.loads(pickle.dumps(source))
    assert len(copy) == len(source) > 10
    batches = []
    for samples in (source, copy):
        torch.manual_seed(0)
        batches.append(default_collate([samples[index] for index in (0, 5, len(source) - 1)]))
    for first, second in zip(*batches, strict=True):
        assert torch.equal(first, second)
        assert len(first) == 3


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_source_keeps_no_large_python_containers(tmp_path: Path, name: str) -> None:
    source = SOURCES[name](tmp_path, True)
    found = list(containers(source))
    assert found
    assert max(len(container) for container in found) < 50
