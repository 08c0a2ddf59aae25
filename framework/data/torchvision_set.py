"""The classification sets of torchvision.datasets under one signature.

They differ in how a part is chosen (`train=`, `split=`, or no parts at all), in where their files lie and in whether
they can be downloaded; a table states that for each one. PCAM is absent as it cannot be sent to worker processes.
Source: https://docs.pytorch.org/vision/stable/datasets.html#image-classification
"""

import difflib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import datasets
from torchvision.transforms import v2

from framework.data.pictures import HeldPictures, Pictures

_ARCHIVES = (".gz", ".tgz", ".tar", ".zip", ".bz2", ".mat", ".csv", ".data")
_DOCS = "https://docs.pytorch.org/vision/stable"
_OWN_SPLIT_SEED = 0


@dataclass(frozen=True)
class _Layout:
    """What differs between the sets: the arguments that choose the part (equal ones: the set has no parts, so a fixed
    fifth is held out here), where its files lie below the root, and whether its images differ in size."""

    train: dict[str, object] = field(default_factory=dict)
    held_out: dict[str, object] = field(default_factory=dict)
    folder: str = ""
    mode: str = "RGB"
    varied: bool = False
    downloads: bool = True


def _by_train(folder: str = "", mode: str = "RGB") -> _Layout:
    return _Layout({"train": True}, {"train": False}, folder, mode)


def _by_split(train: str, held_out: str, folder: str = "", varied: bool = True, downloads: bool = True) -> _Layout:
    return _Layout({"split": train}, {"split": held_out}, folder, "RGB", varied, downloads)


# Where a set has both a validation and a test part, validation is the held-out part.
_SETS = {
    "CIFAR10": _by_train(),
    "CIFAR100": _by_train(),
    "CLEVRClassification": _by_split("train", "val", "clevr"),
    "Caltech101": _Layout(varied=True),
    "Caltech256": _Layout(varied=True),
    "Country211": _by_split("train", "valid"),
    "DTD": _by_split("train", "val", "dtd"),
    "EMNIST": _Layout(
        {"split": "balanced", "train": True}, {"split": "balanced", "train": False}, "EMNIST/raw", mode="L"
    ),
    "EuroSAT": _Layout(folder="eurosat"),
    "FER2013": _Layout({"split": "train"}, {"split": "test"}, "fer2013", mode="L", downloads=False),
    "FGVCAircraft": _by_split("train", "val"),
    "FashionMNIST": _by_train("FashionMNIST/raw", mode="L"),
    "Flowers102": _by_split("train", "val", "flowers-102"),
    "Food101": _by_split("train", "test"),
    "GTSRB": _by_split("train", "test", "gtsrb"),
    "ImageNet": _by_split("train", "val", downloads=False),
    "Imagenette": _by_split("train", "val"),
    "KMNIST": _by_train("KMNIST/raw", mode="L"),
    "MNIST": _by_train("MNIST/raw", mode="L"),
    "OxfordIIITPet": _by_split("trainval", "test", "oxford-iiit-pet"),
    "QMNIST": _by_train("QMNIST/raw", mode="L"),
    "RenderedSST2": _by_split("train", "val"),
    "SEMEION": _Layout(mode="L"),
    "STL10": _by_split("train", "test", varied=False),
    "SUN397": _Layout(varied=True),
    "SVHN": _by_split("train", "test", varied=False),
    "StanfordCars": _by_split("train", "test", "stanford_cars", downloads=False),
    "USPS": _by_train(mode="L"),
}


_HELD = ("CIFAR10", "CIFAR100", "EMNIST", "FashionMNIST", "KMNIST", "MNIST", "USPS")  # `data` and `targets` say it all


def torchvision_set(
    name: str, train: bool, path: str, download: bool = False, image_size: int | None = None
) -> Dataset[tuple[Tensor, int]]:
    """One part of a torchvision classification set.

    Item: (float32 [C, H, W] normalised, label); C is 1 for sets of grey images, otherwise 3. There is no random
    augmentation. The largest sets (ImageNet) keep their file names in Python lists, which grow in worker processes:
    `imagefolder` does not.

    Args:
        name: the class in torchvision.datasets, e.g. CIFAR10.
        train: the training part, otherwise the validation or test part.
        path: the folder that torchvision calls root.
        download: fetch and unpack what is missing.
        image_size: resize the shorter side and crop the centre to this side; None: as stored.

    Raises:
        ValueError: the name is unknown, `image_size` is needed or below 1, or the files are missing.
    """
    layout = _layout(name)
    if image_size is None and layout.varied:
        raise ValueError(f"data.image_size must be set for {name}, whose images differ in size, for example to 224")
    if image_size is not None and image_size < 1:
        raise ValueError(f"data.image_size={image_size} must be at least 1")
    resize = v2.Identity() if image_size is None else v2.Compose([v2.Resize(image_size), v2.CenterCrop(image_size)])
    source = _open(name, layout.train if train else layout.held_out, Path(path).expanduser(), download)
    rows = _own_part(len(source), train) if layout.train == layout.held_out else torch.arange(len(source))
    pictures = Pictures(source, rows, layout.mode, resize)
    return HeldPictures(pictures) if name in _HELD and image_size is None else pictures


def _layout(name: str) -> _Layout:
    if name in _SETS:
        return _SETS[name]
    lowered = {known.lower(): known for known in _SETS}
    wanted = 1 if name.lower() in lowered else 3
    nearest = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, wanted)]
    raise ValueError(
        f"data.train.name={name} is not a torchvision classification set known here: set it to "
        f"{' or '.join(nearest) if nearest else 'one of ' + ', '.join(_SETS)}"
    )


def _open(name: str, part: dict[str, object], root: Path, download: bool) -> Any:
    """Reads the set, and fetches it only if that fails, since some sets refuse or unpack again what is there."""
    kind = getattr(datasets, name)
    downloads = _SETS[name].downloads
    reason = ""
    for attempt in (False, True) if download and downloads else (False,):
        arguments = part | ({"download": attempt} if downloads else {})
        try:
            return kind(root, **arguments)
        except (RuntimeError, OSError, HTTPException) as error:
            reason = textwrap.shorten(str(error), 200, placeholder=" ...").rstrip(".")
    raise ValueError(_missing(name, root / _SETS[name].folder, download, reason))


def _missing(name: str, folder: Path, download: bool, reason: str) -> str:
    """One sentence: what is missing, why, and which files belong where."""
    files = ", ".join(_published(getattr(datasets, name))) or f"{_DOCS}/generated/torchvision.datasets.{name}.html"
    failed, fix = "", "set data.train.download=true, which fetches it, or unpacks archives that you put there by hand"
    if download:
        failed = " and could not be downloaded"
        fix = "put its archives there by hand and keep data.train.download=true, which unpacks them"
    if not _SETS[name].downloads:
        failed, fix = "", "torchvision cannot download it, so put its files there"
    return f"data.path: {name} is not in {folder}{failed} ({reason}): {fix}; see {files}"


def _published(kind: type) -> list[str]:
    """The addresses and archive names that a torchvision class states as attributes, each once."""
    texts = [text for value in vars(kind).values() for text in _strings(value) if " " not in text]
    addresses = [text for text in texts if text.startswith("http")]
    archives = [text for text in texts if text.endswith(_ARCHIVES)]
    unnamed = [archive for archive in archives if not any(address.endswith(archive) for address in addresses)]
    return list(dict.fromkeys(addresses + unnamed))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _own_part(count: int, train: bool) -> Tensor:
    """The rows of one part of a set that has none of its own: four fifths or one fifth, in sorted order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_OWN_SPLIT_SEED))
    held_out = count // 5
    return (order[held_out:] if train else order[:held_out]).sort().values
