"""Prefetch: the next batches are copied to the GPU on a side stream while the model computes on the present one.

Helps when: copies take a visible part of the step.
Costs: device memory for the batches of `depth` more steps, each `train.accumulate` of them.
Needs: cuda, pinned.
Numbers: the same.
Source: the data prefetcher of NVIDIA's apex examples, and its mended form in pytorch-image-models (PR 2784): one stream
for the life of the loader, and waits in both directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("prefetch", Equivalence.exact, needs=("cuda", "pinned"))

_SAMPLED = range(16, 48)  # the batches whose copies are timed: after warm-up, and few


@dataclass
class _Ahead:
    """A batch on the side stream. The events bound its copy; `wanted` is when the compute stream came for it."""

    batch: Any
    done: torch.cuda.Event
    started: torch.cuda.Event | None = None
    wanted: torch.cuda.Event | None = None


def _nobody() -> None:
    return


class Prefetch:
    """An iterator around an iterator: yields what `move` makes of each batch, `depth` batches ahead.

    A batch may be used until the next one is asked for; its memory is reused only after the work queued by then.
    `arrived` is told before the compute stream waits for the next batch's copy.
    An error of the source is raised where it happened: after the batches before it were yielded.
    """

    def __init__(
        self, depth: int, device: torch.device, move: Callable[[Any], Any], arrived: Callable[[], None] = _nobody
    ) -> None:
        self.depth, self.device, self.move, self.arrived = depth, device, move, arrived
        self.stream = torch.cuda.Stream(device)
        self.same_stream = False
        self._count = 0
        self._timed: list[_Ahead] = []

    def __call__(self, source: Iterator[Any]) -> Iterator[Any]:
        ahead: deque[_Ahead] = deque()
        used = error = None  # the consumer's last batch, and what the source raised
        ended = False
        compute = torch.cuda.current_stream(self.device)
        last = free = torch.cuda.Event()  # after the use of that batch, and of the one before it
        free.record(compute)  # what an earlier pass left behind may still be in use
        while True:
            while not ended and len(ahead) < self.depth:
                try:
                    ended = not self._copy_next(source, ahead, free)
                except Exception as raised:
                    error, ended = raised, True
            if not ahead:
                break
            current = ahead.popleft()
            self.arrived()
            self._hand_over(current, compute)
            yield current.batch
            # Dropping the batch before this one gives its memory back, to be used once `free` has passed. This one is
            # held for another round: waiting for it too would make the next copy wait for the step that runs now.
            free, last = last, torch.cuda.Event()
            last.record(compute)
            used = current.batch
            del current
        try:
            if error is not None:
                raise error
        finally:
            del used, error  # an error holds this frame: the two would hold each other, and the batch

    def _copy_next(self, source: Iterator[Any], ahead: deque[_Ahead], free: torch.cuda.Event) -> bool:
        """Puts the next batch of `source` on its way; False where there is none."""
        for batch in source:
            ahead.append(self._copy(batch, free))
            return True
        return False

    def _copy(self, batch: Any, free: torch.cuda.Event) -> _Ahead:
        timed = self._count in _SAMPLED
        self._count += 1
        done = torch.cuda.Event(enable_timing=timed)
        started = torch.cuda.Event(enable_timing=True) if timed else None
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(free)
            if started is not None:
                started.record(self.stream)
            moved = self.move(batch)
            done.record(self.stream)
        return _Ahead(moved, done, started)

    def _hand_over(self, ahead: _Ahead, compute: torch.cuda.Stream) -> None:
        self.same_stream = compute == self.stream
        if ahead.started is not None:
            ahead.wanted = torch.cuda.Event(enable_timing=True)
            ahead.wanted.record(compute)
            self._timed.append(_Ahead(None, ahead.done, ahead.started, ahead.wanted))
        compute.wait_event(ahead.done)

    def hidden_share(self) -> float | None:
        """Share of the copies' time during which the compute stream did not wait for them; None before it is known."""
        spent = exposed = 0.0
        for copy in self._timed:
            if copy.started is None or copy.wanted is None or not (copy.done.query() and copy.wanted.query()):
                continue
            length = copy.started.elapsed_time(copy.done)
            spent += length
            exposed += min(length, max(0.0, copy.wanted.elapsed_time(copy.done)))
        return 1.0 - exposed / spent if spent else None


def evidence(prefetch: Prefetch) -> Evidence:
    """Active where batches were copied on a stream that is not the one that computes."""
    seen = {
        "batches": prefetch._count,
        "hidden_share": prefetch.hidden_share(),
        "side_stream": not prefetch.same_stream,
    }
    return Evidence(not prefetch.same_stream if prefetch._count else None, seen)
