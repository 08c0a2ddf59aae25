"""Whether training with a technique still gives the same numbers, judged by what the baseline itself does.

The arms of a block share a seed, and each block has another. So a block's baseline and control show what changes from
run to run, and the baseline's blocks what changes from seed to seed. No fixed percentage enters anywhere.

- exact techniques: losses bit-equal to the reference's, where the baseline's own repeats are bit-equal; else no further
  from the reference than those repeats are from each other.
- close and reduced ones: two one-sided t tests (Schuirmann, 1987) on the final loss, against a margin made of the
  baseline's deviation from seed to seed and its largest difference from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from framework.study.findings import Numbers, Sameness
from framework.study.statistics import Array, bounds

History = Sequence[float | None]  # the loss of each step, None where it is not finite
Histories = Mapping[int, History]  # by block

LEAST_FINAL = 5  # the final loss is the mean over the last tenth of the steps, and over no fewer than these


@dataclass(frozen=True)
class Trained:
    """Losses of an arm, of its reference (several arms where they repeat it), and of baseline and control."""

    arm: Histories
    references: tuple[Histories, ...]
    repeats: tuple[Histories, ...]

    def blocks(self) -> Iterator[tuple[int, History, History]]:
        """Block, losses of the arm and losses of its reference, where both are there."""
        for block, history in sorted(self.arm.items()):
            reference = next((one[block] for one in self.references if block in one), None)
            if reference is not None:
                yield block, history, reference


def same_numbers(trained: Trained, rule: str, confidence: float, level: float) -> Numbers:
    """Judges by the rule of the class `rule`: exact, close or reduced.

    "same" is claimed with `confidence`, technique by technique; "differs" at `level`, for all of them together.
    """
    pairs = list(trained.blocks())
    if not pairs or not all(len(arm) and len(reference) for _, arm, reference in pairs):
        return Numbers(Sameness.undecided, "no losses to compare")
    for block, arm, reference in pairs:
        if len(arm) != len(reference):
            reason = f"it trained {len(arm)} steps in block {block + 1}, its reference {len(reference)}"
            return Numbers(Sameness.differs, reason)
    parted = [(block, step) for block, arm, reference in pairs if (step := _parting(arm, reference)) is not None]
    if not parted:
        return Numbers(Sameness.same, f"bit-equal losses in {len(pairs)} of {len(pairs)} blocks")
    return _exact(trained, parted[0], level) if rule == "exact" else _close(trained, confidence, level)


def repeats(histories: Sequence[Histories]) -> str:
    """Whether the baseline's own repeats give the same numbers, as a sentence."""
    gaps = list(_repeat_gaps(histories).values())
    if not gaps:
        return "Baseline and control did not run in the same block."
    alike = sum(gap == 0 for gap in gaps)
    tail = "" if alike == len(gaps) else f"; mean distance of their losses: up to {max(gaps):.3g}"
    return f"Baseline and control have bit-equal losses in {alike} of {len(gaps)} blocks{tail}."


def _exact(trained: Trained, parted: tuple[int, int], level: float) -> Numbers:
    own = _repeat_gaps(trained.repeats)
    where = f"losses part at step {parted[1]} of block {parted[0] + 1}"
    if not own:
        return Numbers(Sameness.undecided, f"{where}, and no repeat of the baseline shows whether that is usual")
    if max(own.values()) == 0:
        return Numbers(Sameness.differs, f"{where}; the baseline's repeats are bit-equal in {len(own)} blocks")
    gaps = {block: _gap(arm, reference) for block, arm, reference in trained.blocks()}
    mean, largest = float(np.mean(list(gaps.values()))), max(own.values())
    said = f"mean distance to the reference {mean:.3g}; the baseline's repeats are up to {largest:.3g} apart"
    if (np.isinf(mean) and np.isfinite(largest)) or _clearly_further(gaps, own, level):
        return Numbers(Sameness.differs, said)
    return Numbers(Sameness.same if mean <= largest else Sameness.undecided, said)


def _clearly_further(gaps: Mapping[int, float], own: Mapping[int, float], level: float) -> bool:
    """Whether the interval of the log ratio of distances lies above 0.

    A comparison with the largest of the baseline's own distances alone would accuse every second exact technique.
    """
    both = sorted(gaps.keys() & own.keys())
    smallest = min(gap for gap in (*gaps.values(), *own.values()) if gap > 0)
    ratios = [np.log(max(gaps[block], smallest)) - np.log(max(own[block], smallest)) for block in both]
    finite = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    return bool(bounds(finite, level).low > 0) if len(finite) else False


def _close(trained: Trained, confidence: float, level: float) -> Numbers:
    finals = [(_final(arm), _mean_final(trained, block)) for block, arm, _ in trained.blocks()]
    per_block = np.array([arm - reference for arm, reference in finals])
    if any(np.isnan(arm) and not np.isnan(reference) for arm, reference in finals):
        return Numbers(Sameness.differs, "its final loss is not finite, that of its reference is")
    own = [_final(history) for history in trained.repeats[0].values()] if trained.repeats else []
    own = [final for final in own if np.isfinite(final)]
    if len(own) < 2 or np.isfinite(per_block).sum() < 2:
        return Numbers(Sameness.undecided, "fewer than two blocks with finite final losses")
    return _held_against(per_block, float(np.std(own, ddof=1)), _largest_repeat(trained.repeats), (confidence, level))


def _held_against(per_block: Array, seeds: float, run_to_run: float, levels: tuple[float, float]) -> Numbers:
    margin, (confidence, level) = seeds + run_to_run, levels
    finite = per_block[np.isfinite(per_block)]
    found = bounds(finite, level)
    said = (
        f"final loss differs by {float(found.estimate):+.3g} ({float(found.low):+.3g} to {float(found.high):+.3g}); "
        f"margin {margin:.3g}, of which {seeds:.3g} from seed to seed and {run_to_run:.3g} from run to run"
    )
    if found.low > margin or found.high < -margin:
        return Numbers(Sameness.differs, said)
    return Numbers(Sameness.same if _within(finite, margin) < 1 - confidence else Sameness.undecided, said)


def _within(values: Array, margin: float) -> float:
    """The p value of two one-sided t tests that the mean lies inside +-margin."""
    from scipy import stats  # type: ignore[import-untyped]

    if np.ptp(values) == 0:  # no spread: nothing to divide by
        return 0.0 if abs(values[0]) < margin else 1.0
    above = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    return float(max(above, below))


def _parting(one: History, other: History) -> int | None:
    """The first step, from 1, at which two histories of one length are not bit-equal; None where they are."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=True), 1) if a != b), None)


def _gap(one: History, other: History) -> float:
    """Mean absolute difference; infinite where one is finite and the other is not."""
    if len(one) != len(other) or any((a is None) != (b is None) for a, b in zip(one, other, strict=True)):
        return float("inf")
    return float(np.mean([0.0 if a is None or b is None else abs(a - b) for a, b in zip(one, other, strict=True)]))


def _repeat_gaps(histories: Sequence[Histories]) -> dict[int, float]:
    """By block, the largest distance between repeats of the baseline."""
    gaps: dict[int, float] = {}
    for one, other in pairwise(histories):
        for block in one.keys() & other.keys():
            if len(one[block]):
                gaps[block] = max(gaps.get(block, 0.0), _gap(one[block], other[block]))
    return gaps


def _largest_repeat(histories: Sequence[Histories]) -> float:
    gaps = [
        abs(_final(one[block]) - _final(other[block]))
        for one, other in pairwise(histories)
        for block in one.keys() & other.keys()
    ]
    return max((gap for gap in gaps if np.isfinite(gap)), default=0.0)


def _final(history: History) -> float:
    """The final loss; NaN where one of its steps is not finite or there is none."""
    last = history[-max(LEAST_FINAL, -(-len(history) // 10)) :]
    return float("nan") if not last or any(loss is None for loss in last) else float(np.mean(np.array(last, float)))


def _mean_final(trained: Trained, block: int) -> float:
    return float(np.mean([_final(one[block]) for one in trained.references if block in one]))
