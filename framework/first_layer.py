"""What the layers meet, seen in one small forward after training: evidence for precision, format and attention."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from framework.dispatched import attention_watched
from framework.tree import Batch, tensors, tree_map

ROWS = 2


@dataclass(frozen=True)
class FirstLayer:
    """What `look` saw: `dtype` of what the first linear or convolution returned, `strides` of what the first
    2-D convolution was given. None where there is no such layer. `attention` counts the calls of
    scaled_dot_product_attention by kernel.
    """

    dtype: torch.dtype | None = None
    strides: tuple[int, ...] | None = None
    attention: dict[str, int] = field(default_factory=dict)


def sample(batch: Batch) -> Batch:
    """Two rows of a batch, copied, memory format kept; all of it where its tensors differ in length, as graphs do."""
    lengths = {len(tensor) for tensor in tensors(batch) if tensor.dim()}

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        part = leaf[:ROWS] if leaf.dim() and len(lengths) == 1 else leaf
        return part.detach().clone()

    return tree_map(cut, batch)


def look(
    model: nn.Module, forward: Callable[[], Any], autocasts: Callable[[], AbstractContextManager[object]]
) -> FirstLayer:
    """Runs `forward` once, eagerly, without gradients and in eval mode, and tells what the layers met.

    The model, its mode and the generators are left as they were.
    """
    dtypes: list[torch.dtype] = []
    strides: list[tuple[int, ...]] = []

    def met(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        dtypes.append(output.dtype)
        if isinstance(module, nn.Conv2d):
            strides.append(inputs[0].stride())

    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    hooks = [layer.register_forward_hook(met) for layer in layers]
    training = {module: module.training for module in model.modules()}
    gpus = sorted({tensor.device.index for tensor in model.parameters() if tensor.is_cuda})
    try:
        with torch.random.fork_rng(gpus), torch.no_grad(), autocasts(), attention_watched() as kernels:
            model.eval()
            forward()
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in training.items():
            module.training = mode
    return FirstLayer(dtypes[0] if dtypes else None, strides[0] if strides else None, dict(kernels))
