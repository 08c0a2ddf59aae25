"""The learning rate as a function of the optimizer steps done."""

from __future__ import annotations

import math
from collections.abc import Callable

ONE_CYCLE_START, ONE_CYCLE_END = 1 / 25, 1e-4 / 25
ONE_CYCLE_RISE = 0.3


def factor(schedule: str, warmup_steps: int, total_steps: int | None) -> Callable[[int], float]:
    """The factor on the base learning rate for step 0, 1, ...

    It rises linearly to 1 over `warmup_steps`, then stays (constant), or falls to 0 at `total_steps` (cosine, linear).
    one_cycle rises from 1/25 to 1 along a cosine over `warmup_steps` (0: 30 % of the total) and falls to 1/250000 in
    the last step, as torch.optim.lr_scheduler.OneCycleLR does.
    Errors: ValueError where the course needs a total and there is none, or where the warm-up does not fit into it.
    Source: Loshchilov and Hutter 2017 (cosine); Smith and Topin 2018 (one cycle).
    """
    if schedule == "constant":
        return lambda step: min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    if total_steps is None:
        raise ValueError(f"optim.schedule={schedule} needs an end, and data.train has no length: set train.max_steps.")
    if warmup_steps >= total_steps:
        raise ValueError(f"optim.warmup_steps={warmup_steps} leaves nothing of {total_steps} steps: make it smaller.")
    if schedule == "one_cycle":
        return _one_cycle(warmup_steps or max(1.0, ONE_CYCLE_RISE * total_steps), total_steps)

    def falling(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
        return 1.0 - done if schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2

    return falling


def _one_cycle(rise: float, total_steps: int) -> Callable[[int], float]:
    peak, last = rise - 1, total_steps - 1  # steps, counted from 0

    def between(start: float, end: float, done: float) -> float:
        return end + (start - end) * (1.0 + math.cos(math.pi * min(1.0, done))) / 2

    def factor_at(step: int) -> float:
        if step < peak:
            return between(ONE_CYCLE_START, 1.0, step / peak)
        return between(1.0, ONE_CYCLE_END, (step - peak) / (last - peak)) if last > peak else 1.0

    return factor_at
