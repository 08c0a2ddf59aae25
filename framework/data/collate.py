"""From samples to a batch: stacked leaf by leaf, and wrapped for its way through worker and pinning thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from framework.data.buffers import Borrowed, Buffers
from framework.data.rooms import rooms, shared
from framework.data.whole import Whole
from framework.tree import Batch, field_names, is_record, rebuilt, tensors, tree_map

log = logging.getLogger("gearshift")


class Envelope:
    """A batch on its way from a worker: carries the process that made it, and pins what torch alone would not.

    `lent` are the worker's buffers that the batch lies in: it may be kept only after pin_memory has copied it.
    `whole` tells that the set made the batch at once.
    """

    def __init__(self, batch: Batch, process: int, lent: list[Tensor] | None = None, whole: bool = False) -> None:
        self.batch, self.process, self.lent, self.whole = batch, process, lent or [], whole

    def pin_memory(self) -> Envelope:
        """A copy in page-locked memory; torch's pinning thread calls it. The buffers go back to their worker."""
        pinned = Envelope(tree_map(_pinned, self.batch, own="pin_memory"), self.process, whole=self.whole)
        _borrowed.give_back(self.lent, self.process)
        return pinned


_borrowed = Borrowed()
_unpinned: set[type] = set()  # types that were noted once


def _pinned(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) or callable(getattr(leaf, "pin_memory", None)):
        return leaf.pin_memory()
    if not isinstance(leaf, str | bytes | int | float | complex | None) and type(leaf) not in _unpinned:
        _unpinned.add(type(leaf))
        log.warning("batches hold %s, which has no pin_memory(): it is passed on unpinned.", type(leaf).__name__)
    return leaf


@dataclass(frozen=True)
class Collate:
    """Samples, or a Whole that is to be made, to an Envelope. `name` is the set's, for messages.

    `function` makes the batch in place of `collate`.
    With `pinned` batches are copied before anybody else gets them, so a worker stacks them in buffers that it reuses.

    Errors: ValueError where a batch lies on a GPU although `host_only` says that workers or pinning will handle it.
    """

    name: str
    host_only: bool
    function: Callable[[list[Any]], Batch] | None = None
    pinned: bool = False
    buffers: Buffers = field(default_factory=Buffers)

    def __call__(self, samples: list[Any] | Whole) -> Envelope:
        lent: list[Tensor] = []
        if isinstance(samples, Whole):
            batch = self._made(samples, lent)
        elif self.function:
            batch = self.function(samples)
        elif self.pinned and get_worker_info():
            batch = collate(samples, partial(self.buffers.stack, lent=lent))
        else:
            batch = collate(samples)
        if self.host_only:
            refuse_device_tensors(batch, self.name)
        return Envelope(batch, os.getpid(), lent, isinstance(samples, Whole))

    def _made(self, whole: Whole, lent: list[Tensor]) -> Batch:
        """The batch, in the memory through which it leaves a worker. What the set put elsewhere is copied there."""
        if not get_worker_info():
            return whole()
        if not self.pinned:
            with rooms(shared):
                return whole()
        with rooms(partial(self.buffers.room, lent=lent)):
            batch = whole()
        return tree_map(partial(self.buffers.copied, lent=lent), batch, own="pin_memory")


def refuse_device_tensors(batch: Batch, name: str) -> None:
    """Errors: ValueError where a tensor of `batch` is not in the host's memory."""
    for tensor in tensors(batch):
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name} gives tensors on {tensor.device}, which neither workers nor pinning can handle: return CPU "
                "tensors (each batch is moved to the device), or set perf.workers=0 and perf.pinned=false."
            )


Stack = Callable[[list[Tensor]], Tensor | None]


def _nowhere(samples: list[Tensor]) -> None:
    """No memory but torch's own."""


def collate(samples: list[Any], stack: Stack = _nowhere) -> Batch:
    """Stacks samples of one structure leaf by leaf, as default_collate does, but keeps None and dataclasses too.

    Tensors of shape [...] become [batch, ...]; numbers become tensors [batch]; strings become lists; None stays None
    where every sample has it; containers keep their type. `stack` may stack tensors in memory of its own; where it
    gives None, default_collate does it. Errors: ValueError where the samples differ in structure.
    """
    first = samples[0]
    if any((sample is None) != (first is None) for sample in samples):
        raise ValueError("a batch holds None in some samples and not in others: set data.collate for such samples.")
    if first is None:
        return None
    if not isinstance(first, Tensor) and hasattr(first, "pin_memory"):
        stack = _nowhere  # what it will copy is its own affair, so nothing of it may lie in borrowed memory
    if len(set(map(type, samples))) > 1 and (isinstance(first, Mapping | tuple | list) or is_record(first)):
        families = (Mapping, tuple | list)
        kinds = {next((kind for kind in families if isinstance(sample, kind)), type(sample)) for sample in samples}
        if len(kinds) > 1:
            names = " and ".join(sorted({type(sample).__name__ for sample in samples}))
            raise ValueError(f"a batch holds {names} side by side: set data.collate for such samples.")
    if isinstance(first, Mapping):
        if any(sample.keys() != first.keys() for sample in samples):
            odd = sorted({repr(key) for sample in samples for key in sample.keys() ^ first.keys()})
            raise ValueError(
                f"a batch holds {', '.join(odd)} in some samples and not in others: set data.collate for such samples."
            )
        return rebuilt(first, {key: collate([sample[key] for sample in samples], stack) for key in first})
    if isinstance(first, tuple | list):
        if any(len(sample) != len(first) for sample in samples):
            lengths = sorted({len(sample) for sample in samples})
            raise ValueError(f"a batch holds sequences of {lengths} items: set data.collate for such samples.")
        return rebuilt(first, [collate(list(column), stack) for column in zip(*samples, strict=True)])
    if is_record(first):
        columns = {name: [getattr(sample, name) for sample in samples] for name in field_names(first)}
        return rebuilt(first, {name: collate(column, stack) for name, column in columns.items()})
    stacked = stack(samples) if isinstance(first, Tensor) else None
    return default_collate(samples) if stacked is None else stacked
