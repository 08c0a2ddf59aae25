"""From the config to a model on its device, and the switches that turn out to be offered there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn

from framework.components import factory
from framework.config import Config
from framework.mistakes import ConfigError
from framework.objective import Objective
from framework.stages.draft import Draft
from framework.switches import Switches
from framework.techniques import (
    activation_checkpoint,
    allocator,
    amp,
    attention,
    channels_last,
    cudnn_benchmark,
    fused_optimizer,
    tf32,
)
from framework.techniques import compile as compiling

Kernels = Callable[[], AbstractContextManager[object]]


def enter(device: torch.device) -> None:
    """Makes a GPU the current one, as compiled kernels, events and the pinning thread need it."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={device} does not start: its driver may be too old for this torch; set device=cpu.")
    if device.type == "cuda":
        torch.cuda.set_device(device)


def on_device(cfg: Config, switches: Switches, model: nn.Module, objective: Objective) -> Draft:
    """Sets the flags of the process, tries what may be lacking, then moves the model to its device in its format."""
    perf, device = cfg.perf, torch.device(cfg.device)
    enter(device)
    tf32.apply(perf.tf32)
    cudnn_benchmark.apply(perf.cudnn_benchmark)
    switches.evidence |= {"tf32": tf32.evidence, "cudnn_benchmark": cudnn_benchmark.evidence}
    if (asked := perf.allocator) is not None:
        switches.evidence["allocator"] = lambda: allocator.evidence(asked)
    switches.offered("compile", lambda: compiling.probe(device), None)
    switches.offered("amp", lambda: amp.check(amp.DTYPES[perf.amp.name], device), None)
    if perf.channels_last:
        model = channels_last.convert_model(model)
    dtype = amp.DTYPES[perf.amp.name]
    kernels = around_blocks(switches, model, dtype, device)
    model, make_optimizer = model.to(device), factory(cfg.optim.optimizer, "optim.optimizer")
    fused = partial(fused_optimizer.arguments, make_optimizer, device, {p.dtype for p in model.parameters()})
    make_optimizer = partial(make_optimizer, **switches.offered("fused_optimizer", fused, dict[str, Any]()))
    return Draft(cfg, switches, device, model, objective, make_optimizer, dtype, amp.autocasts(dtype, device), kernels)


def around_blocks(switches: Switches, model: nn.Module, dtype: torch.dtype, device: torch.device) -> Kernels:
    """The context of attention around each forward, which blocks that are computed again need once more."""
    perf = switches.perf
    given = attention.dtype_of(model, dtype)
    switches.offered("attention", lambda: attention.probe(perf.attention.name, given, device), None)
    kernels = attention.kernels(perf.attention.name)
    done = switches.offered("activation_checkpoint", lambda: activation_checkpoint.apply(model, kernels), None)
    if done is not None:
        switches.evidence["activation_checkpoint"] = lambda: activation_checkpoint.evidence(done)
    return kernels
