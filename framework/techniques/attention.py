"""Attention kernel: which implementation scaled_dot_product_attention uses, instead of torch's own choice.

Helps when: torch's choice is not the fastest for these shapes, or kernels are to be compared. All but math never hold
the matrix of all pairs of tokens.
Not in perf=all: torch chooses well for most models, and no GPU has run it yet.
Costs: nothing where the kernel fits. Where a call asks for more than it has (a mask, dropout, wide heads), torch ends
the run in the first step and warns of the reasons.
Needs: flash: the CPU, or 16 bits on CUDA; efficient: CUDA; cudnn: CUDA and 16 bits; math: nothing. A small probe in the
run's dtype says so at the start. A model that calls the function: other attention is not touched.
Numbers: close.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("attention", Equivalence.close, in_all=False)
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def kernels(asked: str) -> Callable[[], AbstractContextManager[object]]:
    """Makes the context of one forward. "auto" means none at all.

    The backward belongs to the kernel of its forward; a forward that runs again within it needs the context again.
    """
    if asked == "auto":
        return nullcontext
    kernel = KERNELS[asked]
    return lambda: sdpa_kernel([kernel])


def dtype_of(model: nn.Module, autocast: torch.dtype) -> torch.dtype:
    """What attention will be given: the dtype of autocast, or that of the weights where there is none."""
    own = (tensor.dtype for tensor in model.parameters() if tensor.is_floating_point())
    return next(own, autocast) if autocast is torch.float32 else autocast


def probe(asked: str, dtype: torch.dtype, device: torch.device) -> None:
    """A tiny forward and backward. Errors: UnavailableError with torch's reason where the kernel does not take them."""
    value = torch.zeros(1, 1, 16, 64, dtype=dtype, device=device, requires_grad=True)
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            with kernels(asked)():
                F.scaled_dot_product_attention(value, value, value).sum().backward()
        except RuntimeError as error:
            why = _reason([str(error), *(str(reason.message) for reason in reasons)])
            kind = str(dtype).removeprefix("torch.")
            raise UnavailableError(f"does not take {kind} on {device.type} ({why})") from error


def _reason(words: list[str]) -> str:
    """The last of torch's words that tells one: it also warns of the kernels that were left out on purpose."""
    lines = [one.splitlines()[0].split(" (Triggered")[0].rstrip(". ") for one in words]
    return [line for line in lines if not line.endswith("because:") and "runtime disabled" not in line][-1]


def evidence(asked: str, seen: Mapping[str, int]) -> Evidence:
    """`seen` counts the calls of scaled_dot_product_attention in one forward by the kernel that was dispatched."""
    if not seen:
        return Evidence(False, {"kernels": {}, "why": "scaled_dot_product_attention was not called"})
    return Evidence(set(seen) == {asked}, {"kernels": dict(seen)})
