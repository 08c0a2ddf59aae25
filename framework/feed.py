"""From a loader to windows: the batches of one optimizer step, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Protocol

from framework.meter import Work
from framework.tree import Batch, rows
from framework.update import Window


class Source(Protocol):
    """Where batches come from, one epoch at a time. `batches` in an epoch; None where the set does not tell."""

    @property
    def batches(self) -> int | None: ...

    def epoch(self, number: int) -> Iterator[Batch]: ...


def windows(loader: Source, accumulate: int, epochs: int, max_steps: int | None) -> Iterator[Window]:
    """Windows of `accumulate` batches; the last of an epoch may be short, and none crosses an epoch's border.

    Ends after `max_steps` where that is set, else after `epochs`.
    """
    steps = 0
    for epoch in count() if max_steps else range(epochs):
        batches = loader.epoch(epoch)
        while window := list(islice(batches, accumulate)):
            yield window
            steps += 1
            if steps == max_steps:
                return


def total_steps(batches: int | None, accumulate: int, epochs: int, max_steps: int | None) -> int | None:
    """Optimizer steps in a run; None where the set has no length and nothing else bounds it."""
    if max_steps is not None or batches is None:
        return max_steps
    return -(-batches // accumulate) * epochs


def shown_first(source: Iterator[Window], show: Callable[[Batch], None]) -> Iterator[Window]:
    """Passes `source` on, after showing the first batch of its first window."""
    for window in islice(source, 1):
        show(window[0])
        yield window
        del window  # else it would lie on the device to the end of the run
    yield from source


def single(place: Callable[[Iterator[Window]], Iterator[Window]], loader: Source) -> Iterator[Batch]:
    """One epoch of `loader`, batch by batch, brought to the device by `place`."""
    return (window[0] for window in place([batch] for batch in loader.epoch(0)))


def work(context: int, window: Window) -> Work:
    """What a window holds, `context` tokens in a row."""
    samples = sum(map(rows, window))
    return Work(samples, samples * context)
