"""From runs to conclusions."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import numpy as np
import pytest

from framework.study.analysis import analyse, narrow_enough
from framework.study.comparisons import comparisons
from framework.study.findings import Sameness
from framework.study.model import Kind, RunRecord, StudySettings, Verdict
from tests.study import made
from tests.study.test_statistics import judged

SETTINGS = StudySettings()
FEW = ("amp", "compile", "log_every")


def rows(found):
    """All rows by the arm that asks for the comparison."""
    named = {row.arm: row for row in (*found.controls, *found.named, *([found.all] if found.all else []))}
    alone = {one.technique: one.alone for one in found.techniques if one.alone}
    return named | alone | {f"without_{one.technique}": one.company for one in found.techniques if one.company}


def company(techniques, worth):
    """Speedups of the arms of a whole study in which each technique has one worth, alone and in company."""
    return {
        arm.name: math.prod(ratio for name, ratio in worth.items() if f"perf.{name}=1" in arm.overrides)
        for arm in made.arms(techniques)
    }


def whole(worth, techniques=FEW, blocks=5, noise=0.001, told=None, seed=0):
    arms = made.arms(techniques)
    log_ms = made.times(arms, blocks, company(techniques, worth), noise, seed)
    return analyse(arms, made.study(arms, log_ms, told), SETTINGS)


def test_the_verdicts_are_those_of_the_functions_that_are_simulated():
    arms = made.arms()
    for seed in range(5):
        log_ms = made.times(arms, 5, company(tuple(made.TECHNIQUES), {"amp": 1.01, "compile": 1.3}), 0.004, seed)
        expected, differ = judged(log_ms[None])
        found = analyse(arms, made.study(arms, log_ms), SETTINGS)
        assert [rows(found)[one.arm.name].verdict for one in comparisons(arms)] == list(expected[0])
        assert [one.interaction.differs for one in found.techniques] == list(differ[0])
        assert found.family == 24 + 11


def test_what_each_technique_is_worth():
    found = whole({"amp": 1.5, "compile": 0.8, "log_every": 1.0})
    amp, compiled, log_every = found.techniques
    for row in (amp.alone, amp.company):
        assert row.verdict is Verdict.faster
        assert row.speedup.low < 1.5 < row.speedup.high
    assert compiled.alone.verdict is compiled.company.verdict is Verdict.slower
    assert log_every.alone.verdict is log_every.company.verdict is Verdict.no_effect
    assert found.controls[0].verdict is Verdict.no_effect
    assert found.all.speedup.estimate == pytest.approx(1.2, rel=0.01)
    assert not any(one.interaction.differs for one in found.techniques)
    assert (found.warning, found.blocks) == (None, 5)
    assert [one.equivalence for one in found.techniques] == ["reduced", "close", "exact"]
    assert amp.evidence == {"seen": "amp"}
    assert amp.alone.figures.step_ms == pytest.approx(10 / 1.5, rel=0.01)


def test_a_technique_that_is_worth_less_in_company_is_seen():
    arms = made.arms(("amp", "channels_last", "compile"))
    speedups = company(("amp", "channels_last", "compile"), {"amp": 1.2, "channels_last": 1.94, "compile": 1.5})
    speedups |= {"all": 1.2 * 1.5 * 1.05}
    speedups["without_channels_last"] = 1.2 * 1.5
    found = analyse(arms, made.study(arms, made.times(arms, 5, speedups, 0.001)), SETTINGS)
    row = next(one for one in found.techniques if one.technique == "channels_last")
    assert row.interaction.differs
    assert row.interaction.ratio.low < 1.94 / 1.05 < row.interaction.ratio.high


def test_a_need_is_the_reference_and_is_named():
    arms = made.arms(("pinned", "prefetch"))
    found = analyse(
        arms, made.study(arms, made.times(arms, 5, {"pinned": 2.0, "prefetch": 2.2, "all": 2.2}, 0.001)), SETTINGS
    )
    prefetch = found.techniques[1]
    assert (prefetch.brings, prefetch.alone.reference) == (("pinned",), "pinned")
    assert prefetch.alone.speedup.estimate == pytest.approx(1.1, rel=0.01)
    assert found.techniques[0].company.arm == "without_prefetch"


def test_baseline_and_control_together_are_the_reference():
    arms, noise = made.named("one"), 0.1
    log_ms = made.times(arms, 5, {}, 0.0)
    log_ms[0] += noise
    log_ms[1] -= noise
    found = analyse(arms, made.study(arms, log_ms), SETTINGS)
    assert found.named[0].speedup.estimate == pytest.approx(1.0)


def test_swapping_the_names_of_two_arms_swaps_their_rows():
    arms = made.arms(FEW)
    log_ms = made.times(arms, 5, {"amp": 1.05, "compile": 0.9}, 0.003)
    names = [arm.name for arm in arms]
    swapped = log_ms.copy()
    swapped[[names.index("amp"), names.index("compile")]] = log_ms[[names.index("compile"), names.index("amp")]]
    one, other = (rows(analyse(arms, made.study(arms, t), SETTINGS)) for t in (log_ms, swapped))
    assert one["amp"].verdict is Verdict.faster
    assert (one["amp"].verdict, one["amp"].speedup) == (other["compile"].verdict, other["compile"].speedup)
    assert (one["compile"].verdict, one["compile"].speedup) == (other["amp"].verdict, other["amp"].speedup)


@pytest.mark.parametrize(("asks", "other"), [("without_amp", "all"), ("control", "baseline")])
def test_swapping_the_names_of_an_arm_and_its_reference_mirrors_the_verdict(asks, other):
    arms = made.arms(FEW)
    log_ms = made.times(arms, 5, {"all": 1.3, "without_amp": 1.1, "control": 1.1}, 0.003)
    names = [arm.name for arm in arms]
    swapped = log_ms.copy()
    swapped[[names.index(asks), names.index(other)]] = log_ms[[names.index(other), names.index(asks)]]
    one, mirrored = (rows(analyse(arms, made.study(arms, t), SETTINGS))[asks] for t in (log_ms, swapped))
    assert (one.verdict, mirrored.verdict) == (Verdict.faster, Verdict.slower)
    assert mirrored.speedup.low == pytest.approx(1 / one.speedup.high)
    assert mirrored.speedup.high == pytest.approx(1 / one.speedup.low)


def test_a_control_that_is_judged_faster_is_said_first():
    found = whole({"control": 1.0, "amp": 1.5}, noise=0.0005)
    assert found.warning is None
    arms = made.arms(FEW)
    found = analyse(arms, made.study(arms, made.times(arms, 5, {"control": 1.2}, 0.001)), SETTINGS)
    assert found.warning.startswith("This machine is too noisy for the claims below: control, ")
    assert found.recommendation.sentence.startswith(found.warning)


def test_further_controls_of_a_control_study_count_as_noise():
    arms = made.named("same_2", "same_3")
    found = analyse(arms, made.study(arms, made.times(arms, 5, {"same_3": 1.1}, 0.001)), SETTINGS)
    assert "same_3" in found.warning
    assert found.recommendation.overrides == ()


def test_missing_runs_leave_their_blocks_out():
    arms = made.arms(FEW)
    log_ms = made.times(arms, 5, {"amp": 1.5}, 0.001)
    log_ms[2, 0] = np.nan
    log_ms[0, 1] = np.nan  # the control stands for the baseline there
    found = analyse(arms, made.study(arms, log_ms), SETTINGS)
    assert (found.techniques[0].alone.blocks, found.techniques[0].alone.verdict) == (4, Verdict.faster)
    assert (found.controls[0].blocks, found.techniques[1].alone.blocks) == (4, 5)


@pytest.mark.parametrize("blocks", [0, 1])
def test_too_few_blocks_are_undecided_with_the_reason(blocks):
    found = whole({}, blocks=blocks)
    assert {row.verdict for row in rows(found).values()} == {Verdict.undecided}
    expected = "1 block with both runs, and two are the least" if blocks else "has not run yet"
    assert all(row.reason.endswith(expected) for row in rows(found).values())
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def failing(arm, block, reason="ValueError: no"):
    return RunRecord(arm.name, block, 0, "failed", reason, 0.0, 1.0, block)


def without_runs_of(name, techniques=FEW, worth=None):
    arms = made.arms(techniques)
    log_ms = made.times(arms, 5, company(techniques, worth or {"compile": 1.2}), 0.001)
    log_ms[[arm.name for arm in arms].index(name)] = np.nan
    return arms, next(arm for arm in arms if arm.name == name), made.study(arms, log_ms)


def test_a_failing_arm_is_failed_with_the_reason_and_stops_nothing_else():
    arms, amp, runs = without_runs_of("amp")
    found = analyse(arms, [*runs, failing(amp, 0), failing(amp, 1)], SETTINGS)
    row = found.techniques[0]
    assert (row.alone.verdict, row.alone.reason, row.alone.speedup) == (Verdict.failed, "ValueError: no", None)
    assert row.interaction is None
    assert found.techniques[1].alone.verdict is Verdict.faster


def test_where_the_reference_fails_it_is_named():
    arms, everything, runs = without_runs_of("all")
    found = analyse(arms, [*runs, failing(everything, 0)], SETTINGS)
    assert (found.all.verdict, found.all.reason) == (Verdict.failed, "ValueError: no")
    assert {one.company.reason for one in found.techniques} == {"all: ValueError: no"}
    assert found.recommendation.techniques == ("compile",)  # nothing is known in company, so what holds alone counts


def test_some_failing_runs_are_told():
    arms, amp, runs = without_runs_of("amp")
    runs += [made.run(amp, block, 9.0 + 0.001 * block) for block in range(3)]
    found = analyse(arms, [*runs, failing(amp, 3)], SETTINGS)
    row = found.techniques[0].alone
    assert row.verdict is Verdict.faster
    assert row.reason == "1 of 14 runs do not count: amp: ValueError: no"


def test_H02_a_run_with_too_few_steps_is_failed_with_the_reason_of_its_summary():
    arms, amp, runs = without_runs_of("amp")
    why = "not enough steps: 3, of which 3 are warm-up"
    runs += [made.run(amp, block, None, missing={"step_ms": why}) for block in range(5)]
    row = analyse(arms, runs, SETTINGS).techniques[0].alone
    assert (row.verdict, row.reason) == (Verdict.failed, why)


def test_a_technique_that_the_machine_lacks_is_skipped_with_the_reason():
    arms, amp, runs = without_runs_of("amp")
    runs.append(RunRecord(amp.name, 0, -1, "skipped", "needs a CUDA device", 0.0, 0.0, 0))
    row = analyse(arms, runs, SETTINGS).techniques[0].alone
    assert (row.verdict, row.reason) == (Verdict.skipped, "needs a CUDA device")


def altered(arm, name, **fields):
    return {"switches": (seen := made.switches(arm)) | {name: seen[name] | fields}}


def test_a_switch_that_was_left_out_is_skipped():
    arms = {arm.name: arm for arm in made.arms(FEW)}
    told = {name: altered(arms[name], "amp", left_out="no bf16 here", on=False) for name in ("amp", "all")}
    row = whole({"amp": 1.5}, told=told).techniques[0]
    assert (row.alone.verdict, row.company.verdict) == (Verdict.skipped, Verdict.skipped)
    assert row.company.reason == "no bf16 here"


def test_a_switch_of_which_nothing_was_seen_is_not_active():
    arms = {arm.name: arm for arm in made.arms(FEW)}
    found = whole({}, told={"amp": altered(arms["amp"], "amp", active=None, evidence={})})
    assert found.techniques[0].alone.reason == "no sign of it in 5 of 5 runs; nothing was seen"


def test_H04_twice_the_rows_in_the_same_time_is_twice_as_fast():
    arms = made.named("big")
    told = {"big": {"rows": 1280, "samples_per_s": 128e2}}
    row = analyse(arms, made.study(arms, made.times(arms, 3, {}, 0.001), told), SETTINGS).named[0]
    assert row.figures.samples_per_s == pytest.approx(128e2)
    assert row.speedup.estimate == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize("active", [False, None])
def test_a_switch_without_evidence_is_not_active_whatever_the_time(active):
    arms = {arm.name: arm for arm in made.arms(FEW)}
    told = {name: altered(arms[name], "amp", active=active, evidence={"dtype": "fp32"}) for name in ("amp", "all")}
    found = whole({"amp": 1.5}, told=told)
    row = found.techniques[0]
    assert row.alone.verdict is row.company.verdict is Verdict.not_active
    assert row.alone.reason == "no sign of it in 5 of 5 runs; what was seen is dtype fp32"
    assert row.alone.speedup is None
    assert "amp" not in found.recommendation.techniques
    assert "no sign of amp" in found.all.reason


def test_a_switch_that_one_run_does_not_know_is_not_active():
    assert whole({}, told={"amp": {"switches": {}}}).techniques[0].alone.verdict is Verdict.not_active


def test_a_switch_that_is_on_in_the_reference_too_is_not_active():
    arms = {arm.name: arm for arm in made.arms(FEW)}
    told = {"without_amp": altered(arms["without_amp"], "amp", on=True, active=True)}
    row = whole({"amp": 1.5}, told=told).techniques[0].company
    assert (row.verdict, row.reason) == (Verdict.not_active, "it was on in without_amp too")


def test_a_named_arm_whose_switches_do_nothing_is_not_active():
    arms = made.named("amp", "compile")
    told = {"amp": altered(arms[2], "amp", active=False)}
    found = analyse(arms, made.study(arms, made.times(arms, 5, {"compile": 1.1}, 0.001), told), SETTINGS)
    assert [row.verdict for row in found.named] == [Verdict.not_active, Verdict.faster]


def test_undecided_says_how_many_more_blocks():
    found = rows(whole({}, blocks=3, noise=0.02)).values()
    told = [row for row in found if row.more_blocks]
    assert len(told) > 4
    assert all(row.verdict is Verdict.undecided and row.more_blocks > 1 for row in told)
    assert all(row.reason == f"about {row.more_blocks} more blocks would decide" for row in told)
    unknown = [row for row in found if row.verdict is Verdict.undecided and not row.more_blocks]
    assert all(row.reason == "more than 1000 blocks would be needed" for row in unknown)


def test_a_technique_that_changes_the_loss_is_caught():
    losses = {"losses": [1.0, 0.5, 0.2500001]}
    found = whole({"log_every": 1.5}, told={"log_every": losses, "all": losses})
    numbers = {one.technique: one.numbers.verdict for one in found.techniques}
    assert numbers == {"amp": Sameness.same, "compile": Sameness.same, "log_every": Sameness.differs}
    assert "log_every: losses part at step 3" in found.recommendation.sentence
    assert found.all.numbers.verdict is not Sameness.same
    assert found.repeats == "Baseline and control have bit-equal losses in 5 of 5 blocks."


@pytest.mark.parametrize(("names", "verdict"), [(("amp",), Sameness.differs), (FEW, Sameness.undecided)])
def test_more_arms_make_it_harder_to_accuse_one_of_changing_the_loss(names, verdict):
    arms = made.named(*names)
    off = [0.01 * (1 + 0.857 * z) for z in (-1, -0.5, 0, 0.5, 1)]  # 3.3 standard errors: enough for one arm, not three
    runs = [
        dataclasses.replace(run, summary=run.summary | {"losses": [1.0 + off[run.block]] * 3})
        if run.arm == "amp"
        else dataclasses.replace(run, summary=run.summary | {"losses": [1.0] * 3})
        for run in made.study(arms, made.times(arms, 5, {}, 0.001))
    ]
    assert analyse(arms, runs, SETTINGS).named[0].numbers.verdict is verdict


def test_H03_memory_is_the_median_with_its_change():
    told = {name: {"memory": {"peak_allocated_gib": gib}} for name, gib in {"amp": 1.5, "all": 1.0}.items()}
    told |= {name: {"memory": {"peak_allocated_gib": 2.5}} for name in ("baseline", "control", "without_amp")}
    row = whole({}, told=told).techniques[0]
    assert row.alone.figures.memory["peak_allocated_gib"].gib == 1.5
    assert row.alone.figures.memory["peak_allocated_gib"].change_gib == -1.0
    assert row.company.figures.memory["peak_allocated_gib"].change_gib == -1.5


def test_H04_steps_of_another_size_are_told():
    arms = made.named("big")
    found = analyse(arms, made.study(arms, made.times(arms, 3, {}, 0.001), {"big": {"rows": 1280}}), SETTINGS)
    assert "its steps have 128 rows against 64" in found.named[0].reason


def test_the_order_in_which_runs_are_given_changes_nothing():
    arms = made.arms(FEW)
    runs = made.study(arms, made.times(arms, 5, {"amp": 1.3}, 0.003))
    mixed = random.Random(0).sample(runs, len(runs))
    assert analyse(arms, mixed, SETTINGS) == analyse(arms, runs, SETTINGS)


def test_all_of_it_is_json():
    found = whole({"amp": 1.5, "compile": 0.8}, blocks=2, noise=2.0)
    told = json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))
    assert told["techniques"][0]["alone"]["verdict"] == found.techniques[0].alone.verdict.value


def test_every_technique_recommended_is_what_all_measured():
    found = whole({"amp": 1.5, "compile": 1.2, "log_every": 1.1})
    said = found.recommendation
    assert said.techniques == FEW
    assert (said.speedup, said.measured_by) == (found.all.speedup, "all")
    assert said.overrides == next(arm.overrides for arm in made.arms(FEW) if arm.name == "all")
    assert "the arm all, which ran exactly this, is 1.98" in said.sentence


def test_winners_that_no_arm_ran_together_get_no_figure():
    said = whole({"amp": 1.5, "compile": 1.2, "log_every": 0.9}).recommendation
    assert said.techniques == ("amp", "compile")
    assert said.overrides == ("perf=baseline", "perf.amp=1", "perf.compile=1")
    assert (said.speedup, said.measured_by) == (None, None)
    assert "not measured together" in said.sentence
    assert "study=arms measures these overrides as one arm" in said.sentence
    assert said.sentence.count("perf.amp=1") == said.sentence.count("perf=baseline") == 1


def test_a_switch_that_did_nothing_in_all_may_be_missing_from_the_winners():
    arms = {arm.name: arm for arm in made.arms(FEW)}
    told = {name: altered(arms[name], "log_every", active=False) for name in ("log_every", "all")}
    said = whole({"amp": 1.5, "compile": 1.2}, told=told).recommendation
    assert (said.techniques, said.measured_by) == (("amp", "compile"), "all")


def test_a_single_winner_says_that_it_was_picked_by_the_same_data():
    found = whole({"amp": 1.5})
    said = found.recommendation
    assert (said.techniques, said.measured_by, said.speedup) == (("amp",), "amp", found.techniques[0].alone.speedup)
    assert "picked by these very data" in said.sentence


def test_what_a_winner_needs_comes_along():
    arms = made.arms(("amp", "pinned", "prefetch"))
    speedups = company(("amp", "pinned", "prefetch"), {"prefetch": 1.3, "amp": 0.8})
    said = analyse(arms, made.study(arms, made.times(arms, 5, speedups, 0.001)), SETTINGS).recommendation
    assert said.overrides == ("perf=baseline", "perf.pinned=1", "perf.prefetch=1")


def test_nothing_faster_keeps_the_baseline():
    said = whole({"amp": 0.8}).recommendation
    assert (said.techniques, said.overrides, said.speedup) == ((), (), None)
    assert said.sentence.startswith("Keep the baseline")


def test_the_best_of_named_arms_says_that_it_was_picked():
    arms = made.named("amp", "compile", "same")
    found = analyse(arms, made.study(arms, made.times(arms, 5, {"amp": 1.1, "compile": 1.3}, 0.001)), SETTINGS)
    assert found.recommendation.measured_by == "compile"
    assert "the best of several by these very data" in found.recommendation.sentence
    assert [row.verdict for row in found.named] == [Verdict.faster, Verdict.faster, Verdict.no_effect]


def test_the_method_and_its_family_are_stated():
    found = whole({})
    assert found.family == 1 + 3 + 3 + 1 + 3
    assert "The 11 claims (8 verdicts and 3 interactions) hold together with 95 %" in found.method
    assert {row.kind for row in rows(found).values()} == {Kind.control, Kind.alone, Kind.without, Kind.all}


def test_blocks_are_added_until_intervals_are_narrow_whatever_the_effect():
    arms = made.arms(FEW)
    for worth in (1.0, 2.0):
        runs = made.study(arms, made.times(arms, 5, company(FEW, {"amp": worth}), 0.01))
        found = rows(analyse(arms, runs, SETTINGS)).values()
        widest = max(math.log(row.speedup.high / row.speedup.low) / 2 for row in found)
        assert narrow_enough(arms, runs, dataclasses.replace(SETTINGS, half_width=widest * 1.001))
        assert not narrow_enough(arms, runs, dataclasses.replace(SETTINGS, half_width=widest * 0.999))
    assert not narrow_enough(
        arms, made.study(arms, made.times(arms, 1, {})), dataclasses.replace(SETTINGS, half_width=9)
    )


def test_an_arm_that_never_runs_does_not_keep_blocks_coming():
    arms, amp, runs = without_runs_of("amp")
    settings = dataclasses.replace(SETTINGS, half_width=0.05)
    assert narrow_enough(arms, [*runs, failing(amp, 0), failing(amp, 1)], settings)
