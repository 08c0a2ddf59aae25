"""From samples to a batch: stacked leaf by leaf, and wrapped for its way through worker and pinning thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from framework.tree import Batch, field_names, is_record, rebuilt, tensors, tree_map

log = logging.getLogger("gearshift")


class Envelope:
    """A batch on its way from a worker: carries the process that made it, and pins what torch alone would not."""

    def __init__(self, batch: Batch, process: int) -> None:
        self.batch, self.process = batch, process

    def pin_memory(self) -> Envelope:
        """Called by torch's pinning thread, which would copy with one thread alone: large batches would wait for it."""
        if threading.current_thread() is not threading.main_thread():  # the setting is the calling thread's own
            torch.set_num_threads(PINNING_THREADS)
        return Envelope(tree_map(_pinned, self.batch, own="pin_memory"), self.process)


PINNING_THREADS = max(1, min(4, (os.cpu_count() or 1) // 4))
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
    """Samples to an Envelope. `function` makes the batch; `name` is the set's, for messages.

    Errors: ValueError where a batch lies on a GPU although `host_only` says that workers or pinning will handle it.
    """

    name: str
    host_only: bool
    function: Callable[[list[Any]], Batch]

    def __call__(self, samples: list[Any]) -> Envelope:
        batch = self.function(samples)
        if self.host_only:
            refuse_device_tensors(batch, self.name)
        return Envelope(batch, os.getpid())


def refuse_device_tensors(batch: Batch, name: str) -> None:
    """Errors: ValueError where a tensor of `batch` is not in the host's memory."""
    for tensor in tensors(batch):
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name} gives tensors on {tensor.device}, which neither workers nor pinning can handle: return CPU "
                "tensors (each batch is moved to the device), or set perf.workers=0 and perf.pinned=false."
            )


def collate(samples: list[Any]) -> Batch:
    """Stacks samples of one structure leaf by leaf, as default_collate does, but keeps None and dataclasses too.

    Tensors of shape [...] become [batch, ...]; numbers become tensors [batch]; strings become lists; None stays None
    where every sample has it; containers keep their type. Errors: ValueError where the samples differ in structure.
    """
    first = samples[0]
    if any((sample is None) != (first is None) for sample in samples):
        raise ValueError("a batch holds None in some samples and not in others: set data.collate for such samples.")
    if first is None:
        return None
    if isinstance(first, Mapping):
        return rebuilt(first, {key: collate([sample[key] for sample in samples]) for key in first})
    if isinstance(first, tuple | list):
        if any(len(sample) != len(first) for sample in samples):
            lengths = sorted({len(sample) for sample in samples})
            raise ValueError(f"a batch holds sequences of {lengths} items: set data.collate for such samples.")
        return rebuilt(first, [collate(list(column)) for column in zip(*samples, strict=True)])
    if is_record(first):
        return rebuilt(first, {name: collate([getattr(s, name) for s in samples]) for name in field_names(first)})
    return default_collate(samples)
