"""Log frequency: the host reads losses and writes figures only every N steps; until then they stay on the device.

Helps when: steps are short. Each read waits for the GPU to finish all that was queued, and leaves it idle afterwards.
Costs: figures come later. 0 means at the end only.
Needs: nothing.
Numbers: the same.
Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
"""

from __future__ import annotations

from collections.abc import Callable

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("log_every", Equivalence.exact)


def cadence(every: int) -> Callable[[int], bool]:
    """Whether a step, counted from 1, is a log point."""
    return lambda step: every > 0 and step % every == 0


def evidence(loss_reads: int, steps: int) -> Evidence:
    """Active where the losses were read less often than once a step. Other reads, as those of fp16, do not count."""
    return Evidence(loss_reads < steps if steps > 1 else None, {"loss_reads": loss_reads, "steps": steps})
