"""Allocator settings: how PyTorch's caching allocator asks the GPU for memory, for example in segments that can grow.

Helps when: sizes vary and memory is fragmented; reserved memory falls towards allocated memory.
Costs: depends on the setting.
Needs: cuda; a process of its own, since torch reads the setting once. It is set in `framework/environment.py`.
Numbers: the same.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("allocator", Equivalence.exact, needs=("cuda",))


def evidence(asked: str) -> Evidence:
    """The allocator's own settings, read back: active where every part asked for and reported there says the same."""
    backend = torch.cuda.get_allocator_backend()
    native = backend == "native"  # the other has no snapshot, and none of these settings
    reported: dict[str, Any] = torch.cuda.memory._snapshot()["allocator_settings"] if native else {}
    parts = re.split(r",(?![^\[]*\])", "".join(asked.split()).removesuffix(","))
    wanted = dict(part.split(":", 1) for part in parts)
    seen = {key: backend if key == "backend" else reported.get(_reported_name(key)) for key in wanted}
    known = {key: value for key, value in seen.items() if isinstance(value, bool | int | float | str)}
    agrees = all(_same(wanted[key], value) for key, value in known.items())
    return Evidence(agrees if known else None, {"settings": seen, "variable": reported.get("PYTORCH_CUDA_ALLOC_CONF")})


def _reported_name(key: str) -> str:
    return {"max_split_size_mb": "max_split_size"}.get(key, key)


def _same(asked: str, reported: bool | float | str) -> bool:
    if isinstance(reported, bool | str):
        return str(reported) == asked
    return any(math.isclose(reported, float(asked) * unit, rel_tol=1e-6) for unit in (1, 2**20))
