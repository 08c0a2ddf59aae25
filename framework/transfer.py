"""Batches on their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from framework.tree import Batch, tree_map


class Transfer:
    """Moves the tensors of a batch, and whatever else has a `to()`, to `device`.

    A copy does not wait only where `asynchronous` is set and the source is page-locked: otherwise it could not overlap
    anyway. `pinned` and `pageable` count the tensors copied from either kind of memory.
    """

    def __init__(self, device: torch.device, asynchronous: bool) -> None:
        self.device, self.asynchronous = device, asynchronous
        self.pinned = self.pageable = 0

    def __call__(self, batch: Batch) -> Batch:
        return tree_map(self._move, batch)

    def _move(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            pinned = self.asynchronous and leaf.is_pinned()
            self.pinned += pinned
            self.pageable += not pinned
            return leaf.to(self.device, non_blocking=pinned)
        return leaf.to(self.device) if callable(getattr(leaf, "to", None)) else leaf
