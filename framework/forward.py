"""Forward and loss as functions of a batch: what is compiled, and what the engine calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn

from framework.objective import Objective
from framework.tree import Batch

ForwardLoss = Callable[[Batch], Tensor]
Scores = Callable[[Batch], tuple[Tensor, Tensor | None]]
Contexts = Callable[[], AbstractContextManager[object]]


def forwards(
    model: nn.Module, objective: Objective, autocasts: Contexts, kernels: Contexts = nullcontext
) -> tuple[ForwardLoss, Scores]:
    """For training, the mean loss of a batch; for evaluation, that and the number of right answers.

    Each has an autocast region of its own, so that a forward without gradients leaves no cast weights to the next.
    `kernels` is the context of attention.
    """

    def forward_loss(batch: Batch) -> Tensor:
        with autocasts(), kernels():
            return objective.loss(model, batch)[0]

    def scores(batch: Batch) -> tuple[Tensor, Tensor | None]:
        with autocasts(), kernels():
            loss, output = objective.loss(model, batch)
            return loss, objective.correct(output, batch)

    return forward_loss, scores
