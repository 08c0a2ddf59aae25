"""Run folders: claimed atomically, so that two runs never share one."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

from framework.mistakes import ConfigError


@functools.cache  # Hydra asks several times while it composes; one process, one answer for one name
def claim(root: str, name: str) -> str:
    """Creates and returns `root/DATE/TIME_name`, numbered where another run was first.

    The name is cut to characters that need no quoting in a shell or in an override.
    """
    now = datetime.now()
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "run"
    day = Path(root) / f"{now:%Y-%m-%d}"
    day.mkdir(parents=True, exist_ok=True)
    for number in count():
        folder = day / f"{now:%H%M%S}_{safe}{f'-{number}' if number else ''}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return str(folder)
    raise AssertionError("count() never ends")


def give_up(folder: Path) -> None:
    """Removes a folder that a run claimed and did not come to use, and the one above; neither unless it is empty."""
    for empty in (folder, folder.parent):
        try:
            empty.rmdir()
        except OSError:
            return


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
