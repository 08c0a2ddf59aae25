"""cuDNN benchmark: the first time a convolution meets a shape, cuDNN times its algorithms and keeps the fastest.

Helps when: there are convolutions and their shapes stay the same.
Costs: time at each new shape, and workspace memory while trying.
Needs: cuda.
Numbers: close; another algorithm may round otherwise, also from run to run.
Source: https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.benchmark
"""

from __future__ import annotations

import torch

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("cudnn_benchmark", Equivalence.close, needs=("cuda",))


def apply(enabled: bool) -> None:
    """Sets the flag, either way."""
    torch.backends.cudnn.benchmark = enabled


def evidence() -> Evidence:
    """The flag, read back."""
    return Evidence(bool(torch.backends.cudnn.benchmark), {"benchmark": bool(torch.backends.cudnn.benchmark)})
