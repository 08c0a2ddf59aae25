"""Each run over time: every run is there, where it was, and drift of the machine can be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from framework.study.arms import control_arms
from framework.study.dots import dots_of, overview, panels
from framework.study.material import gather
from tests.study import made_gpu, stories

WIDTHS = (1040.0, 350.0)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return gather(stories.lay(tmp_path_factory.mktemp("study"), *stories.h200()))


def test_every_run_is_one_dot(material):
    started = [run for run in material.runs if run.status != "skipped"]
    marks = [mark for mark in overview(material, 1040.0).marks if ", block " in mark.text]
    assert len(marks) == len(started)
    lost = [mark for mark in marks if mark.shape == "cross"]
    assert len(lost) == sum(run.status == "failed" for run in started)
    assert all("failed: " in mark.text for mark in lost)


@pytest.mark.parametrize("width", WIDTHS)
def test_dots_stay_in_the_drawing_in_the_order_of_the_runs(material, width):
    drawing = overview(material, width)
    places = [mark.at for mark in drawing.marks if ", block " in mark.text]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert all(0 < x < width and 0 < y < drawing.height for x, y in places)


def test_drift_of_the_machine_is_a_slope(tmp_path):
    arms = control_arms(2)
    slow = gather(stories.lay(tmp_path, arms, made_gpu.told(arms, 6, noise=0.0, drift=0.2)))
    marks = overview(slow, 1040.0).marks
    for arm in arms:
        heights = [mark.at[1] for mark in marks if mark.text.startswith(f"{arm.name}, block ")]
        assert heights == sorted(heights, reverse=True)
        assert heights[0] - heights[-1] > 80


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.03, 0.2, 1.0, 3.0])
def test_any_noise_can_be_drawn(tmp_path, noise):
    arms = control_arms(2)
    drawing = overview(gather(stories.lay(tmp_path, arms, made_gpu.told(arms, 4, noise=noise))), 1040.0)
    labels = {mark.text: mark.at[1] for mark in drawing.marks if mark.text.endswith(" %")}
    above = [text for text in labels if text.startswith("+")]
    below = [text for text in labels if text.startswith("-")]
    assert above
    assert below
    assert max(labels[text] for text in above) < labels["0 %"] < min(labels[text] for text in below)


def test_pauses_are_left_out(tmp_path):
    arms = control_arms(2)
    runs = made_gpu.told(arms, 2)
    late = [replace(run, started=run.started + 86400) if run.block else run for run in runs]
    dots = dots_of(gather(stories.lay(tmp_path, arms, late)))
    assert dots[-1].minute == pytest.approx(sum(run.seconds for run in late[:-1]) / 60)


def test_each_arm_that_ran_has_a_panel(material):
    names = [name for name, _ in panels(material)]
    assert "cudnn_benchmark" not in names
    assert len(names) == len(material.arms) - 1
    failed = dict(panels(material))["tf32"]
    assert [mark.shape for mark in failed.marks].count("cross") == 5
    assert "no step time" in [mark.text for mark in failed.marks]


def test_a_run_far_out_is_a_triangle_at_the_edge(tmp_path):
    arms = control_arms(2)
    runs = made_gpu.told(arms, 8, noise=0.001, drift=0.0)
    slow = replace(runs[5], summary=runs[5].summary | {"step_ms": 2 * runs[5].summary["step_ms"]})
    found = gather(stories.lay(tmp_path, arms, [*runs[:5], slow, *runs[6:]]))
    marks = [mark for mark in overview(found, 1040.0).marks if ", block " in mark.text]
    assert [n for n, mark in enumerate(marks) if mark.shape == "up"] == [5]
    assert marks[5].at[1] == min(mark.at[1] for mark in marks)
