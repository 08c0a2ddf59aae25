"""Batch fetch: the set makes a whole batch at once, in place of items that are stacked one by one.

Helps when: items are small or lie in memory, so that calling Python for each one costs more than its data.
Costs: a method `batch(indices: list[int])` of the set, which must give what stacking its items gives, bit by bit.
Not in perf=all: no GPU has run it yet.
Needs: a set with that method, data.seed_samples=false and no data.collate of your own.
Numbers: the same.
Source: `__getitems__` of https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.Dataset
"""

from __future__ import annotations

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("batch_fetch", Equivalence.exact, in_all=False)


def evidence(whole: int, batches: int) -> Evidence:
    """`whole` of the `batches` that were seen had been made at once."""
    return Evidence(whole > 0 if batches else None, {"whole_batches": whole})
