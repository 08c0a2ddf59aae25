"""One optimizer step over a window of batches, in textbook order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from framework.memory import Enter
from framework.tree import Batch

LEAST_SCALE = 1e-4  # a loss scale that skips have brought to 0 would turn gradients, then weights, into NaN

Window = Sequence[Batch]
Update = Callable[[Window, Enter], Tensor]


@dataclass
class State:
    """Everything that training changes. `steps` are those that the optimizer took, `skipped` those it did not.

    `lr_used` is the learning rate of the last step; `scale` the loss scale when the host last read it.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    scaler: GradScaler
    steps: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    lr_used: float = field(init=False)
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        self.lr_used = self.lr
        self.read_scale()  # before its first use the scaler knows it without the device

    def read_scale(self) -> float:
        """The loss scale. Waits for the device; 1 where there is none."""
        self.scale = float(self.scaler.get_scale())
        return self.scale

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])


@dataclass(frozen=True)
class Parts:
    """What an update is made of. `optimizer_step` returns False where the step was skipped."""

    forward_loss: Callable[[Batch], Tensor]
    count: Callable[[Batch], int | Tensor]
    optimizer_step: Callable[[GradScaler, torch.optim.Optimizer], bool]
    clip_norm: float | None
    max_skipped_steps: int


def make_update(state: State, parts: Parts) -> Update:
    """Composes the step. It returns the mean loss over the window, a scalar on the device.

    Each batch counts by its rows or tokens, so that a window equals one large batch, also where the last window is
    short. Gradients are unscaled and clipped once a window and let go after the step. The scheduler waits where the
    scaler skipped the step. Errors: RuntimeError after `max_skipped_steps` skipped steps in a row, or when skips have
    brought the loss scale below LEAST_SCALE; ValueError where a window counts no row.
    """
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]

    def update(window: Window, enter: Enter) -> Tensor:
        losses = []
        for batch, share in zip(window, _shares(window, parts.count), strict=True):
            enter("forward")
            loss = parts.forward_loss(batch)
            if share is not None:
                loss = loss * share
            enter("backward")
            state.scaler.scale(loss).backward()
            losses.append(loss.detach())
        enter("optimizer")
        if parts.clip_norm is not None:
            state.scaler.unscale_(state.optimizer)
            nn.utils.clip_grad_norm_(parameters, parts.clip_norm)
        state.lr_used = state.lr
        stepped = parts.optimizer_step(state.scaler, state.optimizer)
        state.optimizer.zero_grad(set_to_none=True)
        _count(state, stepped, parts.max_skipped_steps)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    return update


def _shares(window: Window, count: Callable[[Batch], int | Tensor]) -> Iterable[float | Tensor | None]:
    """Each batch's part of the window's rows or tokens; None where it is the whole."""
    if len(window) == 1:
        return [None]
    counts = [count(batch) for batch in window]
    total = sum(counts)
    if isinstance(total, Tensor):  # its value stays on the device; a window that counts nothing has zero losses
        return [one / total.masked_fill(total == 0, 1) for one in counts]
    if total <= 0:
        raise ValueError("objective.count gives 0 for a whole window of batches, so none of them can be weighted.")
    return [one / total for one in counts]


def _count(state: State, stepped: bool, max_skipped_steps: int) -> None:
    if stepped:
        state.steps += 1
        state.skipped_in_a_row = 0
        state.scheduler.step()
        return
    state.skipped += 1
    state.skipped_in_a_row += 1
    scale = state.read_scale()
    if state.skipped_in_a_row >= max_skipped_steps:
        raise RuntimeError(
            f"{state.skipped_in_a_row} steps in a row were skipped because of overflow (loss scale {scale:g}): the "
            "loss is not finite. Use perf.amp=bf16, a smaller optim.lr, or raise train.max_skipped_steps."
        )
    if scale < LEAST_SCALE:
        raise RuntimeError(
            f"{state.skipped} steps were skipped because of overflow, which brought the loss scale to {scale:g}: the "
            "loss is often not finite. Use perf.amp=bf16 or a smaller optim.lr."
        )
