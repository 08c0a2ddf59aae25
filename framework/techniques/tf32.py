"""TF32: float32 matrix products, convolutions and recurrent layers round their inputs to 10 bits of mantissa.

Helps when: work stays in float32 on capability 8.0 or newer.
Costs: precision of about three decimal digits in products.
Needs: cuda.
Numbers: close. Off means IEEE float32 everywhere; PyTorch's own default is IEEE for products but TF32 for convolutions,
so a run with all switches off equals a plain PyTorch loop in which torch.backends.cudnn.allow_tf32 is False.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
"""

from __future__ import annotations

import warnings

import torch

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("tf32", Equivalence.close, needs=("cuda",))


def apply(enabled: bool) -> None:
    """Sets all three precisions, either way, and the older flags to the same.

    Where the two interfaces disagree, reading the older one raises, and torch itself reads it: its compiler in some
    versions and modes, and `torch.backends.cudnn.flags()` always.
    Source: https://github.com/pytorch/pytorch/issues/166387
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use the new API settings", UserWarning)
        torch.backends.cuda.matmul.allow_tf32 = enabled
        torch.backends.cudnn.allow_tf32 = enabled
    precision = "tf32" if enabled else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]


def evidence() -> Evidence:
    """The three precisions, read back."""
    seen = {
        "matmul": torch.backends.cuda.matmul.fp32_precision,
        "conv": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "rnn": torch.backends.cudnn.rnn.fp32_precision,  # type: ignore[attr-defined]
    }
    return Evidence(set(seen.values()) == {"tf32"}, seen)
