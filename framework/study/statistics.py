"""The statistics of a study, on arrays: the unit is the run, and runs are compared within their block.

Every function takes leading dimensions, so that thousands of simulated studies pass through the very lines that judge
a real one. All effects are log ratios: positive means faster.
Source: Student's paired t interval (scipy.stats.ttest_1samp), simultaneous by Bonferroni. It assumes neither that arms
are equally noisy nor, at these levels, that blocks are: Bakirov and Szekely, "Student's t-test for Gaussian scale
mixtures", Journal of Mathematical Sciences 139 (2006).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.study.model import Verdict

Array = NDArray[np.float64]

MOST_BLOCKS = 1000  # more than that is no advice


@dataclass(frozen=True)
class Bounds:
    """Estimates with their intervals, elementwise; NaN where fewer than two blocks have both runs."""

    estimate: Array
    low: Array
    high: Array
    deviation: Array  # standard deviation over blocks
    pairs: NDArray[np.int64]  # blocks that have both runs


def level_of(weight: float, total: float, confidence: float) -> float:
    """The level of an interval that has `weight` parts of the family's `total` in what may go wrong.

    Weighted Bonferroni: intervals whose weights add up to `total` hold together with `confidence`. The weights must be
    fixed before there are data.
    """
    return 1 - (1 - confidence) * weight / total


def differences(values: Array, fast: Sequence[int], slow: Sequence[int]) -> Array:
    """Mean over the arms `slow` minus mean over the arms `fast`, block by block.

    `values` is [..., arms, blocks], NaN where a run is missing; the result is [..., blocks]. Several arms on a side are
    repeats of one configuration: those present in a block stand for it.
    """
    return _mean_present(values[..., list(slow), :]) - _mean_present(values[..., list(fast), :])


def _mean_present(values: Array) -> Array:
    present = np.isfinite(values)
    count = present.sum(axis=-2)
    total = np.where(present, values, 0.0).sum(axis=-2)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def bounds(per_block: Array, level: float) -> Bounds:
    """Mean over blocks and its two-sided t interval at `level`. `per_block` is [..., blocks], NaN where missing."""
    shape = per_block.shape[:-1]
    rows = per_block.reshape(math.prod(shape), per_block.shape[-1])
    present = np.isfinite(rows)
    pairs = present.sum(axis=-1)
    found = np.full((4, len(rows)), np.nan)
    for count in np.unique(pairs[pairs >= 2]):
        chosen = pairs == count
        found[:, chosen] = _student(rows[chosen][present[chosen]].reshape(-1, count), level)
    estimate, low, high, deviation = (row.reshape(shape) for row in found)
    return Bounds(estimate, low, high, deviation, pairs.reshape(shape))


def _student(rows: Array, level: float) -> Array:
    """Estimate, low, high and standard deviation of each row."""
    from scipy import stats  # type: ignore[import-untyped]  # slow to import, and needed at the report only

    with warnings.catch_warnings():  # equal values, as in a test on made-up runs: the interval is then a point
        warnings.filterwarnings("ignore", message="Precision loss", category=RuntimeWarning)
        interval = stats.ttest_1samp(rows, 0.0, axis=-1).confidence_interval(level)
    return np.stack([rows.mean(axis=-1), interval.low, interval.high, rows.std(axis=-1, ddof=1)])


def verdicts(found: Bounds, smallest_effect: float) -> NDArray[Any]:
    """`Verdict` of each comparison, as an array of objects. `smallest_effect` is a ratio: 0.01 is 1 %."""
    least = math.log1p(smallest_effect)
    faster = (found.low > 0) & (found.estimate >= least)
    slower = (found.high < 0) & (found.estimate <= -least)
    no_effect = (found.low > -least) & (found.high < least)
    names = np.empty(4, dtype=object)
    for n, verdict in enumerate((Verdict.undecided, Verdict.faster, Verdict.slower, Verdict.no_effect)):
        names[n] = verdict  # one by one: as a list they would become plain text
    which = np.select([faster, slower, no_effect], [1, 2, 3], 0)
    return np.reshape(names[which.reshape(-1)], which.shape)


def more_blocks(found: Bounds, level: float, smallest_effect: float) -> int | None:
    """About how many more blocks would decide one comparison, should its spread stay as it is.

    None where there is no spread to judge by, or more than a thousand would be needed.
    """
    estimate, deviation = abs(float(found.estimate)), float(found.deviation)
    least = math.log1p(smallest_effect)
    away = estimate if estimate >= least else least - estimate  # what half the interval must stay below
    counts, factors = _factors(level)
    enough = (factors * deviation < away) & (counts > int(found.pairs))
    return int(counts[enough][0]) - int(found.pairs) if enough.any() else None


@cache
def _factors(level: float) -> tuple[NDArray[np.int64], Array]:
    """Numbers of blocks, and half the width of each one's interval as a multiple of the standard deviation."""
    from scipy import stats

    counts = np.arange(2, MOST_BLOCKS + 1)
    return counts, stats.t.ppf((1 + level) / 2, counts - 1) / np.sqrt(counts)


def narrow(found: Bounds, half_width: float) -> bool:
    """Whether every interval reaches no further than `half_width` (log ratio) to either side. Looks at widths only."""
    return bool(np.all((found.high - found.low) / 2 <= half_width))
