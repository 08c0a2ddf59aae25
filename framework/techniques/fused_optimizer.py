"""Fused optimizer: the update of all parameters runs in few kernels instead of several for each operation.

Helps when: there are many parameters and steps are short.
Costs: nothing to speak of.
Needs: an optimizer and a device that have it (AdamW, Adam, SGD, Adagrad; CPU and CUDA).
Numbers: close.
Source: https://docs.pytorch.org/docs/stable/optim.html#algorithms
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("fused_optimizer", Equivalence.close)


def arguments(
    optimizer: Callable[..., Any], device: torch.device, dtypes: Iterable[torch.dtype] = (torch.float32,)
) -> dict[str, Any]:
    """The argument that asks for it; `dtypes` are those of the parameters.

    Errors: UnavailableError where `optimizer` has none, or fails with it on `device`. A functools.partial is tried with
    what it binds.
    """
    named = optimizer.func if isinstance(optimizer, functools.partial) else optimizer
    name = getattr(named, "__name__", str(named))
    if "fused" not in inspect.signature(optimizer).parameters:
        raise UnavailableError(f"is not offered by {name} (AdamW, Adam, SGD and Adagrad have it)")
    try:
        trials = [torch.zeros(1, device=device, dtype=dtype, requires_grad=True) for dtype in dtypes]
        for trial in trials:
            trial.grad = torch.zeros_like(trial)
        optimizer(trials, lr=1e-3, fused=True).step()
    except RuntimeError as error:
        raise UnavailableError(f"is not offered by {name} on {device.type} ({str(error).splitlines()[0]})") from error
    return {"fused": True}


def evidence(optimizer: torch.optim.Optimizer) -> Evidence:
    """The flag in the parameter groups."""
    flags = [bool(group.get("fused")) for group in optimizer.param_groups]
    return Evidence(all(flags), {"groups_fused": sum(flags), "groups": len(flags)})
