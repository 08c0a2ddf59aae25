"""TensorBoard: one run, one event file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary as Event
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

FLUSH_SECONDS = 10  # what a killed run may lose


class Events:
    """Writes scalars, the config and the hyperparameters of one run into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.writer = SummaryWriter(str(folder), flush_secs=FLUSH_SECONDS)

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        """All figures of a step as one event, so that a log point is cheap."""
        values = [Event.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
        self._add(Event(value=values), step)

    def config(self, text: str) -> None:
        """The resolved config, as YAML."""
        self.writer.add_text("config", f"```yaml\n{text}\n```")

    def hyperparameters(self, config: dict[str, Any], finals: Mapping[str, float], step: int) -> None:
        """Hyperparameters with final metrics, in this run itself: `add_hparams` would make a second run of them."""
        for event in hparams(dict(_flat(config)), dict(finals)):
            self._add(event, step)
        self.scalars(finals, step)

    def _add(self, event: Any, step: int) -> None:
        file_writer = self.writer.file_writer
        assert file_writer is not None, "open until close()"
        file_writer.add_summary(event, step)

    def close(self) -> None:
        """Flushes and closes the file."""
        self.writer.close()


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | str | float]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)
