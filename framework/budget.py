"""The step budget: what the parts of a step take, measured without making the host wait.

A step runs on the device's time line from the meter's mark to the next. Marks in between cut it into parts; on CUDA
they are events on the stream that computes, so a part lasts until the device has reached the next mark. Host work that
the device hides takes nothing, and a device that idles for the host is charged to what the host did then.

logging    from the step's begin to the end of the log point that the step before brought. The host waits there until
           the device has done that step, which is no part of this: what counts is how long the device then idles.
data       until a batch is at hand (`data_wait_ms` is the time that the *host* waits for it); with data that lie on
           the device, gathering the batch too
copy       until the batch may be used: the copy, or with prefetch the wait for a copy that is not hidden; with
           channels_last the conversion of the batch too
forward, backward, optimizer, or whatever phases the update names: until the next; summed over a step's batches
left       the mean step less all of these

A mark costs the host some microseconds, so steps are sampled: all where they are long, else as many as keep the marks
within `SHARE` of the time. The gaps are drawn, from a seed of their own, since loader workers and log points come round
at fixed intervals. The first measured step is not sampled: peaks of memory are read in it. Log points are marked where
they are as far apart as samples, and all are counted. The parts are means over the sampled steps, logging over all
measured steps; as `left` is what remains of the mean over all, it has the error of sampling too, and may be negative.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from framework.clock import Clock

DATA, COPY, LOGGING, LEFT = "data", "copy", "logging", "left"
SHARE = 0.004
MOST = 100  # steps for a sample, at the most
UNKNOWN = 31  # the same until a sample tells how long steps are
USUAL_MARKS = 6  # in a sampled step: after logging, then where copy, forward, backward, optimizer and the rest begin

Window = TypeVar("Window")
Loss = TypeVar("Loss")
Enter = Callable[[str], None]


@dataclass(frozen=True)
class Marks:
    """The points inside one step. `logged`: a log point came first, and ended at `log_end` where that was marked.

    `phases` are names and where they began, None where the step was not sampled.
    """

    logged: bool
    log_end: Any
    phases: list[tuple[str, Any]] | None


@dataclass(frozen=True)
class Parts:
    """Mean ms of a step's parts, which add up to the mean of all measured steps.

    `sampled_ms` is the mean of the `steps` that were sampled, with logging as over all: apart from the mean of all
    steps by the error of sampling.
    """

    ms: dict[str, float]
    steps: int
    sampled_ms: float


def period(step_s: float, marks_s: float) -> int:
    """One of how many steps to sample, where a step takes `step_s` and its marks `marks_s` seconds."""
    return MOST if marks_s >= SHARE * step_s * MOST else max(1, math.ceil(marks_s / (SHARE * step_s)))


class Budget:
    """Marks inside the steps of a meter, which calls `begin`, `take` and `add`. Switched off it does nothing."""

    def __init__(self, clock: Clock, on: bool = True) -> None:
        self.clock, self.on = clock, on
        self._period = UNKNOWN
        self._random = random.Random(0)
        self._place = 0.0  # of the next sample among those it may be at, 0 to 1
        self._since, self._gap = 0, 2  # so that the second measured step is the first that is sampled
        self._since_log = self._period
        self._phases: list[tuple[str, Any]] | None = None
        self._logged, self._log_end = False, None
        self._seconds: dict[str, float] = {}
        self._logging_s = 0.0
        self._steps = self._logs = self._marked_logs = 0

    def begin(self) -> None:
        """A step begins that will be measured."""
        if not self.on:
            return
        self._since += 1
        self._since_log += 1
        if self._since >= self._gap:
            self._since, self._phases, self._place = 0, [], self._random.random()
            self._space()

    def _space(self) -> None:
        """The next sample comes after `_period` steps on average."""
        self._gap = 1 + int(self._place * (2 * self._period - 1))

    def enter(self, phase: str) -> None:
        """Ends the part before and begins `phase`, in a sampled step."""
        if self._phases is not None:
            self._phases.append((phase, self.clock.mark()))

    def arrived(self) -> None:
        """A batch is at hand: what follows is its way to where it is used."""
        self.enter(COPY)

    def logged(self) -> None:
        """A log point has ended, the first thing in its step."""
        if not self.on:
            return
        self._logged = True
        if self._phases is not None or self._since_log >= self._period:
            self._since_log, self._log_end = 0, self.clock.mark()

    def around(self, update: Callable[[Window, Enter], Loss]) -> Callable[[Window, Enter], Loss]:
        """`update` whose phases are marked in sampled steps; itself where the budget is off."""

        def marked(window: Window, enter: Enter) -> Loss:
            if self._phases is None:
                return update(window, enter)

            def told(phase: str) -> None:
                enter(phase)
                self.enter(phase)

            loss = update(window, told)
            self.enter(LEFT)
            return loss

        return marked if self.on else update

    def restart(self) -> None:
        """The step begins anew."""
        if self._phases is not None:
            self._phases = []
        self._logged, self._log_end = False, None

    def leave_out(self) -> None:
        """The step will not be measured: the next is sampled."""
        self.restart()
        self._phases, self._since = None, self._gap

    def take(self) -> Marks | None:
        """Ends the step: its marks, None where there are none."""
        if self._phases is None and not self._logged:
            return None
        marks = Marks(self._logged, self._log_end, self._phases)
        self._phases = None
        self._logged, self._log_end = False, None
        return marks

    def add(self, begin: Any, end: Any, marks: Marks, mean_s: float) -> None:
        """Counts a step whose points have passed. `mean_s`: of the measured steps so far."""
        if marks.logged:
            self._logs += 1
        if marks.log_end is not None:
            self._marked_logs += 1
            self._logging_s += self.clock.seconds(begin, marks.log_end)
            begin = marks.log_end
        if marks.phases is None:
            return
        self._steps += 1
        phase = DATA
        for following, point in [*marks.phases, ("", end)]:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + self.clock.seconds(begin, point)
            phase, begin = following, point
        self._period = period(mean_s, self.clock.mark_s * max(USUAL_MARKS, len(marks.phases) + 1))
        self._space()

    def result(self, steps: int, step_ms: float) -> Parts | None:
        """The parts of `steps` measured steps, whose mean is `step_ms`; None where the budget is off."""
        if not self.on:
            return None
        assert self._steps, "the first or second measured step is sampled"
        means = {name: 1e3 * seconds / self._steps for name, seconds in self._seconds.items()}
        marked = self._logging_s / self._marked_logs if self._marked_logs else 0.0
        means[LOGGING] = 1e3 * marked * self._logs / steps
        sampled_ms = sum(means.values())
        means.pop(LEFT, None)
        ms = {DATA: 0.0, COPY: 0.0, **means}
        return Parts(ms | {LEFT: step_ms - sum(ms.values())}, self._steps, sampled_ms)
