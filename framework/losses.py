"""Losses stay on the device until a log point reads them, all at once."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 4096


class Losses:
    """The loss of every step. `history` holds those read so far; `host_reads` counts how often the host waited."""

    def __init__(self, device: torch.device) -> None:
        self.history: list[float] = []
        self.host_reads = 0
        self.device = device
        self._full: list[Tensor] = []
        self._chunk = torch.empty(CHUNK, device=device)
        self._used = 0

    def add(self, loss: Tensor) -> None:
        """Keeps a scalar on the device; its graph is let go."""
        if self._used == CHUNK:
            self._full.append(self._chunk)
            self._chunk, self._used = torch.empty(CHUNK, device=self.device), 0
        self._chunk[self._used].copy_(loss.detach())
        self._used += 1

    def read(self) -> list[float]:
        """The losses since the last read. Waits for the device."""
        if not self._used and not self._full:
            return []
        held = self._chunk[: self._used] if not self._full else torch.cat([*self._full, self._chunk[: self._used]])
        new: list[float] = held.tolist()
        self._full, self._used = [], 0
        self.host_reads += 1
        self.history += new
        return new
