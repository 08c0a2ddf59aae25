"""The last line: what to use, how to measure it, and why there may be nothing to recommend."""

from __future__ import annotations

import shlex
from dataclasses import replace

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from framework.study.analysis import analyse
from framework.study.arms import control_arms, with_arms_quoted
from framework.study.material import commands, gather
from framework.study.model import StudySettings, Verdict
from tests.study import made, made_gpu, stories
from tests.study.reading import rendered

SETTINGS = StudySettings()
COMMON = ["experiment=rn50", "meter.warmup_steps=30"]  # of every study that `stories.lay` writes


def with_steps_of(rows, step_ms):
    """A study of the arm `other`, whose steps have that many rows and take that long; the baseline: 64 in 10 ms."""
    arms = made.named("other")
    log_ms = made.times(arms, 5, {}, 0.002)
    log_ms[2] += np.log(step_ms / 10)
    return analyse(arms, made.study(arms, log_ms, {"other": {"rows": 10 * rows}}), SETTINGS)


def test_less_work_in_a_step_is_not_recommended_as_speed():
    found = with_steps_of(8, 3.0)
    assert found.named[0].verdict is Verdict.slower
    assert found.named[0].speedup.estimate == pytest.approx((8 / 3.0) / (64 / 10.0), rel=0.01)  # of samples/s
    assert found.named[0].reason == "its steps have 8 rows against 64, so the time per row is compared"
    assert found.recommendation.sentence.startswith("Keep the baseline")


def test_more_work_in_a_step_is_recommended_by_the_time_per_row():
    found = with_steps_of(128, 15.0)
    assert found.named[0].verdict is Verdict.faster
    assert found.recommendation.speedup.estimate == pytest.approx(4 / 3, rel=0.01)
    assert "as fast as baseline (faster, by the time per row)" in found.recommendation.sentence


def test_a_small_gain_is_not_rounded_away():
    arms = made.named("amp")
    runs = made.study(arms, made.times(arms, 5, {"amp": 1.0149}, 0.0001))
    assert "the arm amp is 1.015x (1.01" in analyse(arms, runs, SETTINGS).recommendation.sentence
    arms = made.named("same")
    runs = made.study(arms, made.times(arms, 5, {"same": 1.0149}, 0.0001))
    assert "was judged faster, 1.015x (1.01" in analyse(arms, runs, SETTINGS).warning


def chosen_together(folder):
    """A study that recommends two of three techniques, which no arm ran by themselves."""
    names = ["amp", "allocator", "channels_last"]
    arms = stories.technique_arms(made_gpu.PRESETS, names, names)
    runs = made_gpu.told(arms, 5)
    quick = {arm.name for arm in arms if any(one.startswith("perf.allocator") for one in arm.overrides)}
    slow = {arm.name for arm in arms if any(one.startswith("perf.channels_last") for one in arm.overrides)}
    runs = [
        replace(
            run, summary=stories.slower(run.summary, (0.8 if run.arm in quick else 1) * (2 if run.arm in slow else 1))
        )
        for run in runs
    ]
    return stories.lay(folder, arms, runs)


def test_the_command_that_measures_the_choice_can_be_given_as_it_is_printed(tmp_path, capsys):
    found = gather(chosen_together(tmp_path))
    chosen = found.analysis.recommendation
    assert (chosen.techniques, chosen.measured_by) == (("amp", "allocator"), None)
    use, measure = commands(found)
    assert shlex.split(use) == ["python", "train.py", *COMMON, *chosen.overrides]
    python, script, *arguments = shlex.split(measure)
    assert (python, script, arguments[:-1]) == ("python", "train.py", ["study=arms", *COMMON])
    *_, arm = OverridesParser.create().parse_overrides(with_arms_quoted(arguments))
    assert arm.get_key_element() == "+study.arms.chosen"
    assert [one if isinstance(one, str) else one.text for one in arm.value()] == list(chosen.overrides)
    markdown, page = rendered(tmp_path / "again", (found.arms, found.runs))
    for text in (markdown, page.replace("&#x27;", "'").replace("&quot;", '"'), capsys.readouterr().out):
        assert measure in text


def test_what_an_arm_has_measured_is_not_to_be_measured_again(tmp_path):
    arms, runs = stories.of_the_user()
    found = gather(stories.lay(tmp_path, arms, runs))
    assert found.analysis.recommendation.measured_by == "bf16"
    assert len(commands(found)) == 1


def without_figures(arms, *names):
    runs = made.study(arms, made.times(arms, 5, {}, 0.001))
    why = "not enough steps: 3 after 10 of warm-up, 5 needed; raise train.max_steps"
    told = {"step_ms": None, "missing": {"step_ms": why}}
    return why, [replace(run, summary=run.summary | told) if run.arm in names else run for run in runs]


def test_a_baseline_without_figures_is_not_to_be_kept_for_its_speed():
    arms = made.arms(("amp", "compile"))
    why, runs = without_figures(arms, *(arm.name for arm in arms))
    said = analyse(arms, runs, SETTINGS).recommendation.sentence
    assert said == f"No run of the baseline gave a step time, so nothing can be held against it: {why}."


def test_a_control_stands_for_a_baseline_without_figures():
    arms = made.arms(("amp", "compile"))
    _, runs = without_figures(arms, "baseline")
    assert analyse(arms, runs, SETTINGS).recommendation.sentence.startswith("Keep the baseline")


@pytest.mark.parametrize("arms", [made.arms(("amp",)), control_arms(3)])
def test_nothing_that_ran_is_nothing_to_recommend(arms):
    assert analyse(arms, [], SETTINGS).recommendation.sentence == "Nothing has run, so there is nothing to recommend."


def test_a_study_of_controls_has_nothing_to_recommend():
    arms = control_arms(3)
    runs = made.study(arms, made.times(arms, 5, {}, 0.001))
    assert analyse(arms, runs, SETTINGS).recommendation.sentence == (
        "This study holds the baseline against itself alone, so there is nothing to recommend."
    )
