"""When an extra warm-up is paid back: counted from the start of training, by the mean step."""

from __future__ import annotations

import dataclasses
import math

import pytest

from framework.study.analysis import analyse
from framework.study.model import StudySettings
from tests.study import made

WARMUP_STEPS = 5  # of the runs that are made up


def with_warmups(step, warmup, spread=0.01, **told):
    """Break-even of compile with these step times (ms) and warm-ups (s); the baseline has 10 ms and 1 s."""
    arms = made.arms(("compile",))
    log_ms = made.times(arms, 5, {}, 0.0005)
    log_ms[2] += math.log(step / 10)
    runs = [
        dataclasses.replace(run, summary=run.summary | {"warmup_s": warmup + spread * math.sin(n)} | told)
        if run.arm == "compile"
        else run
        for n, run in enumerate(made.study(arms, log_ms))
    ]
    return analyse(arms, runs, StudySettings()).techniques[0].alone.break_even


def test_break_even_is_the_warmup_and_its_extra_time_over_the_time_saved():
    found = with_warmups(8.0, 21.0)
    assert found.word is None
    assert found.steps.estimate == pytest.approx(WARMUP_STEPS + 20 / 0.002, rel=0.02)
    assert found.steps.low < found.steps.estimate < found.steps.high
    assert found.extra_warmup_s.estimate == pytest.approx(20, rel=0.01)


def test_break_even_counts_from_the_start_of_training():
    """Steps of 9 ms instead of 10, and a warm-up of 5 steps that takes 10 ms longer: 10 more steps win that back."""
    found = with_warmups(9.0, 1.01, spread=1e-6)
    assert found.steps.estimate == pytest.approx(WARMUP_STEPS + 10, rel=0.01)
    assert found.steps.low == pytest.approx(found.steps.estimate, rel=0.05)


def test_time_is_won_back_by_the_mean_step():
    """A faster median does not pay where slow steps among the others make up for it."""
    assert with_warmups(8.0, 21.0, step_ms_mean=12.0).word == "never"
    assert with_warmups(8.0, 21.0, step_ms_mean=9.0).steps.estimate == pytest.approx(5 + 20 / 0.001, rel=0.02)


@pytest.mark.parametrize(
    ("step", "warmup", "word"),
    [(8.0, 0.5, "at once"), (12.0, 21.0, "never"), (12.0, 0.5, "never"), (10.0, 21.0, "not known")],
)
def test_break_even_in_a_word(step, warmup, word):
    found = with_warmups(step, warmup)
    assert found.word == word
    assert found.steps is None


def test_at_once_only_where_the_warmup_is_surely_no_longer():
    found = with_warmups(8.0, 0.99, spread=0.5)
    assert found.extra_warmup_s.low < found.extra_warmup_s.estimate < 0.2 < found.extra_warmup_s.high
    assert found.word is None
    assert found.steps.low == 0.0
    assert found.steps.high > WARMUP_STEPS + 100


def test_warmups_of_other_lengths_are_not_compared():
    found = with_warmups(8.0, 21.0, warmup_steps=50)
    assert (found.word, found.steps, found.extra_warmup_s) == ("not known", None, None)


def test_steps_with_other_numbers_of_rows_pay_nothing_back():
    assert with_warmups(8.0, 21.0, rows=1280).word == "not known"
