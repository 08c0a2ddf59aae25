"""Points in the device's work and the time between them: CUDA events, or the host's clock on the CPU."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points in the device's work and tells their distance once they have passed.

    `mark_s` is what a mark may cost the host, in seconds: assumed, to decide how often to mark.
    """

    mark_s: float

    def mark(self) -> Any:
        """A point behind all work queued so far."""

    def passed(self, point: Any) -> bool:
        """Whether the device has reached `point`; never waits."""

    def seconds(self, start: Any, end: Any) -> float:
        """From one passed point to another."""

    def finish(self) -> None:
        """Waits until the device has done all that was queued."""


class HostClock:
    """For the CPU, where work is done when the call returns."""

    mark_s = 1e-6

    def mark(self) -> float:
        return time.perf_counter()

    def passed(self, point: float) -> bool:
        return True

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def finish(self) -> None:
        return


class CudaClock:
    """CUDA events on the current stream."""

    mark_s = 8e-6

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def passed(self, point: torch.cuda.Event) -> bool:
        return bool(point.query())

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)


def clock(device: torch.device) -> Clock:
    """The clock of `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
