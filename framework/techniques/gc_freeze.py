"""Frozen garbage collection: what lives after the warm-up is set aside, and Python's collector no longer walks it.

Helps when: the host limits the step, and many objects live long (modules, compiled code, a set held in lists): a full
collection then takes up to tenths of a second in which nothing is queued.
Not in perf=all: not measured yet.
Costs: one full collection at the end of the warm-up. Cycles that stand by then are freed after training only.
Needs: nothing.
Numbers: the same.
Source: https://docs.python.org/3/library/gc.html#gc.freeze
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TypeVar

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("gc_freeze", Equivalence.exact, in_all=False)
Item = TypeVar("Item")


class Freeze:
    """An iterator around an iterator: before it yields item `warmup_steps` all objects are frozen, until it ends.

    So the collection is part of the last step of the warm-up. An error in between ends the iterator, and the freeze.
    """

    def __init__(self, warmup_steps: int) -> None:
        self.warmup_steps = warmup_steps
        self.steps = self.frozen = 0  # items yielded; objects that were frozen when training ended

    def __call__(self, source: Iterator[Item]) -> Iterator[Item]:
        try:
            for self.steps, item in enumerate(source, start=1):
                if self.steps == self.warmup_steps:
                    gc.collect()
                    gc.freeze()
                yield item
        finally:
            self.frozen = gc.get_freeze_count()
            gc.unfreeze()


def evidence(freeze: Freeze) -> Evidence:
    """Active where objects were frozen in training to its end; nothing can be seen in a run within the warm-up."""
    seen = {"frozen_objects": freeze.frozen, "from_step": freeze.warmup_steps}
    return Evidence(freeze.frozen > 0 if freeze.steps >= freeze.warmup_steps else None, seen)
