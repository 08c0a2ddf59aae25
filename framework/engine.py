"""The loop. Techniques are values that were composed before it began: nothing here asks which are on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from framework.losses import Losses
from framework.memory import EVALUATION, Memory
from framework.meter import Meter, Work
from framework.report import Report
from framework.tree import Batch
from framework.update import State, Update, Window


@dataclass(frozen=True)
class Evaluation:
    """Held-out figures over `count` rows or tokens. `accuracy` is None where the objective knows none."""

    loss: float
    accuracy: float | None
    count: int


@dataclass(frozen=True)
class Run:
    """All that a run is made of; `build` composes it."""

    windows: Callable[[], Iterator[Window]]  # on the device, all epochs, one window a step
    held_out: Callable[[], Iterator[Batch]] | None
    update: Update
    scores: Callable[[Batch], tuple[Tensor, Tensor | None]]
    count: Callable[[Batch], int | Tensor]
    work: Callable[[Window], Work]
    state: State
    losses: Losses
    meter: Meter
    memory: Memory
    report: Report
    log_due: Callable[[int], bool]
    evaluation_due: Callable[[int], bool]


def train(run: Run) -> None:
    """Trains to the end, evaluating on the way. The report is closed on every way out."""
    with run.report:
        run.meter.start()
        step, evaluated = 0, -1
        for step, window in enumerate(run.meter.waiting(run.windows()), start=1):
            loss = run.update(window, run.memory.step(step))
            run.losses.add(loss)
            run.meter.mark(run.work(window))
            if run.log_due(step):
                run.report.log(step)
            if run.evaluation_due(step):
                run.report.evaluated(step, evaluate(run))
                evaluated = step
        if evaluated != step:
            run.report.evaluated(step, evaluate(run))
        run.report.finish(step)


def evaluate(run: Run) -> Evaluation | None:
    """Loss and accuracy on the held-out set, each row or token counted once; None where there is no such set.

    In eval mode, without gradients, outside the meter's steps. The mode of each module is put back whatever happens.
    Errors: ValueError where the set counts nothing.
    """
    if run.held_out is None:
        return None
    model, modes = run.state.model, [(module, module.training) for module in run.state.model.modules()]
    sums = torch.zeros(3, dtype=torch.float64, device=run.losses.device)  # loss, right answers, count
    knows_accuracy = False
    with run.meter.paused():
        run.memory.enter(EVALUATION)
        model.eval()
        try:
            with torch.no_grad():
                for batch in run.held_out():
                    loss, correct = run.scores(batch)
                    count = run.count(batch)
                    sums[0] += loss.double() * count
                    sums[2] += count
                    if correct is not None:
                        sums[1] += correct
                        knows_accuracy = True
            total, right, counted = sums.tolist()
        finally:
            for module, training in modes:  # a part that the user froze stays frozen
                module.training = training
            run.memory.leave()
    if not counted:
        raise ValueError("objective.count gives 0 for the whole held-out set, which has no mean loss then.")
    return Evaluation(total / counted, right / counted if knows_accuracy else None, int(counted))
