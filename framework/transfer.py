"""Batches on their way to the device."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor

from framework.tree import Batch, tensors, tree_map


class Transfer:
    """Moves the tensors of a batch, and whatever else has a `to()` by that, to `device`.

    A copy does not wait only where `asynchronous` is set and the source is page-locked: otherwise it could not overlap
    anyway. `pinned` and `pageable` count the tensors copied from either kind of memory.
    """

    def __init__(self, device: torch.device, asynchronous: bool) -> None:
        self.device, self.asynchronous = device, asynchronous
        self.pinned = self.pageable = 0

    def __call__(self, batch: Batch) -> Batch:
        return tree_map(self._move, batch, own="to")

    def _move(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(self.device, non_blocking=self._counted(leaf))
        if not callable(getattr(leaf, "to", None)):
            return leaf
        kind: Any = type(leaf)
        pinned = [self._counted(tensor) for tensor in tensors(leaf)]
        if pinned and all(pinned) and _may_not_wait(kind):
            return leaf.to(self.device, non_blocking=True)
        return leaf.to(self.device)

    def _counted(self, tensor: Tensor) -> bool:
        if tensor.device.type != "cpu":
            return False  # it lies on a device: no copy from the host
        pinned = self.asynchronous and tensor.is_pinned()
        self.pinned += pinned
        self.pageable += not pinned
        return pinned


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, by way of page-locked memory where that is a GPU, so that the host does not wait."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@functools.cache
def _may_not_wait(kind: type) -> bool:
    """Whether the `to()` of `kind` takes `non_blocking`, as those of torch do."""
    try:
        parameters = inspect.signature(kind.to).parameters  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return False  # made by the instance, or written in C
    return "non_blocking" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
