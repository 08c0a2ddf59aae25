"""Sets that make a batch at once: `batch(indices: list[int])` gives what collating these items would give."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from framework.tree import Batch


class UnfitError(ValueError):
    """A set that a technique cannot handle; the message completes 'perf.x=y ...'."""


def refuse_stream(dataset: Any, name: str) -> None:
    """Errors: UnfitError where `dataset` is iterable, so that its rows have no numbers."""
    if isinstance(dataset, IterableDataset):
        raise UnfitError(f"needs a set with __getitem__, and {name} is a stream ({type(dataset).__name__})")


def offers_batch(dataset: Any) -> bool:
    """Whether `dataset` has our method `batch(indices)`; other libraries have a `batch` that means something else."""
    method = getattr(dataset, "batch", None)
    return callable(method) and next(iter(inspect.signature(method).parameters), None) == "indices"


@dataclass(frozen=True)
class Whole:
    """A batch that is still to be made, by whoever knows where it shall lie."""

    make: Callable[[list[int]], Batch]
    indices: list[int]

    def __call__(self) -> Batch:
        return self.make(self.indices)


class WholeBatches(Dataset[Any]):
    """A set around a set: torch's loader gets a Whole in place of a list of items.

    Errors: UnfitError where `samples` is a stream or does not make batches. `name` is the set's, for messages.
    """

    def __init__(self, samples: Any, name: str) -> None:
        refuse_stream(samples, name)
        if not offers_batch(samples):
            kind = type(samples).__name__
            raise UnfitError(f"needs a set that makes whole batches, and {name} ({kind}) has no method batch(indices)")
        self.samples = samples

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]

    def __getitems__(self, indices: list[int]) -> Whole:
        """Torch's own protocol: what it finds here goes to the collate function as it is."""
        return Whole(self.samples.batch, list(indices))

    def __len__(self) -> int:
        return len(self.samples)
