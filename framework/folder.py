"""Run folders: claimed atomically, so that two runs never share one."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

from framework.mistakes import ConfigError

ATTEMPTS, PAUSE_S = 1000, 1e-3


@functools.cache  # Hydra asks several times while it composes; one process, one answer for one name
def claim(root: str, name: str) -> str:
    """Creates and returns `root/DATE/TIME_name`, numbered where another run was first.

    The name is cut to characters that need no quoting in a shell or in an override.
    """
    now = datetime.now()
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "run"
    day = Path(root) / f"{now:%Y-%m-%d}"
    for number in count():
        folder = day / f"{now:%H%M%S}_{safe}{f'-{number}' if number else ''}"
        if _created(folder):
            return str(folder)
    raise AssertionError("count() never ends")


def _created(folder: Path) -> bool:
    """Creates `folder`, and those above; False where it exists. Errors: OSError where it cannot be created."""
    for _ in range(ATTEMPTS):  # another run may give up an empty folder above at any moment
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            return True
        if folder.exists():
            return False
        time.sleep(PAUSE_S)
    raise OSError(f"{folder} cannot be created: set hydra.run.dir to a folder that can.")


def give_up(folder: Path) -> None:
    """Removes a folder that a run did not come to use, and what `claim` made above it; none unless it is empty."""
    claimed = re.fullmatch(r"\d{4}-\d\d-\d\d", folder.parent.name) is not None
    with contextlib.suppress(OSError):
        for empty in (folder, folder.parent, folder.parent.parent) if claimed else (folder,):
            empty.rmdir()


@contextlib.contextmanager
def taken(folder: Path, config: str) -> Iterator[None]:
    """Marks `folder` as this run's by creating its `config.yaml`, which goes again if the config proves wrong inside.

    Errors: ConfigError where another run did so before; nothing of that run is touched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / "config.yaml").open("x", encoding="utf-8") as file:
            file.write(config)
    except FileExistsError:
        raise ConfigError(f"hydra.run.dir={folder} holds a run already: name another, or leave the key out.") from None
    try:
        yield
    except ConfigError:
        (folder / "config.yaml").unlink()
        raise
