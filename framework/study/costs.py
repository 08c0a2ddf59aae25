"""What a technique costs: warm-up and when it is paid back, memory, and the plain figures of an arm."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from framework.study.comparisons import Comparison, Runs, per_row
from framework.study.findings import BreakEven, Figures, Peak
from framework.study.model import Interval
from framework.study.statistics import Bounds, bounds, differences

FARTHEST = 700.0  # of a log ratio: two blocks give intervals whose ends are beyond all floating-point numbers
AT_ONCE, NEVER, NOT_KNOWN = "at once", "never", "not known"


def figures(arm: str, slow: Sequence[str], runs: Runs) -> Figures:
    """Medians over the runs of `arm`, and the change in memory against the runs of `slow`."""
    own, other = _peaks([arm], runs), _peaks(slow, runs)
    return Figures(
        step_ms=_median(arm, "step_ms", runs),
        samples_per_s=_median(arm, "samples_per_s", runs),
        warmup_s=_median(arm, "warmup_s", runs),
        memory={name: Peak(gib, gib - other[name] if name in other else None) for name, gib in own.items()},
    )


def _median(arm: str, figure: str, runs: Runs) -> float | None:
    values = [run.summary[figure] for run in runs.of(arm) if run.summary.get(figure) is not None]
    return float(statistics.median(values)) if values else None


def _peaks(arms: Sequence[str], runs: Runs) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for run in runs.of(*arms):
        for name, gib in run.summary.get("memory", {}).items():
            if gib is not None:
                found.setdefault(name, []).append(float(gib))
    return {name: float(statistics.median(values)) for name, values in found.items()}


def break_even(comparison: Comparison, runs: Runs, level: float) -> BreakEven:
    """The steps of the warm-up, and as many more as it takes to win back its extra seconds.

    What is won in a step is in the mean, not in the median: slow steps take time too. The interval divides the extremes
    of the two intervals, each at `level`. Nothing is said where the time saved per step may as well be none, nor where
    the two sides have other numbers of steps in the warm-up or of rows in a step.
    """
    arms = (*comparison.fast, *comparison.slow)
    fast, slow = range(len(comparison.fast)), range(len(comparison.fast), len(arms))
    extra = bounds(differences(runs.table(arms, "warmup_s"), slow, fast), level)
    saved = interval(bounds(differences(runs.table(arms, "step_ms_mean"), fast, slow) / 1e3, level))
    steps = {run.summary.get("warmup_steps") for run in runs.of(*arms)}
    if len(steps) != 1 or (first := steps.pop()) is None:
        return BreakEven(NOT_KNOWN, None, None)
    warmup = interval(extra)
    if warmup is None or saved is None or saved.low <= 0 <= saved.high or per_row(comparison, runs):
        return BreakEven(NOT_KNOWN, None, warmup)
    if saved.high < 0:
        return BreakEven(NEVER, None, warmup)
    if warmup.high <= 0:
        return BreakEven(AT_ONCE, None, warmup)
    return BreakEven(None, _steps(first, warmup, saved), warmup)


def _steps(first: int, warmup: Interval, saved: Interval) -> Interval:
    """Steps from the start of training, the `first` of which are the warm-up's; `saved` is above 0."""
    low = warmup.low / (saved.high if warmup.low > 0 else saved.low)
    behind = (warmup.estimate / saved.estimate, low, warmup.high / saved.low)
    return Interval(*(max(0.0, first + steps) for steps in behind))


def interval(found: Bounds) -> Interval | None:
    """As it is; None where fewer than two blocks have both runs."""
    if not np.isfinite(found.estimate):
        return None
    return Interval(float(found.estimate), float(found.low), float(found.high))


def ratio(found: Bounds) -> Interval | None:
    """An interval of log ratios as one of plain ratios."""
    plain = interval(found)
    if plain is None:
        return None
    low, high = (float(np.exp(np.clip(value, -FARTHEST, FARTHEST))) for value in (plain.low, plain.high))
    return Interval(float(np.exp(plain.estimate)), low, high)
