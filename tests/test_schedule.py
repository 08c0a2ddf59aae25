"""Courses of the learning rate against lists made by hand, and against PyTorch's own schedulers."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR

from framework.config import Schedule
from framework.schedule import factor

LR = 0.1


def ours(schedule: str, warmup_steps: int, total: int) -> list[float]:
    course = factor(schedule, warmup_steps, total)
    return [LR * course(step) for step in range(total)]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)


def theirs(scheduler: LRScheduler, total: int) -> list[float]:
    rates = []
    for step in range(total):
        rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        scheduler.optimizer.step()
        if step < total - 1:
            scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1, 1, 1]),
        ("constant", 4, [0.25, 0.5, 0.75, 1, 1, 1]),
        ("linear", 0, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("linear", 2, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873]),
        ("cosine", 2, [0.5, 1, 1, 0.8535534, 0.5, 0.1464466]),
        ("one_cycle", 3, [0.04, 0.52, 1, 0.750001, 0.250003, 0.000004]),
        ("linear", 5, [0.2, 0.4, 0.6, 0.8, 1, 1]),
    ],
)
def test_a_course_equals_its_list(schedule: str, warmup_steps: int, expected: list[float]) -> None:
    course = factor(schedule, warmup_steps, 6)
    assert [course(step) for step in range(6)] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_falling_course_ends_at_0_and_stays_there(schedule: str) -> None:
    course = factor(schedule, 2, 6)
    assert [course(step) for step in (6, 7, 1000)] == [0, 0, 0]
    assert all(course(step) > 0 for step in range(6))


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_cosine_equals_cosine_annealing(total: int) -> None:
    assert ours("cosine", 0, total) == pytest.approx(theirs(CosineAnnealingLR(optimizer(), T_max=total), total))


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_linear_equals_linear_lr(total: int) -> None:
    scheduler = LinearLR(optimizer(), start_factor=1.0, end_factor=0.0, total_iters=total)
    assert ours("linear", 0, total) == pytest.approx(theirs(scheduler, total))


@pytest.mark.parametrize("total", [4, 5, 7, 10, 100, 333])
@pytest.mark.parametrize("warmup_steps", [0, 2, 3])
def test_one_cycle_equals_one_cycle_lr(total: int, warmup_steps: int) -> None:
    rise = warmup_steps / total if warmup_steps else 0.3
    scheduler = OneCycleLR(optimizer(), max_lr=LR, total_steps=total, pct_start=rise, cycle_momentum=False)
    assert ours("one_cycle", warmup_steps, total) == pytest.approx(theirs(scheduler, total), rel=1e-5)


@pytest.mark.parametrize("total", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", [schedule.name for schedule in Schedule])
def test_a_short_run_learns_and_no_course_leaves_its_range(schedule: str, total: int) -> None:
    for warmup_steps in range(total):
        rates = [factor(schedule, warmup_steps, total)(step) for step in range(total + 3)]
        assert max(rates[:total]) > 0.5
        assert all(0 <= rate <= 1 for rate in rates)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "one_cycle"])
def test_B05_a_course_that_needs_an_end_says_where_to_set_it(schedule: str) -> None:
    with pytest.raises(ValueError, match=rf"optim\.schedule={schedule} needs an end.*set train\.max_steps"):
        factor(schedule, 0, None)


def test_B05_a_constant_course_needs_no_end() -> None:
    course = factor("constant", 2, None)
    assert [course(step) for step in (0, 1, 2, 10_000)] == [0.5, 1, 1, 1]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "one_cycle"])
@pytest.mark.parametrize("warmup_steps", [10, 11])
def test_a_warm_up_as_long_as_the_run_is_refused(schedule: str, warmup_steps: int) -> None:
    with pytest.raises(ValueError, match=rf"optim\.warmup_steps={warmup_steps} leaves nothing of 10 steps"):
        factor(schedule, warmup_steps, 10)
