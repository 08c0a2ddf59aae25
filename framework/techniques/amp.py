"""Automatic mixed precision: matrix products and convolutions of the forward run in 16 bits, weights stay in float32.

Helps when: the GPU has tensor cores and the model is bound by arithmetic or memory traffic.
Costs: precision. fp16 also needs a loss scale: its overflow check reads one number from the device in every step
(a skipped step, and a log point, read the scale too), whatever `log_every` says.
Needs: bf16 wants capability 8.0 or newer (older ones emulate it, slowly); fp16 wants cuda.
Numbers: reduced.
Source: https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("amp", Equivalence.reduced)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check(dtype: torch.dtype, device: torch.device) -> None:
    """Errors: UnavailableError where bf16 would be emulated."""
    if dtype is torch.bfloat16 and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise UnavailableError("is emulated, slowly, on GPUs older than capability 8.0 (perf.amp=fp16 is native there)")


def autocasts(dtype: torch.dtype, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Makes the context of one forward. float32 means no autocast at all."""
    if dtype is torch.float32:
        return nullcontext
    return lambda: autocast(device.type, dtype=dtype)


def scaler(dtype: torch.dtype, device: torch.device) -> GradScaler:
    """The loss scaler; a null object unless `dtype` is float16."""
    return GradScaler(device.type, enabled=dtype is torch.float16)


def step(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """One optimizer step; False where it was skipped because of an overflow.

    With a loss scale the host reads one number. The scaler does that itself before it calls a plain optimizer; a fused
    one is called at once and skips on the device, so that its flag is read here.
    """
    if not scaler.is_enabled():
        optimizer.step()
        return True
    called: list[bool] = []
    with optimizer.register_step_post_hook(lambda *_: called.append(True)):
        scaler.step(optimizer)
    skips_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
    overflowed = skips_itself and any(bool(found) for found in scaler._found_inf_per_device(optimizer).values())
    scaler.update()
    return bool(called) and not overflowed


def evidence(asked: torch.dtype, output: torch.dtype | None) -> Evidence:
    """`output` is the dtype of what the first linear or convolution returned, None where the model has neither."""
    return Evidence(None if output is None else output is asked, {"first_output": str(output).removeprefix("torch.")})
