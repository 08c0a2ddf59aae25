"""What is minimised: a loss over a model and a batch, the count that its mean is over, and what is right.

An objective is any object with the three methods of `Objective`; `objective._target_` names one of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from framework.tree import Batch, rows


class Objective(Protocol):
    """The one protocol between a batch, a model and the engine."""

    def count(self, batch: Batch) -> int | Tensor:
        """Rows or tokens that the mean loss of `batch` is over, known without the model."""

    def loss(self, model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Any]:
        """The mean loss, a scalar with gradient (0 where `count` is 0), and the model's output."""

    def correct(self, output: Any, batch: Batch) -> Tensor | None:
        """How many of `count` are answered rightly, a scalar; None where the question makes no sense."""


@dataclass(frozen=True)
class Classification:
    """Cross-entropy over (input, target, ...) batches: classes of images, or the next token.

    Output [batch, ..., classes], target int64 [batch, ...]; targets equal to `ignore_index` count for nothing.
    """

    label_smoothing: float = 0.0
    ignore_index: int = -100

    def count(self, batch: Batch) -> int | Tensor:
        counted: Tensor = (batch[1] != self.ignore_index).sum()
        return counted

    def loss(self, model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Any]:
        output, target = model(batch[0]), batch[1]
        loss = F.cross_entropy(
            output.flatten(0, -2),
            target.flatten(),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )
        nothing = (target == self.ignore_index).all()  # whose mean is NaN; masked_fill needs no copy from the host
        return loss.masked_fill(nothing, 0.0), output

    def correct(self, output: Any, batch: Batch) -> Tensor | None:
        target = batch[1]
        right: Tensor = ((output.argmax(-1) == target) & (target != self.ignore_index)).sum()
        return right


@dataclass(frozen=True)
class Supervised:
    """Any mean-reduced `loss(output, target)` over (input, target, ...) batches, such as torch.nn.functional.mse_loss.

    `fp32=True` computes the loss in float32 outside autocast: some losses (binary_cross_entropy) refuse to run inside.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    fp32: bool = False

    def count(self, batch: Batch) -> int | Tensor:
        return rows(batch)

    def loss(self, model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Any]:
        output, target = model(batch[0]), batch[1]
        if not self.fp32:
            return self.function(output, target), output
        with torch.autocast(output.device.type, enabled=False):
            return self.function(output.float(), target), output

    def correct(self, output: Any, batch: Batch) -> Tensor | None:
        return None
