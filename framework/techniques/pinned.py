"""Pinned loading: batches lie in page-locked memory, so the GPU fetches them itself and the host does not wait.

Helps when: batches are large, the more so with `prefetch`, which needs it to overlap at all.
Costs: a thread that copies each batch once more on the host; page-locked memory, which the system cannot swap.
Needs: cuda.
Numbers: the same.
Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("pinned", Equivalence.exact, needs=("cuda",))


def options() -> dict[str, bool]:
    """Arguments of torch's DataLoader."""
    return {"pin_memory": True}


def evidence(pinned: int, pageable: int) -> Evidence:
    """Counts of tensors copied from page-locked and from pageable memory."""
    return Evidence(pinned > 0 if pinned + pageable else None, {"pinned_copies": pinned, "pageable_copies": pageable})
