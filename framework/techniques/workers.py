"""Loader workers: batches are read, decoded and collated in other processes while the model computes.

Helps when: making a batch takes longer than a step, or takes the Python lock while the loop needs it.
Costs: one process each with its own memory, start-up time, one copy of every batch through shared memory. The held-out
set has as many again: each reads `data.worker_batches` at the start and keeps them until the first evaluation.
Needs: a set that can be forked or pickled.
Numbers: the same; order and random draws of samples depend on seed, epoch and index alone.
Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
"""

from __future__ import annotations

import logging
from typing import Any

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("workers", Equivalence.exact)

log = logging.getLogger("gearshift")


def options(workers: int, worker_batches: int, start_method: str | None, asked: bool = False) -> dict[str, Any]:
    """Arguments of torch's DataLoader. Without workers none of the others is allowed, so none is given.

    `start_method` None or "default" is Python's own choice. `asked` tells that one of the others was set: it is noted.
    """
    if not workers:
        if asked:
            log.warning("data.worker_batches and data.start_method change nothing here: perf.workers=0.")
        return {}
    return {
        "num_workers": workers,
        "persistent_workers": True,
        "prefetch_factor": worker_batches,
        "multiprocessing_context": None if start_method == "default" else start_method,
    }


def evidence(processes: set[int], own: int) -> Evidence:
    """`processes` are those that made the batches seen; `own` is this process."""
    others = processes - {own}
    return Evidence(bool(others) if processes else None, {"worker_processes": len(others)})
