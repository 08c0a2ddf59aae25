"""A run half made: what the stages of `build` hand on to each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from framework.config import Config
from framework.objective import Objective
from framework.switches import Switches


@dataclass(frozen=True)
class Draft:
    """Model and objective on their device, with the switches that were found to be offered there."""

    cfg: Config
    switches: Switches
    device: torch.device
    model: nn.Module
    objective: Objective
    make_optimizer: partial[Any]  # from the parameters
    dtype: torch.dtype  # of the forward
    autocasts: Callable[[], AbstractContextManager[object]]
    kernels: Callable[[], AbstractContextManager[object]]  # of attention, likewise around each forward
