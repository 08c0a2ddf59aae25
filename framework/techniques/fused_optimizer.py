"""Fused optimizer: the update of all parameters runs in few kernels instead of several for each operation.

Helps when: there are many parameters and steps are short.
Costs: nothing to speak of.
Needs: an optimizer and a device that have it (AdamW, Adam, SGD, Adagrad; CPU and CUDA).
Numbers: close.
Source: https://docs.pytorch.org/docs/stable/optim.html#algorithms
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("fused_optimizer", Equivalence.close)


def arguments(optimizer: Callable[..., Any], device: torch.device) -> dict[str, Any]:
    """The argument that asks for it.

    Errors: UnavailableError where `optimizer` has none, or fails with it on `device`.
    """
    name = getattr(optimizer, "__name__", str(optimizer))
    if "fused" not in inspect.signature(optimizer).parameters:
        raise UnavailableError(f"is not offered by {name} (AdamW, Adam, SGD and Adagrad have it)")
    trial = torch.zeros(1, device=device, requires_grad=True)
    trial.grad = torch.zeros_like(trial)
    try:
        optimizer([trial], lr=1e-3, fused=True).step()
    except RuntimeError as error:
        raise UnavailableError(f"is not offered by {name} on {device.type} ({str(error).splitlines()[0]})") from error
    return {"fused": True}


def evidence(optimizer: torch.optim.Optimizer) -> Evidence:
    """The flag in the parameter groups."""
    flags = [bool(group.get("fused")) for group in optimizer.param_groups]
    return Evidence(all(flags), {"groups_fused": sum(flags), "groups": len(flags)})
