"""Resident data: the set lives on the device; the order of its rows and the batches are made there.

Helps when: the set is small enough, and reading, stacking or copying batches takes longer than a step.
Costs: device memory for both sets to the end of the run, and reading each of them once before the first step.
perf.workers, pinned, prefetch and batch_fetch have nothing left to do beside it.
Not in perf=all: no GPU has run it yet.
Needs: room on the device; sets of a known length whose batches are tensors; data.seed_samples=false, as each row is
read once and not once an epoch; no data.collate of your own.
Numbers: the same.
Source: https://github.com/KellerJordan/cifar10-airbench, whose loader keeps CIFAR-10 on the GPU
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("resident", Equivalence.exact, in_all=False)
REPLACED = ("workers", "pinned", "prefetch", "batch_fetch")  # they make or move batches on the host
WHY_REPLACED = "nothing to do beside perf.resident=true"

_MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int | None:
    """Memory of `device` that is free; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    told = _MEMINFO.read_text(encoding="ascii") if _MEMINFO.exists() else ""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", told, flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def check_room(needed: int, device: torch.device) -> None:
    """Errors: UnavailableError where `needed` bytes are more than `device` has free."""
    free = free_bytes(device)
    if free is not None and needed > free:
        raise UnavailableError(f"needs {_gib(needed)} for the data, and {device} has {_gib(free)} free")


def _gib(count: int) -> str:
    gib = count / 2**30
    return f"{gib:,.0f} GiB" if gib >= 100 else f"{gib:.3g} GiB"


def evidence(stored: Sequence[Tensor], device: torch.device) -> Evidence:
    """`stored` are the tensors that batches are taken from."""
    places = sorted({str(tensor.device) for tensor in stored})
    return Evidence(places == [str(device)], {"device": ", ".join(places), "bytes": sum(t.nbytes for t in stored)})
