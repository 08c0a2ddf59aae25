"""How far a study has come: what it judges before it adds a block, what is still to be done, and how long it takes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from framework.mistakes import ConfigError
from framework.study import study
from framework.study.material import cautions, gather
from framework.study.model import StudySettings, refuse
from framework.study.process import one_by_one
from framework.study.progress import blocks_needed, given_up, runs_left
from tests.study import made, stories

ARMS = made.named("amp")
COMMON = ("experiment=rn50", "meter.warmup_steps=30")  # of every study that `stories.lay` writes
WIDTH = {"half_width": 0.05, "blocks": 5, "max_blocks": 20}
SETTINGS = StudySettings(**WIDTH)


def runs_of(blocks, noise=0.001):
    return made.study(ARMS, made.times(ARMS, blocks, {}, noise))


def narrow_from(least):
    """A rule that is content with so many blocks."""
    return lambda arms, runs, settings: 1 + max(run.block for run in runs) >= least


def a_study(folder, settings=SETTINGS, runs=()):
    return study.Study(
        folder, ARMS, settings, COMMON, 0, None, {}, lambda line: None, one_by_one, nullcontext, runs=list(runs)
    )


def test_whether_a_block_is_needed_is_judged_by_the_blocks_before_it(tmp_path):
    runs, seen = runs_of(8)[:-2], []  # interrupted within its eighth block
    stories.lay(tmp_path, ARMS, runs, **WIDTH)

    def narrow_enough(arms, judged, settings):
        seen.append({run.block for run in judged})
        return len(seen) == 2

    a_study(tmp_path).run(narrow_enough)
    assert seen == [set(range(5)), set(range(6))]


@pytest.mark.parametrize(
    ("begun", "enough", "needed"), [(0, 1, 5), (3, 3, 5), (5, 5, 5), (5, 6, 6), (7, 6, 6), (7, 30, 8), (20, 30, 20)]
)
def test_blocks_needed_with_a_half_width(begun, enough, needed):
    assert blocks_needed(ARMS, runs_of(begun), SETTINGS, narrow_from(enough)) == needed


def test_blocks_needed_without_one_are_those_of_the_plan():
    assert blocks_needed(ARMS, runs_of(2), StudySettings(), narrow_from(99)) == 5


@pytest.mark.parametrize(
    ("noise", "said"),
    [(0.5, "The study is not complete: at least 3 runs of its plan are still to be done."), (0.0, None)],
)
def test_a_study_that_was_cut_before_its_intervals_were_narrow_is_not_complete(tmp_path, noise, said):
    found = gather(stories.lay(tmp_path, ARMS, runs_of(5, noise), **WIDTH))
    assert cautions(found) == ([said] if said else [])


def test_an_interrupted_run_is_still_to_be_done(tmp_path):
    *runs, last = runs_of(5)
    runs.append(replace(last, status="interrupted", summary={}))
    assert runs_left(ARMS, runs, 5) == {"baseline": 0, "control": 0, "amp": 1}
    found = gather(stories.lay(tmp_path, ARMS, runs))
    assert cautions(found) == ["The study is not complete: 1 run of its plan is still to be done."]


def test_an_arm_that_is_given_up_lacks_nothing():
    failed = [replace(run, status="failed") for run in runs_of(2) if run.arm == "amp"]
    assert not given_up("amp", failed[:1])
    assert given_up("amp", failed)
    assert not given_up("amp", [*failed, *runs_of(1)])
    assert given_up("amp", [replace(failed[0], status="skipped")])
    assert "amp" not in runs_left(ARMS, failed, 5)


@pytest.mark.parametrize(
    ("settings", "blocks", "block", "said"),
    [
        (StudySettings(), 3, 2, "about 6.0 min left"),
        (SETTINGS, 3, 2, "at least 6.0 min left"),
        (SETTINGS, 5, 5, "at least 3.0 min left"),
        (replace(SETTINGS, max_blocks=6), 5, 5, "about 3.0 min left"),
    ],
)
def test_time_left(tmp_path, settings, blocks, block, said):
    """Three arms of a minute each."""
    runs = [replace(run, seconds=60.0) for run in runs_of(blocks)]
    assert a_study(tmp_path, settings, runs)._time_left(block) == said


def test_the_time_of_an_interrupted_run_is_to_be_spent_again(tmp_path):
    runs = [replace(run, seconds=60.0) for run in runs_of(5)]
    runs[-1] = replace(runs[-1], status="interrupted", summary={})
    assert a_study(tmp_path, StudySettings(), runs)._time_left(4) == "about 1.0 min left"


def test_a_half_width_needs_five_blocks_to_begin_with():
    for fine in (SETTINGS, StudySettings(blocks=2), replace(SETTINGS, blocks=8)):
        refuse(fine)
    with pytest.raises(ConfigError, match=r"study\.half_width=0\.05 needs study\.blocks=5 or more, not 4: "):
        refuse(replace(SETTINGS, blocks=4))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"blocks": 0}, r"study\.blocks=0 is too small"),
        ({"confidence": 95.0}, r"study\.confidence=95 must lie between 0 and 1"),
        ({"confidence": 1.0}, r"study\.confidence=1 must lie"),
        ({"smallest_effect": -2.0}, r"study\.smallest_effect=-2 must lie from 0"),
        ({"half_width": 0.0}, r"study\.half_width=0 must be above 0"),
        ({"half_width": 0.1, "max_blocks": 4}, r"study\.max_blocks=4 is less than study\.blocks=5"),
    ],
)
def test_what_could_show_nothing_is_refused_before_it_runs(change, says):
    with pytest.raises(ConfigError, match=says):
        refuse(replace(StudySettings(), **change))
