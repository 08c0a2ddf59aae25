"""Shared memory that a worker fills again and again, so that no batch needs pages of its own.

torch gives every batch of a worker new shared memory. Its pages are made while the worker stacks, found again one by
one while the batch is pinned, and taken away while the process that trains holds Python's lock: with 154 MB a batch it
then stands still for tens of milliseconds. A lent buffer keeps its pages in both processes. It is filled anew only
after its reader has said that it has copied it, so the order in which torch asks workers for batches does not matter.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LEAST_BYTES = 2**20  # smaller batches cost too little to care
MOST_BUFFERS = 8  # of one worker; a batch that finds none free gets new memory
ALIGNED = 64  # bytes; the flag behind the batch has a cache line of its own


class Buffers:
    """The buffers of one worker. Each is uint8 [bytes + ALIGNED]; its last byte is 1 while a reader needs it."""

    def __init__(self) -> None:
        self._all: list[Tensor] = []

    def stack(self, samples: list[Tensor], lent: list[Tensor]) -> Tensor | None:
        """`samples` of one shape [...] and dtype as [batch, ...] in a buffer that is appended to `lent`; else None."""
        first = samples[0]
        if not _alike(samples) or (room := self.room((len(samples), *first.shape), first.dtype, lent)) is None:
            return None
        return torch.stack(samples, out=room)

    def room(self, shape: Sequence[int], dtype: torch.dtype, lent: list[Tensor]) -> Tensor | None:
        """A contiguous tensor in a buffer that is appended to `lent`; None where it is small or no buffer is free."""
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST_BYTES or (buffer := self._free(size)) is None:
            return None
        buffer[-1] = 1
        lent.append(buffer)
        return buffer[:size].view(dtype).view(*shape)

    def copied(self, leaf: Any, lent: list[Tensor]) -> Any:
        """`leaf` in a buffer that is appended to `lent`; as it is where it lies in one of them, or cannot."""
        if not isinstance(leaf, Tensor) or not _alike([leaf]) or not leaf.is_contiguous():
            return leaf
        if leaf.untyped_storage().data_ptr() in [buffer.untyped_storage().data_ptr() for buffer in lent]:
            return leaf
        room = self.room(leaf.shape, leaf.dtype, lent)
        return leaf if room is None else room.copy_(leaf)

    def _free(self, size: int) -> Tensor | None:
        whole = -(-size // ALIGNED) * ALIGNED + ALIGNED
        free = [buffer for buffer in self._all if not buffer[-1]]
        fitting = [buffer for buffer in free if len(buffer) == whole]
        if fitting:
            return fitting[0]
        if len(self._all) == MOST_BUFFERS and not free:
            return None
        if len(self._all) == MOST_BUFFERS:  # sizes change: the one that is longest there gives way
            self._all = [buffer for buffer in self._all if buffer is not free[0]]
        self._all.append(torch.zeros(whole, dtype=torch.uint8).share_memory_())
        return self._all[-1]


def _alike(samples: list[Tensor]) -> bool:
    """Whether stacking in place gives what torch.stack alone would give: plain strided tensors of one kind."""
    first = samples[0]
    return all(
        type(sample) is Tensor
        and sample.layout == torch.strided
        and sample.device.type == "cpu"
        and sample.dtype == first.dtype
        and sample.shape == first.shape
        and not sample.requires_grad
        and not sample.is_quantized
        for sample in samples
    )


class Borrowed(threading.local):
    """The reader's side. Keeps the buffers mapped: torch finds a mapping again only while something holds it.

    Each thread has its own: torch's pinning thread ends with its workers, and what it holds goes with it.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, Tensor]] = {}  # by worker, then by address; the latest last

    def give_back(self, lent: list[Tensor], worker: int) -> None:
        """To be called once the batch has been copied: `worker` may write into `lent` from now on."""
        kept = self._kept.setdefault(worker, {})
        for buffer in lent:
            kept[buffer.data_ptr()] = kept.pop(buffer.data_ptr(), buffer)
            buffer[-1] = 0
        for address in list(kept)[:-MOST_BUFFERS]:
            del kept[address]
