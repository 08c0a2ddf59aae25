"""One optimizer step: the weight after each is computed by hand, with one weight, SGD and lr 1."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from framework import feed, schedule
from framework.data.loader import Loader, LoaderSettings
from framework.objective import Classification, Supervised
from framework.techniques import amp
from framework.update import Parts, State, make_update

CPU = torch.device("cpu")
Batch = tuple[Tensor, Tensor]


def ignore(phase: str) -> None:
    return


class Scale(nn.Module):
    """Multiplies by one weight."""

    def __init__(self, weight: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def state_of(
    model: nn.Module,
    course: Callable[[int], float] = lambda step: 1.0,
    scaler: GradScaler | None = None,
    lr: float = 1.0,
) -> State:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return State(model, optimizer, LambdaLR(optimizer, course), scaler or amp.scaler(torch.float32, CPU))


def weight_of(state: State) -> float:
    return float(state.model.weight.detach())


def parts_of(state: State, objective: Any = None, clip_norm: float | None = None, **changed: Any) -> Parts:
    objective = objective or Supervised(F.mse_loss)
    parts: dict[str, Any] = {
        "forward_loss": lambda batch: objective.loss(state.model, batch)[0],
        "count": objective.count,
        "optimizer_step": amp.step,
        "clip_norm": clip_norm,
        "max_skipped_steps": 25,
    }
    return Parts(**(parts | changed))


def scaler_at(scale: float) -> GradScaler:
    return GradScaler("cpu", init_scale=scale)


def rows_of(*values: float) -> Batch:
    """x and y of mean((w x - y)^2), whose gradient at w = 0 is -2 mean(x y)."""
    return torch.tensor(values), torch.ones(len(values))


def loader_of(sizes: int, batch_size: int) -> Loader:
    rows = [(torch.tensor(float(index)), torch.tensor(1.0)) for index in range(1, sizes + 1)]
    return Loader(rows, LoaderSettings("data.train", batch_size))


# --- K: accumulation, schedules, step counting


def test_K01_a_window_equals_one_batch_whatever_its_rows() -> None:
    parts = torch.arange(1.0, 13.0).split([1, 3, 8])
    window = [(x, torch.cos(x)) for x in parts]
    whole = (torch.cat(parts), torch.cos(torch.cat(parts)))
    results = []
    for batches in (window, [whole]):
        state = state_of(Scale(0.5), lr=0.01)
        loss = make_update(state, parts_of(state))(batches, ignore)
        results.append((float(loss), weight_of(state)))
    assert results[0] == pytest.approx(results[1], rel=1e-6, abs=1e-6)


def tokens(*counted: int) -> Batch:
    """Sequences of 128 tokens with random features, of which the first `counted` have targets."""
    features = torch.randn(len(counted), 128, 4)
    target = torch.randint(0, 3, (len(counted), 128))
    for row, number in enumerate(counted):
        target[row, number:] = -100
    return features, target


@pytest.mark.parametrize("lengths", [(11, 101), (0, 7), (5, 0, 1)])
def test_K01_a_window_of_masked_tokens_equals_one_batch(lengths: Sequence[int]) -> None:
    torch.manual_seed(0)
    window = [tokens(length) for length in lengths]
    whole = tuple(torch.cat(part) for part in zip(*window, strict=True))
    results = []
    for batches in (window, [whole]):
        torch.manual_seed(1)
        state = state_of(nn.Linear(4, 3), lr=1.0)
        loss = make_update(state, parts_of(state, Classification()))(batches, ignore)
        results.append((loss, *state.model.parameters()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("batches", [1, 2])
def test_K01_a_window_without_any_counted_token_changes_nothing(batches: int) -> None:
    state = state_of(nn.Linear(4, 3))
    before = [parameter.clone() for parameter in state.model.parameters()]
    loss = make_update(state, parts_of(state, Classification()))([tokens(0)] * batches, ignore)
    assert float(loss) == 0.0
    for old, new in zip(before, state.model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_K01_rows_that_an_objective_does_not_count_are_an_error() -> None:
    state = state_of(Scale())
    update = make_update(state, parts_of(state, count=lambda batch: 0))
    with pytest.raises(ValueError, match=r"objective\.count gives 0"):
        update([rows_of(1.0), rows_of(2.0)], ignore)


@pytest.mark.parametrize(
    ("accumulate", "windows"),
    [
        (1, [[1], [2], [3], [4], [5]]),
        (2, [[1, 2], [3, 4], [5]]),
        (3, [[1, 2, 3], [4, 5]]),
        (4, [[1, 2, 3, 4], [5]]),
        (8, [[1, 2, 3, 4, 5]]),
    ],
)
def test_K02_the_last_window_of_an_epoch_steps_with_its_true_count(accumulate: int, windows: list[list[int]]) -> None:
    state = state_of(Scale(), lr=0.01)
    update = make_update(state, parts_of(state))
    weight, expected, seen = 0.0, [], []
    for window in windows * 2:  # two epochs
        weight -= 0.01 * sum(2 * (weight * x - 1) * x for x in window) / len(window)
        expected.append(weight)
    for window in feed.windows(loader_of(5, 1), accumulate, 2, None):
        assert state.model.weight.grad is None  # nothing crosses into the next window, nor into the next epoch
        update(window, ignore)
        seen.append(weight_of(state))
    assert seen == pytest.approx(expected, rel=1e-5)
    assert state.steps == len(expected)


def test_K03_the_schedule_advances_once_an_optimizer_step() -> None:
    batches, accumulate, epochs = 10, 4, 2
    total = feed.total_steps(batches, accumulate, epochs, None)
    assert total == 6
    state = state_of(Scale(), schedule.factor("linear", 0, total))
    update = make_update(state, parts_of(state))
    rates = []
    for window in feed.windows(loader_of(batches, 1), accumulate, epochs, None):
        rates.append(state.lr)
        update(window, ignore)
    assert rates == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert state.lr == 0.0


def test_K03_the_rate_that_a_step_used_is_kept() -> None:
    state = state_of(Scale(), schedule.factor("linear", 0, 4))
    update, used = make_update(state, parts_of(state)), []
    for _ in range(4):
        update([rows_of(1.0)], ignore)
        used.append(state.lr_used)
    assert used == pytest.approx([1, 3 / 4, 2 / 4, 1 / 4])


def test_phases_are_told_in_textbook_order() -> None:
    state, told = state_of(Scale()), []
    make_update(state, parts_of(state))([rows_of(1.0), rows_of(2.0)], told.append)
    assert told == ["forward", "backward"] * 2 + ["optimizer"]


# --- D: the loss scale, with the scaler of the CPU


class CountingScaler(GradScaler):
    """Counts the calls that must come once an optimizer step."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=4.0)
        self.calls = {"unscale_": 0, "step": 0, "update": 0}

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls["unscale_"] += 1
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.calls["step"] += 1
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        self.calls["update"] += 1
        super().update(new_scale)


def test_D01_unscaled_and_clipped_once_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    clips: list[float] = []
    clip = nn.utils.clip_grad_norm_

    def counting(parameters: Any, norm: float) -> Tensor:
        clips.append(norm)
        return clip(parameters, norm)

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", counting)
    scaler = CountingScaler()
    state = state_of(Scale(), scaler=scaler)
    update = make_update(state, parts_of(state, clip_norm=1.0))
    for _ in range(3):
        update([rows_of(1.0)] * 4, ignore)
    assert scaler.calls == {"unscale_": 3, "step": 3, "update": 3}
    assert clips == [1.0] * 3
    assert state.steps == 3


@pytest.mark.parametrize("scale", [None, 2.0**16, 1.0])
def test_D02_the_limit_acts_on_true_gradients(scale: float | None) -> None:
    """The gradient is -3 before clipping, so a step of lr 1 moves the weight by 1, whatever the loss scale."""
    scaler = None if scale is None else scaler_at(scale)
    state = state_of(Scale(), scaler=scaler)
    make_update(state, parts_of(state, clip_norm=1.0))([rows_of(1.5)], ignore)
    assert weight_of(state) == pytest.approx(1.0, rel=1e-5)
    assert state.steps == 1


def test_D02_the_limit_acts_on_true_gradients_under_bf16() -> None:
    state = state_of(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(state.model.weight)
    objective = Supervised(F.mse_loss, fp32=True)

    def forward_loss(batch: Batch) -> Tensor:
        with amp.autocasts(torch.bfloat16, CPU)():
            return objective.loss(state.model, batch)[0]

    batch = (torch.tensor([[1.5]]), torch.ones(1, 1))
    make_update(state, parts_of(state, clip_norm=1.0, forward_loss=forward_loss))([batch], ignore)
    assert weight_of(state) == pytest.approx(1.0, rel=1e-5)


def overflowing(state: State, steps: set[int]) -> Callable[[Batch], Tensor]:
    """The mean squared error, times infinity in those calls, counted from 0."""
    calls = iter(range(10_000))

    def forward_loss(batch: Batch) -> Tensor:
        loss = F.mse_loss(state.model(batch[0]), batch[1])
        return loss * float("inf") if next(calls) in steps else loss

    return forward_loss


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_D03_schedule_and_steps_wait_for_a_skipped_step(clip_norm: float | None) -> None:
    course = schedule.factor("constant", 10, None)
    state = state_of(Scale(), course, scaler_at(256.0))
    update = make_update(state, parts_of(state, clip_norm=clip_norm, forward_loss=overflowing(state, {0})))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        update([rows_of(1.0)], ignore)
        assert (state.steps, state.skipped, state.lr) == (0, 1, course(0))
        assert weight_of(state) == 0.0
        assert state.model.weight.grad is None
        update([rows_of(1.0)], ignore)
    assert (state.steps, state.skipped, state.skipped_in_a_row) == (1, 1, 0)
    assert state.lr == course(1)
    assert weight_of(state) != 0.0
    assert state.scaler.get_scale() == 128.0


def test_D03_one_overflow_in_a_window_skips_all_of_it() -> None:
    state = state_of(Scale(), scaler=scaler_at(256.0))
    update = make_update(state, parts_of(state, forward_loss=overflowing(state, {1})))
    update([rows_of(1.0)] * 3, ignore)
    assert (state.steps, state.skipped, weight_of(state)) == (0, 1, 0.0)


def test_D03_a_fused_optimizer_is_told_of_the_overflow_and_counted_alike() -> None:
    model = Scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    state = State(model, optimizer, LambdaLR(optimizer, lambda step: 1.0), scaler_at(256.0))
    update = make_update(state, parts_of(state, forward_loss=overflowing(state, {0})))
    update([rows_of(1.0)], ignore)
    assert (state.steps, state.skipped, weight_of(state)) == (0, 1, 0.0)
    update([rows_of(1.0)], ignore)
    assert (state.steps, state.skipped, weight_of(state)) == (1, 1, 2.0)


def test_D08_skipped_steps_in_a_row_end_the_run() -> None:
    state = state_of(Scale(), scaler=scaler_at(256.0))
    update = make_update(state, parts_of(state, max_skipped_steps=4, forward_loss=overflowing(state, set(range(99)))))
    for _ in range(3):
        update([rows_of(1.0)], ignore)
    with pytest.raises(RuntimeError, match=r"4 steps in a row .*loss scale 16.*train\.max_skipped_steps"):
        update([rows_of(1.0)], ignore)
    assert (state.steps, state.skipped) == (0, 4)


def test_D08_a_good_step_in_between_starts_the_count_anew() -> None:
    state = state_of(Scale(), scaler=scaler_at(256.0))
    bad = {0, 1, 3, 4}
    update = make_update(state, parts_of(state, max_skipped_steps=3, forward_loss=overflowing(state, bad)))
    for _ in range(5):
        update([rows_of(0.1)], ignore)
    assert (state.steps, state.skipped) == (1, 4)


def test_D08_a_vanishing_loss_scale_ends_the_run_although_steps_succeed_in_between() -> None:
    state = state_of(Scale(), scaler=scaler_at(2.0**-12))
    update = make_update(state, parts_of(state, forward_loss=overflowing(state, {0, 2})))
    update([rows_of(0.1)], ignore)
    update([rows_of(0.1)], ignore)
    assert (state.steps, state.skipped) == (1, 1)
    with pytest.raises(RuntimeError, match=r"2 steps were skipped .*loss scale to 6\.1"):
        update([rows_of(0.1)], ignore)


# --- J: leaks


class Kept(torch.autograd.Function):
    """The identity; what it saves is remembered weakly."""

    alive: list[weakref.ref[Tensor]] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x.clone()
        Kept.alive.append(weakref.ref(ctx.kept))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def test_J02_no_graph_outlives_its_step() -> None:
    Kept.alive.clear()
    state = state_of(Scale(), lr=0.01)
    objective = Supervised(F.mse_loss)

    def forward_loss(batch: Batch) -> Tensor:
        return Kept.apply(objective.loss(state.model, batch)[0])  # type: ignore[no-any-return]

    update = make_update(state, parts_of(state, forward_loss=forward_loss))
    gc.disable()  # nothing may wait for the collector of cycles either
    try:
        losses = [update([rows_of(1.0), rows_of(2.0)], ignore) for _ in range(10)]
        alive = sum(reference() is not None for reference in Kept.alive)
    finally:
        gc.enable()
    assert len(Kept.alive) == 20
    assert alive <= 2
    assert not any(loss.requires_grad for loss in losses)
