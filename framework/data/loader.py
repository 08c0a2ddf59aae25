"""One loader for training and evaluation: seeded order, workers, pinning, and errors that say what to do."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from framework.data.seeding import SeededSamples, ShardedStream, generators_kept, mixed
from framework.tree import Batch, rows, tensors, tree_map

log = logging.getLogger("gearshift")


@dataclass(frozen=True)
class LoaderSettings:
    """How a set is batched. `options` go to torch's DataLoader as they are (workers, pinning)."""

    name: str  # data.train or data.eval, for messages
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    drop_single: bool = False  # drop a last batch of one row, which batch norm cannot train on
    seed_samples: bool = True
    self_sharded: bool = False
    options: dict[str, Any] = field(default_factory=dict)


class SeededOrder(Sampler[int]):
    """A permutation of the indices that depends on seed and epoch alone."""

    def __init__(self, length: int, seed: int, epoch: Tensor) -> None:
        self.length, self.seed, self.epoch = length, seed, epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(mixed(self.seed, int(self.epoch)))
        yield from torch.randperm(self.length, generator=generator).tolist()

    def __len__(self) -> int:
        return self.length


class Envelope:
    """A batch on its way from a worker: carries the process that made it, and pins what torch alone would not."""

    def __init__(self, batch: Batch, process: int) -> None:
        self.batch, self.process = batch, process

    def pin_memory(self) -> Envelope:
        """Called by torch's pinning thread."""
        return Envelope(tree_map(_pinned, self.batch), self.process)


_unpinned: set[type] = set()  # types that were noted once


def _pinned(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) or callable(getattr(leaf, "pin_memory", None)):
        return leaf.pin_memory()
    if not isinstance(leaf, str | bytes | int | float | complex | None) and type(leaf) not in _unpinned:
        _unpinned.add(type(leaf))
        log.warning("batches hold %s, which has no pin_memory(): it is passed on unpinned.", type(leaf).__name__)
    return leaf


class Collate:
    """Samples to an Envelope. `function` replaces the default, which nests as `collate` does."""

    def __init__(self, function: Callable[[list[Any]], Batch] | None = None) -> None:
        self.function = function or collate

    def __call__(self, samples: list[Any]) -> Envelope:
        return Envelope(self.function(samples), os.getpid())


def collate(samples: list[Any]) -> Batch:
    """Stacks samples of one structure leaf by leaf, as default_collate does, but keeps None, tuples and dataclasses.

    Tensors of shape [...] become [batch, ...]; numbers become tensors [batch]; strings become lists; None stays None.
    """
    first = samples[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        columns = [collate(list(column)) for column in zip(*samples, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in dataclasses.fields(first) if f.init]
        return type(first)(**{name: collate([getattr(sample, name) for sample in samples]) for name in names})
    return default_collate(samples)


class Loader:
    """Batches of a map-style or iterable set, one epoch at a time.

    Errors: ValueError where the set and the batch size leave no batch, or where its samples lie on a GPU although
    workers or pinning are on.
    """

    def __init__(
        self, dataset: Any, settings: LoaderSettings, function: Callable[[list[Any]], Batch] | None = None
    ) -> None:
        self.settings = settings
        self.processes: set[int] = set()
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that live on read it too
        self._ready: Iterator[Envelope] | None = None
        self.streamed = isinstance(dataset, IterableDataset)
        self.length = len(dataset) if isinstance(dataset, Sized) else None
        self._check(dataset)
        make = self._streamed if self.streamed else self._indexed
        self._loader: DataLoader[Any] = make(dataset, Collate(function))

    def _check(self, dataset: Any) -> None:
        at, size = self.settings, self.length
        if size == 0 or (size is not None and at.drop_last and size < at.batch_size):
            raise ValueError(
                f"{at.name} has {size} rows, which with data.batch_size={at.batch_size} and "
                f"data.drop_last={str(at.drop_last).lower()} leave no batch: use "
                "more rows, a smaller batch, or keep the last one."
            )
        early = at.options.get("num_workers") or at.options.get("pin_memory")
        if early and not self.streamed and torch.cuda.is_initialized() and any(t.is_cuda for t in tensors(dataset[0])):
            raise ValueError(
                f"{at.name} gives tensors on the GPU, which neither workers nor pinning can handle: return CPU "
                "tensors (each batch is moved to the device), or set perf.workers=0 and perf.pinned=false."
            )

    def _indexed(self, dataset: Any, envelope: Collate) -> DataLoader[Any]:
        at, size = self.settings, len(dataset)
        single = at.drop_single and at.batch_size > 1 and size > at.batch_size and size % at.batch_size == 1
        if single and not at.drop_last:
            log.warning(
                "%s: the last batch of each epoch has one row, which batch norm cannot train on: it is left out.",
                at.name,
            )
        self.drops_last = at.drop_last or single
        return DataLoader(
            SeededSamples(dataset, at.seed, self._epoch) if at.seed_samples else dataset,
            batch_size=at.batch_size,
            sampler=SeededOrder(size, at.seed, self._epoch) if at.shuffle else None,
            drop_last=self.drops_last,
            collate_fn=envelope,
            generator=torch.Generator(),  # else each epoch would draw from the global one
            **at.options,
        )

    def _streamed(self, dataset: Any, envelope: Collate) -> DataLoader[Any]:
        at, self.drops_last = self.settings, self.settings.drop_last
        seed = at.seed if at.seed_samples else None
        stream = ShardedStream(dataset, None if at.self_sharded else at.batch_size, seed, self._epoch)
        return DataLoader(
            stream,
            batch_size=at.batch_size,
            drop_last=at.drop_last,
            collate_fn=envelope,
            generator=torch.Generator(),
            **at.options,
        )

    @property
    def batches(self) -> int | None:
        """Batches in an epoch; None where the set has no length."""
        if self.length is None:
            return None
        whole, rest = divmod(self.length, self.settings.batch_size)
        return whole + (rest > 0 and not self.drops_last)

    def start(self) -> None:
        """Starts the workers for epoch 0 now, so that they are forked before this process touches a GPU."""
        if self.settings.options.get("num_workers"):
            self._ready = iter(self._loader)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`.

        Errors: ValueError where there is none; RuntimeError with a hint where a worker was killed.
        """
        ready, self._ready = self._ready, None
        if ready is None or number != 0:
            self._epoch.fill_(number)
            ready = iter(self._loader)
        seen = 0
        while (envelope := self._next(ready)) is not None:
            self.processes.add(envelope.process)
            if (
                self.streamed
                and self.settings.drop_single
                and self.settings.batch_size > 1
                and rows(envelope.batch) == 1
            ):
                continue
            seen += 1
            yield envelope.batch
        if not seen:
            raise ValueError(
                f"{self.settings.name} gave no batch in epoch {number}: an iterable set must start anew each time."
            )

    def _next(self, batches: Iterator[Envelope]) -> Envelope | None:
        try:
            if self.settings.options.get("num_workers") or not self.settings.seed_samples:
                return next(batches, None)
            with generators_kept():
                return next(batches, None)
        except RuntimeError as error:
            if not re.search(r"DataLoader worker \(pid", str(error)):
                raise
            raise RuntimeError(
                f"a loader worker of {self.settings.name} died ({str(error).splitlines()[0]}). Usual causes: "
                "memory (fewer perf.workers or a smaller data.batch_size), a small /dev/shm, or too many open files "
                "(torch.multiprocessing.set_sharing_strategy('file_system'))."
            ) from error
