"""The statistics are honest: on simulated studies, through the very functions that judge a real one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from framework.study.comparisons import INTERACTION, comparisons
from framework.study.family import paired, total_weight
from framework.study.model import Kind, Verdict
from framework.study.statistics import bounds, differences, level_of, more_blocks, narrow, verdicts
from tests.study import made

STUDIES, BLOCKS, CONFIDENCE, LEAST = 2000, 5, 0.95, 0.01
ARMS = made.arms()
CLAIMS = (Verdict.faster, Verdict.slower)


def judged(log_ms, arms=ARMS):
    """Verdicts of simulated studies, [studies, comparisons], and whether interactions are claimed, [studies, pairs]."""
    where, compared = {arm.name: n for n, arm in enumerate(arms)}, comparisons(arms)
    total = total_weight(compared)
    per_block = {
        one.arm.name: differences(log_ms, [where[a] for a in one.fast], [where[a] for a in one.slow])
        for one in compared
    }
    found = [
        verdicts(bounds(per_block[one.arm.name], level_of(one.weight, total, CONFIDENCE)), LEAST) for one in compared
    ]
    level = level_of(INTERACTION, total, CONFIDENCE)
    differ = [
        bounds(per_block[alone.arm.name] - per_block[company.arm.name], level)
        for alone, company in paired(compared).values()
    ]
    return np.stack(found, -1), np.stack([(one.low > 0) | (one.high < 0) for one in differ], -1)


def share_with_claim(log_ms):
    found, _ = judged(log_ms)
    return np.isin(found, CLAIMS).any(axis=-1).mean()


def drifting(order, noise, seed=0):
    """Step times that rise by 20 % over the study; `order`: each arm's place in its block, [studies, arms, blocks]."""
    blocks = order.shape[-1]
    passed = (np.arange(blocks) * len(ARMS) + order) / (blocks * len(ARMS) - 1)
    return np.log1p(0.2 * passed) + noise * np.random.default_rng(seed).standard_normal(order.shape)


def shuffled(studies, blocks, seed=0):
    drawn = np.random.default_rng(seed).random((studies, len(ARMS), blocks))
    return drawn.argsort(axis=1).argsort(axis=1)


def test_the_family_is_that_of_eleven_techniques():
    kinds = [one.arm.kind for one in comparisons(ARMS)]
    assert [kinds.count(kind) for kind in (Kind.control, Kind.alone, Kind.without, Kind.all)] == [1, 11, 11, 1]
    assert len(paired(comparisons(ARMS))) == 11


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_no_effect_and_15_percent_noise_give_no_more_than_5_percent_of_studies_with_a_false_claim(blocks):
    log_ms = 0.15 * np.random.default_rng(1).standard_normal((STUDIES, len(ARMS), blocks))
    assert 0.01 < share_with_claim(log_ms) <= 0.05  # nor is it bought by never claiming anything


def test_interactions_are_within_the_same_5_percent():
    log_ms = 0.15 * np.random.default_rng(2).standard_normal((STUDIES, len(ARMS), BLOCKS))
    found, differ = judged(log_ms)
    assert (np.isin(found, CLAIMS).any(axis=-1) | differ.any(axis=-1)).mean() <= 0.055  # 5 % and a standard error


def test_arms_with_unequal_noise_give_no_false_claims():
    rng = np.random.default_rng(3)
    spread = 10 ** rng.uniform(-3, -0.5, (STUDIES, len(ARMS), 1))
    assert share_with_claim(spread * rng.standard_normal((STUDIES, len(ARMS), BLOCKS))) <= 0.05


def test_noise_that_differs_between_blocks_gives_no_false_claims():
    rng = np.random.default_rng(4)
    spread = 10 ** rng.uniform(-3, -0.5, (STUDIES, 1, BLOCKS))
    assert share_with_claim(spread * rng.standard_normal((STUDIES, len(ARMS), BLOCKS))) <= 0.05


@pytest.mark.parametrize("noise", [0.001, 0.003, 0.15])
def test_drift_of_20_percent_gives_no_claim_where_the_order_in_blocks_is_random(noise):
    assert share_with_claim(drifting(shuffled(STUDIES, BLOCKS), noise)) <= 0.05


def test_drift_does_give_claims_where_the_order_is_not_random():
    order = np.broadcast_to(np.arange(len(ARMS))[:, None], (200, len(ARMS), BLOCKS))
    assert share_with_claim(drifting(order, 0.001)) > 0.9


@pytest.mark.parametrize("technique", ["amp", "prefetch", "pinned"])
def test_a_true_2_percent_at_03_percent_noise_is_found_alone_and_in_company(technique):
    log_ms = 0.003 * np.random.default_rng(5).standard_normal((STUDIES, len(ARMS), BLOCKS))
    for n, arm in enumerate(ARMS):
        if f"perf.{technique}=1" in arm.overrides:
            log_ms[:, n] -= math.log(1.02)
    found, _ = judged(log_ms)
    shares = {
        one.arm.kind: (found[:, n] == Verdict.faster).mean()
        for n, one in enumerate(comparisons(ARMS))
        if one.arm.technique == technique
    }
    assert shares[Kind.alone] >= 0.9
    assert shares[Kind.without] >= 0.9
    wrong = [n for n, one in enumerate(comparisons(ARMS)) if one.arm.technique not in (technique, None)]
    assert np.isin(found[:, wrong], CLAIMS).any(axis=-1).mean() <= 0.05


def test_a_stopping_rule_that_looks_at_widths_keeps_the_promise():
    arms, studies = made.arms(("amp", "compile")), 1000
    log_ms = 0.03 * np.random.default_rng(6).standard_normal((studies, len(arms), 20))
    where, compared = {arm.name: n for n, arm in enumerate(arms)}, comparisons(arms)
    open_, claimed = np.ones(studies, bool), np.zeros(studies, bool)
    for blocks in range(BLOCKS, 21):
        seen = log_ms[..., :blocks]
        found, _ = judged(seen, arms)
        width = np.zeros(studies)
        for one in compared:
            level = level_of(one.weight, total_weight(compared), CONFIDENCE)
            fast, slow = ([where[a] for a in side] for side in (one.fast, one.slow))
            interval = bounds(differences(seen, fast, slow), level)
            width = np.maximum(width, (interval.high - interval.low) / 2)
        stops = open_ & ((width <= 0.05) | (blocks == 20))
        claimed |= stops & np.isin(found, CLAIMS).any(axis=-1)
        open_ &= ~stops
    assert not open_.any()
    assert 0.01 < claimed.mean() <= 0.05


def test_negated_differences_mirror_verdicts_and_intervals():
    per_block = np.random.default_rng(7).normal(0.01, 0.01, (300, BLOCKS))
    one, other = bounds(per_block, 0.95), bounds(-per_block, 0.95)
    mirror = {Verdict.faster: Verdict.slower, Verdict.slower: Verdict.faster}
    found = verdicts(one, LEAST)
    assert {Verdict.faster, Verdict.undecided} <= set(found)
    assert [mirror.get(verdict, verdict) for verdict in found] == list(verdicts(other, LEAST))
    np.testing.assert_allclose(one.low, -other.high, rtol=1e-12)


def test_the_interval_is_the_t_interval_of_the_blocks_that_have_both_runs():
    per_block = np.array([[0.01, np.nan, 0.03, 0.02], [0.01, np.nan, np.nan, np.nan], [0.1, 0.2, 0.3, 0.5]])
    found = bounds(per_block, 0.99)
    assert list(found.pairs) == [3, 1, 4]
    half = stats.t.ppf(0.995, 2) * 0.01 / math.sqrt(3)
    assert found.low[0] == pytest.approx(0.02 - half)
    assert found.high[0] == pytest.approx(0.02 + half)
    assert np.isnan([found.estimate[1], found.low[1], found.high[1]]).all()
    assert list(verdicts(found, LEAST))[1] is Verdict.undecided


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.02, 0.001, 0.039), Verdict.faster),
        ((-0.02, -0.039, -0.001), Verdict.slower),
        ((0.02, -0.001, 0.041), Verdict.undecided),
        ((0.009, 0.001, 0.017), Verdict.undecided),  # excludes 0, but is smaller than what matters
        ((0.004, 0.001, 0.007), Verdict.no_effect),
        ((0.0, -0.0099, 0.0099), Verdict.no_effect),
        ((0.0, -0.02, 0.02), Verdict.undecided),
    ],
)
def test_verdict_of_an_interval(interval, verdict):
    found = bounds(np.zeros((1, 3)), 0.95)
    estimate, low, high = (np.array([value]) for value in interval)
    assert verdicts(type(found)(estimate, low, high, found.deviation, found.pairs), LEAST)[0] is verdict


@pytest.mark.parametrize("estimate", [0.02, 0.0])
def test_the_blocks_said_to_be_needed_decide_and_one_fewer_does_not(estimate):
    base = np.array([-1.0, 0.0, 1.0])
    per_block = estimate + 0.01 * base / base.std(ddof=1)
    more = more_blocks(bounds(per_block, 0.99), 0.99, LEAST)
    distance = estimate or math.log1p(LEAST)
    half = [stats.t.ppf(0.995, 3 + n - 1) * 0.01 / math.sqrt(3 + n) for n in (more - 1, more)]
    assert half[0] >= distance > half[1]


def test_blocks_needed_is_not_known_without_spread_or_where_no_thousand_would_do():
    assert more_blocks(bounds(np.array([0.01, np.nan]), 0.95), 0.95, LEAST) is None
    assert more_blocks(bounds(np.array([-3.0, 3.1, 0.0]), 0.95), 0.95, LEAST) is None


def test_repeats_of_one_configuration_are_averaged_and_either_stands_for_both():
    values = np.array([[1.0, np.nan, np.nan], [3.0, 3.0, np.nan], [0.5, 0.5, 0.5]])
    np.testing.assert_array_equal(differences(values, [2], [0, 1]), [1.5, 2.5, np.nan])


def test_narrow_looks_at_widths_only():
    per_block = np.array([0.001, 0.0, -0.001, 0.0])
    near, far = bounds(per_block, 0.95), bounds(per_block + 5.0, 0.95)
    half = float(near.high - near.low) / 2
    assert narrow(near, half * 1.01)
    assert narrow(far, half * 1.01)
    assert not narrow(near, half * 0.99)
    assert not narrow(bounds(np.array([0.1]), 0.95), 1e9)


def test_equal_values_give_a_point_and_no_warning():
    found = bounds(np.full((2, 5), 0.1), 0.99)
    assert found.low[0] == pytest.approx(0.1)
    assert found.high[0] == pytest.approx(0.1)
