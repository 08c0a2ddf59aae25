"""Step time, waiting for data, throughput and peak memory, measured without making the host wait.

On CUDA one event is recorded after each step and read when the GPU has passed it; a step's time is the distance of two
events. On the CPU the host clock serves. Warm-up is kept apart. What runs while the meter is paused is in no step.
`framework/budget.py` says what the parts of a step are.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from framework.budget import Budget, Marks, Parts
from framework.clock import Clock

Item = TypeVar("Item")
LEAST_STEPS = 5  # fewer measured steps give no figure


@dataclass(frozen=True)
class Work:
    """What one step processed."""

    rows: int
    tokens: int = 0


@dataclass(frozen=True)
class Timing:
    """Figures over measured steps. Times in ms; rates over the whole time, slow steps included."""

    steps: int
    step_ms: float
    step_ms_mean: float
    step_ms_p10: float
    step_ms_p90: float
    data_wait_ms: float
    samples_per_s: float
    tokens_per_s: float


@dataclass
class _Window:
    """Measured steps since the last read, or since warm-up."""

    seconds: list[float] = field(default_factory=list)
    total: float = 0.0
    waits: list[float] = field(default_factory=list)
    rows: int = 0
    tokens: int = 0

    def add(self, seconds: float, wait: float, work: Work) -> None:
        self.seconds.append(seconds)
        self.total += seconds
        self.waits.append(wait)
        self.rows += work.rows
        self.tokens += work.tokens

    def timing(self) -> Timing:
        ms = [1e3 * s for s in self.seconds]
        cuts = statistics.quantiles(ms, n=10, method="inclusive") if len(ms) > 1 else ms * 9
        return Timing(
            steps=len(ms),
            step_ms=statistics.median(ms),
            step_ms_mean=statistics.fmean(ms),
            step_ms_p10=cuts[0],
            step_ms_p90=cuts[-1],
            data_wait_ms=1e3 * statistics.fmean(self.waits),
            samples_per_s=self.rows / self.total,
            tokens_per_s=self.tokens / self.total,
        )


class Meter:
    """Marks each step and tells what it took. Use: `start()`, then iterate over `waiting(batches)` and call
    `mark(work)` after each step, `logged()` after a log point; wrap whatever is not part of a step in `paused()`.
    """

    def __init__(self, clock: Clock, warmup_steps: int, budget: Budget | None = None) -> None:
        self.clock, self.warmup_steps = clock, warmup_steps
        self.budget = budget or Budget(clock, on=False)
        self.steps = self.total_rows = self.total_tokens = 0
        self.warmup_s: float | None = None
        self._since_warmup, self._since_read = _Window(), _Window()
        self._pending: deque[tuple[Any, Any, float, Work, Marks | None]] = deque()
        self._warmup_points: tuple[Any, Any] | None = None
        self._last: Any = None
        self._wait = self._paused_s = 0.0

    def start(self) -> None:
        """Begins the first step, and with it the warm-up."""
        self._begin = self._last = self.clock.mark()

    def waiting(self, source: Iterable[Item]) -> Iterator[Item]:
        """Yields from `source` and counts the time that the host waits for it."""
        items = iter(source)
        while True:
            before = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            self._wait += time.perf_counter() - before
            yield item

    def mark(self, work: Work) -> None:
        """Ends a step."""
        now, marks, self.steps = self.clock.mark(), self.budget.take(), self.steps + 1
        self.total_rows += work.rows
        self.total_tokens += work.tokens
        if self.steps > self.warmup_steps and self._last is not None:
            self._pending.append((self._last, now, self._wait, work, marks))
        if self.steps == self.warmup_steps:
            self._warmup_points = (self._begin, now)
        self._last, self._wait = now, 0.0
        self._collect()
        if self.steps >= self.warmup_steps:
            self.budget.begin()

    def logged(self) -> None:
        """Ends a log point, which belongs to the step that has begun."""
        self.budget.logged()

    def leave_out(self) -> None:
        """Leaves the step that has begun out of all times and rates; the counts have it."""
        self._last = None
        self.budget.leave_out()

    def _collect(self) -> None:
        measured = self._since_warmup
        while self._pending and self.clock.passed(self._pending[0][1]):
            start, end, wait, work, marks = self._pending.popleft()
            seconds = self.clock.seconds(start, end)
            measured.add(seconds, wait, work)
            self._since_read.add(seconds, wait, work)
            if marks is not None:
                self.budget.add(start, end, marks, measured.total / len(measured.seconds))
        if self._warmup_points and self.clock.passed(self._warmup_points[1]):
            self.warmup_s = self.clock.seconds(*self._warmup_points) - self._paused_s
            self._warmup_points = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is in no step, nor in the warm-up; the device is idle when it begins and ends."""
        self.clock.finish()
        before = time.perf_counter()
        yield
        self.clock.finish()
        if self.steps < self.warmup_steps:
            self._paused_s += time.perf_counter() - before
        self._last = self.clock.mark()
        self.budget.restart()

    def recent(self) -> Timing | None:
        """Figures since the last call; None while there are none. Call it where the host waits anyway."""
        self._collect()
        window, self._since_read = self._since_read, _Window()
        return window.timing() if window.seconds else None

    def result(self) -> Timing | None:
        """Figures over all steps after warm-up; None where they are too few."""
        self.clock.finish()
        self._collect()
        return self._since_warmup.timing() if len(self._since_warmup.seconds) >= LEAST_STEPS else None

    def parts(self) -> Parts | None:
        """The parts of the steps that `result` is about; None where it is, and where no budget is kept."""
        timing = self.result()
        return self.budget.result(timing.steps, timing.step_ms_mean) if timing else None

    def why_no_figures(self) -> str:
        """A sentence for a run whose `result` is None."""
        measured = len(self._since_warmup.seconds)
        return (
            f"not enough steps: {measured} after {self.warmup_steps} of warm-up, {LEAST_STEPS} needed; "
            "raise train.max_steps or lower meter.warmup_steps"
        )
