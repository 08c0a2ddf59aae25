"""Whether training still gives the same numbers: bit for bit, or within what the baseline's own runs differ by."""

from __future__ import annotations

import numpy as np
import pytest

from framework.study.equivalence import Trained, repeats, same_numbers
from framework.study.findings import Sameness

STEPS, BLOCKS, LEVEL = 60, 5, 1 - 0.05 / 12  # twelve arms whose losses are judged


def curve(seed, last=0.5):
    """A loss that falls to about `last`, with the shape that the seed gives it."""
    rng = np.random.default_rng(seed)
    return last + np.exp(-np.arange(STEPS) / 8) + 0.02 * rng.standard_normal() + 0.01 * rng.standard_normal(STEPS)


def histories(blocks=BLOCKS, shift=0.0, noise=0.0, seed=0):
    """Losses by block: each block has a seed of its own; `noise` is what differs from run to run."""
    rng = np.random.default_rng(seed)
    return {b: (curve(b) + shift + noise * rng.standard_normal(STEPS)).tolist() for b in range(blocks)}


def judged(arm, rule, baseline=None, control=None, references=None):
    baseline = histories() if baseline is None else baseline
    control = histories() if control is None else control
    return same_numbers(Trained(arm, references or (baseline, control), (baseline, control)), rule, 0.95, LEVEL)


@pytest.mark.parametrize("rule", ["exact", "close", "reduced"])
def test_bit_equal_losses_are_the_same(rule):
    found = judged(histories(), rule)
    assert found.verdict is Sameness.same
    assert found.reason == "bit-equal losses in 5 of 5 blocks"


def test_an_exact_technique_that_changes_one_loss_in_the_last_bit_is_caught():
    arm = histories()
    arm[3][17] = np.nextafter(arm[3][17], 1.0)
    found = judged(arm, "exact")
    assert found.verdict is Sameness.differs
    assert found.reason == "losses part at step 18 of block 4; the baseline's repeats are bit-equal in 5 blocks"


def test_the_same_change_is_within_what_a_close_technique_may_do():
    arm = histories()
    arm[3][17] = np.nextafter(arm[3][17], 1.0)
    assert judged(arm, "close").verdict is Sameness.same


def test_without_a_repeat_of_the_baseline_nothing_is_said_of_a_difference():
    arm = histories(noise=1e-6)
    assert judged(arm, "exact", control={}).verdict is Sameness.undecided


def test_an_exact_technique_is_held_against_repeats_that_differ():
    control = histories(noise=1e-4, seed=1)
    assert judged(histories(noise=1e-4, seed=5), "exact", control=control).verdict is Sameness.same
    found = judged(histories(noise=1e-4, shift=0.05, seed=2), "exact", control=control)
    assert found.verdict is Sameness.differs
    assert "repeats are up to" in found.reason


def test_a_little_further_than_the_repeats_is_undecided():
    control = {b: [loss + 1e-4 for loss in losses] for b, losses in histories().items()}
    arm = {b: [loss + 1e-4 * (1 + b) for loss in losses] for b, losses in histories().items()}
    assert judged(arm, "exact", control=control).verdict is Sameness.undecided


def test_exact_techniques_are_not_accused_where_the_baseline_does_not_repeat_itself():
    """To hold each distance against the largest of the baseline's own would accuse every second one."""
    rng, accused, cleared = np.random.default_rng(5), 0, 0
    for _ in range(400):
        baseline, control, arm = (
            {b: (curve(b) + gap * rng.standard_normal(STEPS)).tolist() for b, gap in enumerate(spread)}
            for spread in 10 ** rng.uniform(-5, -3, (3, BLOCKS))
        )
        verdict = judged(arm, "exact", baseline, control, (baseline,)).verdict
        accused += verdict is Sameness.differs
        cleared += verdict is Sameness.same
    assert accused <= 0.02 * 400
    assert cleared >= 0.8 * 400


@pytest.mark.parametrize("rule", ["close", "reduced"])
def test_a_changed_final_loss_is_caught(rule):
    found = judged(histories(shift=0.2, noise=1e-3, seed=3), rule, control=histories(noise=1e-3, seed=4))
    assert found.verdict is Sameness.differs
    assert found.reason.startswith("final loss differs by +0.2")


def test_a_lower_loss_differs_too():
    assert judged(histories(shift=-0.2, noise=1e-3), "close").verdict is Sameness.differs


def test_rounding_noise_is_the_same():
    found = judged(histories(noise=1e-4, seed=3), "close")
    assert found.verdict is Sameness.same
    assert "from seed to seed and 0 from run to run" in found.reason


def test_the_margin_is_no_fixed_percentage():
    """The same shift is within the spread of one baseline and far outside that of another."""
    alike = {b: curve(0).tolist() for b in range(BLOCKS)}
    alike = {b: [loss + 1e-5 * b for loss in losses] for b, losses in alike.items()}
    rng = np.random.default_rng(6)
    moved = {
        key: {b: [loss + 2e-3 + 1e-5 * rng.standard_normal() for loss in losses] for b, losses in one.items()}
        for key, one in {"alike": alike, "spread": histories()}.items()
    }
    assert judged(moved["spread"], "close").verdict is Sameness.same
    assert judged(moved["alike"], "close", alike, alike).verdict is Sameness.differs


def test_noise_as_large_as_the_margin_is_undecided():
    arm = {b: [loss + 0.03 * (-1) ** b for loss in losses] for b, losses in histories().items()}
    assert judged(arm, "close").verdict is Sameness.undecided


def test_a_shift_beyond_the_margin_is_seldom_called_the_same():
    rng, passed = np.random.default_rng(7), 0
    for _ in range(400):
        finals = 0.5 + rng.normal(0, 0.02, BLOCKS)
        moved = finals + 0.06 + rng.normal(0, 0.02, BLOCKS)  # three deviations from seed to seed
        baseline, arm = ({b: [last] * STEPS for b, last in enumerate(one.tolist())} for one in (finals, moved))
        passed += judged(arm, "reduced", baseline, baseline).verdict is Sameness.same
    assert passed <= 0.05 * 400


def test_one_block_tells_nothing_of_the_spread_from_seed_to_seed():
    one = {0: histories()[0]}
    found = judged(histories(blocks=1, noise=1e-4), "reduced", one, one)
    assert found.verdict is Sameness.undecided


@pytest.mark.parametrize("rule", ["exact", "reduced"])
def test_a_loss_that_is_not_finite_any_more_differs(rule):
    arm = histories()
    arm[2][-3] = None
    assert judged(arm, rule).verdict is Sameness.differs


def test_losses_that_are_not_finite_in_the_same_steps_are_equal():
    both = histories()
    both[2][5] = None
    assert judged(both, "exact", both, both).verdict is Sameness.same


def test_another_number_of_steps_differs():
    found = judged({b: losses[:-1] for b, losses in histories().items()}, "close")
    assert found.verdict is Sameness.differs
    assert found.reason == "it trained 59 steps in block 1, its reference 60"


@pytest.mark.parametrize("arm", [{}, {0: []}])
def test_without_losses_nothing_is_said(arm):
    assert judged(arm, "exact", {0: []}, {0: []}).verdict is Sameness.undecided


def test_the_baselines_own_repeats_are_told():
    assert repeats([histories(), histories()]) == "Baseline and control have bit-equal losses in 5 of 5 blocks."
    assert repeats([histories(), histories(noise=1e-3)]).startswith(
        "Baseline and control have bit-equal losses in 0 of 5 blocks; mean distance of their losses: up to 0.0"
    )
    assert repeats([histories(), {}]) == "Baseline and control did not run in the same block."
