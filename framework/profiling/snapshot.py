"""`profile=memory`: the CUDA allocator's history, for https://pytorch.org/memory_viz."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

SNAPSHOT = "memory_snapshot.pickle"
MOST_ENTRIES = 200_000  # the oldest give way; each takes a few kB of the host's memory


class Snapshot:
    """A tool that records each allocation with its Python stack, from the first step on, also to an error.

    What was allocated before, as the model's weights, is in the snapshot without a stack.
    Source: https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, step: int) -> None:
        """Told before each step, up to the last one that is covered."""
        if step == 1:
            torch.cuda.memory._record_memory_history(stacks="python", max_entries=MOST_ENTRIES)

    def end(self, steps: int) -> dict[str, Any]:
        """Writes the snapshot, also of a run that ended early, and stops recording."""
        torch.cuda.memory._dump_snapshot(str(self.folder / SNAPSHOT))
        torch.cuda.memory._record_memory_history(enabled=None)
        return {"files": {"snapshot": SNAPSHOT}}

    def failed(self) -> dict[str, Any]:
        """The same after an error: where memory ran out, this shows what held it."""
        with contextlib.suppress(Exception):  # the error that ended the run is the one to be told
            return self.end(0)
        return {}
