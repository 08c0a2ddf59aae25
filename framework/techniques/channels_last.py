"""channels_last: images and convolution weights lie in memory with the channels innermost, as tensor cores want them.

Helps when: 2-D convolutions run in 16 bits or TF32; most in eager mode, since a compiler chooses layouts itself.
Costs: one reordering of each batch of images.
Needs: nothing. Only 4-D floating tensors are converted; all else passes.
Numbers: close.
Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

import torch
from torch import Tensor, nn

from framework.techniques import Equivalence, Evidence, Technique

RECORD = Technique("channels_last", Equivalence.close)
log = logging.getLogger("gearshift")


def convert(leaf: Any) -> Any:
    """A 4-D floating tensor [N, C, H, W] with its channels innermost; anything else as it is."""
    if isinstance(leaf, Tensor) and leaf.dim() == 4 and leaf.is_floating_point():
        return leaf.to(memory_format=torch.channels_last)  # contiguous() leaves an image of one channel as it is
    return leaf


def convert_model(model: nn.Module) -> nn.Module:
    """Converts the 4-D floating parameters and buffers of `model` in place."""
    if not any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in model.modules()):
        log.warning("perf.channels_last=true changes nothing here: the model has no 2-D convolution.")
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        tensor.data = convert(tensor.data)
    return model


def evidence(strides: tuple[int, ...] | None) -> Evidence:
    """`strides` of the input [N, C, H, W] of the first 2-D convolution, None where there is none; C's must be 1."""
    if strides is None:
        return Evidence(False, {"first_conv_strides": None, "why": "no 2-D convolution"})
    return Evidence(len(strides) == 4 and strides[1] == 1, {"first_conv_strides": list(strides)})
