"""Random numbers that a sample draws: a function of seed, epoch and index alone, whatever the loader's settings.

The generators are seeded before each sample. With workers this happens in the worker; without, the main process's
generators are put back after each batch, so that the model's own draws (dropout) never see the loader.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

_MIX = 0x9E3779B97F4A7C15  # the golden ratio's odd 64-bit fraction, as in splitmix64


def mixed(*numbers: int) -> int:
    """A 64-bit number that depends on every one of `numbers` and their order (splitmix64's finalizer, chained)."""
    state = 0
    for number in numbers:
        state = (state + number + _MIX) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def seed_generators(*numbers: int) -> None:
    """Seeds Python's, numpy's and torch's CPU generator from `numbers`. Never touches a GPU's."""
    seed = mixed(*numbers)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def seed_process(seed: int) -> None:
    """Seeds the process: Python, numpy and torch, the GPUs included."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Puts the three global CPU generators back as they were."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])


def drawing(make: Callable[[], Any]) -> tuple[Any, bool]:
    """What `make` gives, and whether it drew from a global CPU generator; these are put back as they were."""
    with generators_kept():
        before = _states()
        made = make()
        return made, _states() != before


def _states() -> tuple[object, ...]:
    own = pickle.dumps(np.random.get_state(legacy=False))
    return random.getstate(), own, torch.default_generator.get_state().tolist()


def permutation(length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch, int64 [length]: it depends on seed and epoch alone."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(mixed(seed, epoch)))


class SeededSamples(Dataset[Any]):
    """A map-style set whose generators are seeded from (seed, epoch, index) before each sample."""

    def __init__(self, samples: Any, seed: int, epoch: torch.Tensor) -> None:
        self.samples, self.seed, self.epoch = samples, seed, epoch

    def __getitem__(self, index: int) -> Any:
        seed_generators(self.seed, int(self.epoch), index)
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


class ShardedStream(IterableDataset[Any]):
    """An iterable set split over workers by whole batches, its generators seeded before each item.

    Worker w of n takes batches w, w + n, ...: the loader asks the workers in turn, so the order of the batches equals
    that of a single process and only the last batch can be short. `batch_size=None` is for a set that splits itself by
    get_worker_info(): its items are passed on, seeded from the worker's number too.
    """

    def __init__(self, stream: Iterable[Any], batch_size: int | None, seed: int | None, epoch: torch.Tensor) -> None:
        self.stream, self.batch_size, self.seed, self.epoch = stream, batch_size, seed, epoch

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        own = () if self.batch_size else (number,)
        if self.seed is not None:  # `__iter__` may draw an order, which every worker must draw alike
            seed_generators(self.seed, int(self.epoch), *own)
        items = iter(self.stream)
        for index in itertools.count():
            if self.seed is not None:
                seed_generators(self.seed, int(self.epoch), index, *own)
            try:
                item = next(items)
            except StopIteration:
                return
            if self.batch_size is None or index // self.batch_size % workers == number:
                yield item
