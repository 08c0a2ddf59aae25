"""The user's own pictures: one folder per class below `train` and `val`."""

import os
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from framework.data.augment import Augment
from framework.data.images import read_rgb


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Pictures in `path/train/<class>/` and `path/val/<class>/`, found by torchvision's rules for image folders.

    Item: (float32 [3, image_size, image_size] normalised, label). Labels number the class folders of `train` in sorted
    order, for both parts. Training items draw crop and flip from torch's global generator.

    Args:
        path: the folder that holds `train` and `val`.
        train: the training part with random crops, otherwise `val` with fixed crops.
        image_size: side of an item in pixels.
        classes: the number of classes that the model expects, checked against the folders; None: not checked.

    Raises:
        ValueError: the layout is not as above, a folder holds no pictures, or `classes` differs from the folders.
    """

    def __init__(self, path: str, train: bool, image_size: int = 224, classes: int | None = None) -> None:
        self.prepare = Augment(train, image_size)
        root = Path(path).expanduser()
        names = _class_names(root)
        if classes is not None and classes != len(names):
            raise ValueError(
                f"data.classes={classes}, but data.path={root} holds {len(names)} class folders in train: "
                f"set data.classes={len(names)}"
            )
        self.folder = root / ("train" if train else "val")
        samples = _scan(self.folder, names)
        # One array of bytes instead of a list of strings: reading a list's items changes their reference counts, which
        # copies the list page by page into every worker.
        encoded = [os.fsencode(os.path.relpath(file, self.folder)) for file, _ in samples]
        self.ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        self.names = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        self.labels = np.array([label for _, label in samples], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.prepare(read_rgb(self.file(index))), int(self.labels[index])

    def file(self, index: int) -> Path:
        """The picture's file.

        Raises:
            IndexError: the index is out of range.
        """
        if not 0 <= index < len(self.labels):
            raise IndexError(f"index {index} is out of range for {len(self.labels)} pictures")
        start = self.ends[index - 1] if index else 0
        return self.folder / os.fsdecode(self.names[start : self.ends[index]].tobytes())


def _layout_error(root: Path, found: str) -> ValueError:
    return ValueError(
        f"data.path={root}: {found}; set data.path to a folder that holds train/<class>/*.jpg and val/<class>/*.jpg"
    )


def _class_names(root: Path) -> list[str]:
    """The sorted class folders of `train`, after a check that `val` has no others."""
    names, held_out = (_folders(root, part) for part in ("train", "val"))
    unknown = sorted(set(held_out) - set(names))
    if unknown:
        raise _layout_error(root, f"the class {unknown[0]} is in val but not in train")
    return names


def _folders(root: Path, part: str) -> list[str]:
    """The sorted folders of one part, without hidden ones (such as .ipynb_checkpoints), which are nobody's class."""
    if not (root / part).is_dir():
        raise _layout_error(root, f"the folder {root / part} is missing")
    names = sorted(entry.name for entry in (root / part).iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise _layout_error(root, f"{root / part} has no class folders")
    return names


def _scan(folder: Path, names: list[str]) -> list[tuple[str, int]]:
    """(file, label) of every picture, sorted."""
    numbers = {name: number for number, name in enumerate(names)}
    samples: list[tuple[str, int]] = make_dataset(
        folder, class_to_idx=numbers, extensions=IMG_EXTENSIONS, allow_empty=True
    )
    if not samples:
        raise _layout_error(folder.parent, f"the class folders in {folder} hold no pictures")
    return samples
