"""Which steps a profile covers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Steps `first` to `last`, counted from 1; `lead` is the one before, in which a profiler warms up itself."""

    lead: int
    first: int
    last: int

    def covered(self, done: int) -> int:
        """How many of them there are in a run of `done` steps."""
        return max(0, min(done, self.last) - self.first + 1)


def after(warmup_steps: int, steps: int) -> Span:
    """`steps` steady steps: those that follow the warm-up of the run, and one more for the profiler."""
    return Span(warmup_steps + 1, warmup_steps + 2, warmup_steps + 1 + steps)
