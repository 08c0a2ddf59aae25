"""Where a ratio lies on a logarithmic axis, and which ticks the axis has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from framework.study.model import Interval

STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
BEYOND = math.log(1.1)  # how far the axis goes past the outermost estimate, at the least, for an interval's sake


@dataclass(frozen=True)
class Axis:
    """From the ratio exp(`low`) at pixel `left` to exp(`high`) at pixel `right`."""

    low: float
    high: float
    left: float
    right: float

    def at(self, ratio: float) -> float:
        """The pixel of a ratio; those beyond the ends lie on the ends."""
        share = (math.log(ratio) - self.low) / (self.high - self.low)
        return self.left + min(max(share, 0.0), 1.0) * (self.right - self.left)

    def beyond(self, ratio: float) -> int:
        """-1 or 1 where a ratio lies before or after the ends, else 0."""
        value = math.log(ratio)
        return (value > self.high) - (value < self.low)


def axis(ratios: Sequence[Interval], least: float, pixels: tuple[float, float]) -> Axis:
    """An axis for these ratios, with 1 and +-`least` on it.

    An interval that is much longer than the estimates are apart does not stretch it without end.
    """
    middle = [math.log(one.estimate) for one in ratios] + [-2 * math.log1p(least), 2 * math.log1p(least)]
    room = max(max(middle) - min(middle), BEYOND)
    ends = [math.log(end) for one in ratios for end in (one.low, one.high)] + middle
    low, high = max(min(ends), min(middle) - room), min(max(ends), max(middle) + room)
    edge = 0.03 * (high - low)
    return Axis(low - edge, high + edge, *pixels)


def ticks(of: Axis, apart: float = 44.0) -> list[float]:
    """Round ratios on the axis, 1 among them, at least `apart` pixels from each other."""
    low, high = math.exp(of.low), math.exp(of.high)
    kept = [1.0]
    for step in reversed(STEPS if high / low < 2.5 else ()):
        found = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(found) >= 4:
            return sorted(_spread(kept, found, of, apart))
    return sorted(_spread(kept, [value for value in COARSE if low <= value <= high], of, apart))


def _spread(kept: list[float], found: Sequence[float], of: Axis, apart: float) -> list[float]:
    """`kept` with those of `found` that have room, the nearest to 1 first."""
    for value in sorted(found, key=lambda value: abs(math.log(value))):
        if all(abs(of.at(value) - of.at(other)) >= apart for other in kept):
            kept = [*kept, value]
    return kept


def round_steps(last: float, most: int) -> list[float]:
    """Round numbers from 0 to `last`, no more than `most`."""
    if last <= 0:
        return [0.0]
    size = 10.0 ** math.floor(math.log10(last / most))
    step = next(size * times for times in (1, 2, 5, 10, 20) if last / (size * times) < most)
    return [n * step for n in range(math.floor(last / step) + 1)]
