"""Text without a download: the source code of Python's own standard library, byte by byte (256 tokens).

The text is that of the running interpreter, so losses compare only between runs on the same Python version.
"""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

# Installed packages, tests, and files that are generated tables or describe this machine rather than code by people.
_SKIPPED = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "encodings")
)
_GENERATED_PREFIX = "_sysconfigdata"


class StdlibText(Dataset[tuple[Tensor, Tensor]]):
    """Random windows over the standard library's sources, split by file (about 90 % train, 10 % held out).

    Item: (int64 [context], int64 [context]), the second shifted by one byte. In training the window is drawn from
    torch's global generator; held out, it is a pure function of `seed` and the index.

    Args:
        train: the training files, otherwise the held-out files.
        context: bytes that the model sees at once.
        count: number of items, which is the length of an epoch; None: as many as windows fit side by side.
        seed: chooses the held-out windows.

    Raises:
        ValueError: `context` or `count` is below 1, or the text is shorter than one window.
    """

    def __init__(self, train: bool, context: int, count: int | None = None, seed: int = 0) -> None:
        if context < 1:
            raise ValueError(f"data.context={context} must be at least 1")
        if count is not None and count < 1:
            raise ValueError(f"data.count={count} must be at least 1, or null for one pass over the text")
        root = Path(sysconfig.get_path("stdlib"))
        self.text = _read(root, train)
        if len(self.text) <= context:
            raise ValueError(
                f"data.context={context} needs at least {context + 1} bytes of text, but the .py files of Python's "
                f"standard library in {root} give {len(self.text)}: set a smaller data.context or use other data"
            )
        self.train = train
        self.context = context
        self.seed = seed
        self.count = len(self.text) // context if count is None else count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(f"index {index} is out of range for {self.count} windows")
        starts = len(self.text) - self.context
        start = int(torch.randint(starts, ())) if self.train else _stable_hash(f"{self.seed}:{index}") % starts
        window = self.text[start : start + self.context + 1].to(torch.int64)
        return window[:-1], window[1:]


def _read(root: Path, train: bool) -> Tensor:
    """The chosen files one after the other, in sorted order: uint8 [bytes], empty if there are none."""
    text = bytearray()
    for path in _sources(root):
        held_out = _stable_hash(path.relative_to(root).as_posix()) % 10 == 0
        if held_out != train:
            text += path.read_bytes()
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def _sources(folder: Path) -> Iterator[Path]:
    """The .py files below a folder in sorted order; skipped folders are not entered."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in _SKIPPED:
                yield from _sources(path)
        elif path.suffix == ".py" and not path.name.startswith(_GENERATED_PREFIX):
            yield path


def _stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process and on every machine, which `hash` is not."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
