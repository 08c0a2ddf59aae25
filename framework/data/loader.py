"""One loader for training and evaluation: seeded order, workers, pinning, and errors that say what to do."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from framework.data.collate import Collate, Envelope, refuse_device_tensors
from framework.data.deaths import explain_deaths, explained
from framework.data.seeding import SeededSamples, ShardedStream, generators_kept, mixed, permutation
from framework.tree import Batch, rows

log = logging.getLogger("gearshift")


@dataclass(frozen=True)
class LoaderSettings:
    """How a set is batched. `options` go to torch's DataLoader as they are (workers, pinning)."""

    name: str  # data.train or data.eval, for messages
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    drop_single: bool = False  # drop a batch of one row, which batch norm cannot train on
    seed_samples: bool = True
    self_sharded: bool = False
    options: dict[str, Any] = field(default_factory=dict)


class SeededOrder(Sampler[int]):
    """A permutation of the indices that depends on seed and epoch alone."""

    def __init__(self, length: int, seed: int, epoch: Tensor) -> None:
        self.length, self.seed, self.epoch = length, seed, epoch

    def __iter__(self) -> Iterator[int]:
        yield from permutation(self.length, self.seed, int(self.epoch)).tolist()

    def __len__(self) -> int:
        return self.length


class Loader:
    """Batches of a map-style or iterable set, one epoch at a time.

    Errors: ValueError where the set has neither a length nor is iterable, where it and the batch size leave no batch,
    or where its samples lie on a GPU although workers or pinning are on.
    """

    def __init__(
        self, dataset: Any, settings: LoaderSettings, function: Callable[[list[Any]], Batch] | None = None
    ) -> None:
        self.settings = settings
        self.processes: set[int] = set()
        self.handed = self.whole = 0  # batches so far, and those that the set made at once
        self.workers: int = settings.options.get("num_workers", 0)
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that live on read it too
        self._ready: Iterator[Envelope] | None = None
        self._kept: weakref.finalize[..., Loader] | None = None
        self._told = False
        self.streamed = isinstance(dataset, IterableDataset)
        self.length = _length(dataset)
        self.drops_last = settings.drop_last or self._ends_in_one_row()
        pinned = bool(settings.options.get("pin_memory"))
        host_only = bool(self.workers or pinned)
        self._check(dataset, host_only)
        self._loader = self._made(dataset, Collate(settings.name, host_only, function, pinned))

    def _check(self, dataset: Any, host_only: bool) -> None:
        at, size = self.settings, self.length
        if size is None and not self.streamed:
            raise ValueError(
                f"{at.name} is a {type(dataset).__name__}, which has no length: give it __len__ and __getitem__, or "
                "derive it from torch.utils.data.IterableDataset."
            )
        if size == 0 or (size is not None and at.drop_last and size < at.batch_size):
            raise ValueError(f"{at.name} has {size} rows, which {self._leave()}.")
        if host_only and not self.streamed and torch.cuda.is_initialized():
            with generators_kept():
                refuse_device_tensors(dataset[0], at.name)

    def _leave(self) -> str:
        size, drop = self.settings.batch_size, str(self.settings.drop_last).lower()
        facts = f"data.batch_size={size} and data.drop_last={drop}"
        return f"with {facts} leave no batch: use more rows, a smaller batch, or keep the last one"

    def _ends_in_one_row(self) -> bool:
        """Whether each epoch would end in a batch of one row that is not wanted; tells it."""
        at = self.settings
        if self.length is None or at.drop_last or not at.drop_single:
            return False
        single = self.length > at.batch_size > 1 and self.length % at.batch_size == 1
        if single:
            self._tell_single("the last batch of each epoch has")
        return single

    def _tell_single(self, which: str) -> None:
        if not self._told:
            log.warning("%s: %s one row, which batch norm cannot train on: it is left out.", self.settings.name, which)
        self._told = True

    def _made(self, dataset: Any, envelope: Collate) -> DataLoader[Any]:
        at, order = self.settings, None
        seed = at.seed if at.seed_samples else None
        if self.streamed:
            dataset = ShardedStream(dataset, None if at.self_sharded else at.batch_size, seed, self._epoch)
        elif seed is not None:
            dataset = SeededSamples(dataset, seed, self._epoch)
        if at.shuffle and not self.streamed:
            assert self.length is not None, "checked"
            order = SeededOrder(self.length, at.seed, self._epoch)
        return DataLoader(
            dataset,
            batch_size=at.batch_size,
            sampler=order,
            drop_last=at.drop_last if self.streamed else self.drops_last,
            collate_fn=envelope,
            generator=torch.Generator().manual_seed(mixed(at.seed)),  # else it would be the global one
            **at.options,
        )

    @property
    def batches(self) -> int | None:
        """Batches in an epoch; None where the set has no length, or splits itself over several workers."""
        if self.length is None or (self.streamed and self.settings.self_sharded and self.workers > 1):
            return None
        whole, rest = divmod(self.length, self.settings.batch_size)
        return whole + (rest > 0 and not self.drops_last)

    def start(self) -> None:
        """Starts the workers for epoch 0 now, so that they are forked before the pinning thread or we touch a GPU."""
        if self.workers:
            self._ready = self._begun()

    def _begun(self) -> Iterator[Envelope]:
        batches = iter(self._loader)
        if self.workers and not self._kept:
            explain_deaths()
            # Collected as part of a cycle, torch's iterator loses its queues first, and each worker ends by a timeout
            # of seconds. Held from outside it is never part of one: it goes after this loader.
            self._kept = weakref.finalize(self, [batches].clear)
            self._kept.atexit = False
            atexit.register(_end_workers, weakref.ref(batches))
        return batches

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`.

        Errors: ValueError where there is none; WorkerError with a hint where a worker was killed.
        """
        batches, self._ready, seen = self._ready, None, 0
        if batches is None or number != 0:
            self._epoch.fill_(number)
            batches = self._begun()
        while (envelope := self._next(batches)) is not None:
            self.processes.add(envelope.process)
            if self._unwanted(envelope.batch):
                continue
            seen += 1
            self.handed += 1
            self.whole += envelope.whole
            yield envelope.batch
        if not seen:
            raise ValueError(
                f"{self.settings.name} gave no batch in epoch {number}: an iterable set must start anew each time; "
                f"where it does, its rows {self._leave()}."
            )

    def _unwanted(self, batch: Batch) -> bool:
        """Whether a stream's batch is left out; the end of a stream is not known before."""
        at = self.settings
        if not (self.streamed and at.drop_single and at.batch_size > 1 and rows(batch) == 1):
            return False
        self._tell_single("a batch has")
        return True

    def _next(self, batches: Iterator[Envelope]) -> Envelope | None:
        try:
            if self.workers or not self.settings.seed_samples:
                return next(batches, None)
            with generators_kept():
                return next(batches, None)
        except (RuntimeError, OSError) as error:
            if not self.workers or (told := explained(error, self.settings.name)) is None:
                raise
            raise told from error


def _length(dataset: Any) -> int | None:
    """The number of samples; None where the set does not tell (torch's own pipes then raise TypeError)."""
    if not isinstance(dataset, Sized):
        return None
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _end_workers(batches: weakref.ref[Any]) -> None:
    """At exit: lets busy workers end by themselves. Python would end them by a signal, which torch calls a death."""
    alive = batches()
    if alive is not None:
        alive._shutdown_workers()
