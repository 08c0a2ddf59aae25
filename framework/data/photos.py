"""Real JPEGs without a download: crops of the two photographs that scikit-learn ships (a temple and a flower).

They make decoding, cropping and flipping cost what they cost on a photo collection. All crops come from the same two
photographs, so held-out accuracy says that the path works, not that a model generalises.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.utils.data import Dataset

from framework.data.augment import Augment
from framework.data.images import read_rgb

_PHOTOGRAPHS = ("china.jpg", "flower.jpg")
_PHOTOGRAPH_WIDTH, _PHOTOGRAPH_HEIGHT = 640, 427


@dataclass(frozen=True)
class Stored:
    """How the JPEG files are made: size in pixels (500x375 is typical for ImageNet), JPEG quality, and the seed."""

    width: int = 500
    height: int = 375
    quality: int = 90
    seed: int = 0


_STORED = Stored()


class Photos(Dataset[tuple[Tensor, int]]):
    """A folder of JPEGs, written by the first construction and read by the later ones.

    Item: (float32 [3, image_size, image_size] normalised, label: 0 temple, 1 flower). Training items draw crop and flip
    from torch's global generator. The last fifth of the files is held out.

    Args:
        train: the first four fifths with random crops, otherwise the held-out fifth with fixed crops.
        path: folder for caches; None: `gearshift` in the user's cache folder ($XDG_CACHE_HOME, else ~/.cache).
            The files lie in a folder below it that is named after everything that decides their content.
        count: number of files, both parts together.
        image_size: side of an item in pixels.
        stored: how the files are made.

    Raises:
        ValueError: a number is out of range, or the folder cannot be written.
    """

    def __init__(
        self,
        train: bool,
        path: str | None = None,
        count: int = 2000,
        image_size: int = 224,
        stored: Stored = _STORED,
    ) -> None:
        _check(count, stored)
        self.prepare = Augment(train, image_size)
        self.folder = _ensure_cache(_cache_root() if path is None else Path(path).expanduser(), count, stored)
        held_out = count // 5
        self.first = 0 if train else count - held_out
        self.count = count - held_out if train else held_out

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(f"index {index} is out of range for {self.count} photos")
        number = self.first + index
        return self.prepare(read_rgb(self.folder / _file_name(number))), _label(number)


def _file_name(number: int) -> str:
    return f"{number:07d}.jpg"


def _label(number: int) -> int:
    return number % len(_PHOTOGRAPHS)


def _check(count: int, stored: Stored) -> None:
    if count < 10:
        raise ValueError(f"data.count={count} must be at least 10, so that both parts hold both photographs")
    if not (1 <= stored.width <= _PHOTOGRAPH_WIDTH and 1 <= stored.height <= _PHOTOGRAPH_HEIGHT):
        raise ValueError(
            f"stored size {stored.width}x{stored.height} must fit into the {_PHOTOGRAPH_WIDTH}x{_PHOTOGRAPH_HEIGHT} "
            "photographs: set a smaller data.train.stored.width or data.train.stored.height"
        )
    if not 1 <= stored.quality <= 95:
        raise ValueError(f"data.train.stored.quality={stored.quality} must be between 1 and 95, Pillow's useful range")


def _cache_root() -> Path:
    """The user's cache folder: https://specifications.freedesktop.org/basedir-spec/latest/"""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gearshift"


def _ensure_cache(root: Path, count: int, stored: Stored) -> Path:
    """Returns the folder of files, made on first use.

    The files are written elsewhere and appear by one rename, so that the folder is complete or absent: a build that is
    interrupted leaves nothing, and of two builders at once the slower one takes the other's files.
    """
    folder = root / f"photos-{stored.width}x{stored.height}-quality{stored.quality}-count{count}-seed{stored.seed}"
    if folder.is_dir():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".photos-") as scratch:
            draft = Path(scratch) / "photos"
            draft.mkdir()
            _write(draft, count, stored)
            _publish(draft, folder)
    except OSError as error:
        raise ValueError(
            f"data.path: the photos cannot be written below {root} ({error}): set data.path to a folder with space "
            "that can be written"
        ) from error
    return folder


def _publish(draft: Path, folder: Path) -> None:
    """Moves the finished draft to its place, unless another process was faster."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _write(folder: Path, count: int, stored: Stored) -> None:
    """Writes `count` crops, the photographs in turn, at places drawn from the seed's own generator."""
    photographs = [Image.fromarray(load_sample_image(name)) for name in _PHOTOGRAPHS]
    generator = torch.Generator().manual_seed(stored.seed)
    lefts = torch.randint(_PHOTOGRAPH_WIDTH - stored.width + 1, (count,), generator=generator)
    tops = torch.randint(_PHOTOGRAPH_HEIGHT - stored.height + 1, (count,), generator=generator)
    for number in range(count):
        left, top = int(lefts[number]), int(tops[number])
        crop = photographs[_label(number)].crop((left, top, left + stored.width, top + stored.height))
        crop.save(folder / _file_name(number), quality=stored.quality)
