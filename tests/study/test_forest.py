"""The forest plot: where a ratio lies, that labels can be read, that colours can be told apart."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageFont

from framework.study.analysis import analyse
from framework.study.drawing import DARK, LIGHT, SCALE, SIZES, Drawing, Mark, png, svg
from framework.study.forest import SHAPES, forest
from framework.study.material import gather
from framework.study.model import Interval, StudySettings
from framework.study.scale import axis, round_steps, ticks
from tests.study import stories

WIDTHS = (1040.0, 350.0)
RANGES = [(0.999, 1.001), (0.97, 1.02), (0.9, 1.3), (0.5, 1.9), (0.93, 5.1), (0.02, 40.0), (1e-300, 1e300)]


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return gather(stories.lay(tmp_path_factory.mktemp("study"), *stories.h200()))


def between(low, high, width=600.0):
    return axis([Interval(math.sqrt(low * high), low, high)], 0.01, (100.0, 100.0 + width))


def texts(drawing):
    return [mark for mark in drawing.marks if mark.shape == "text"]


def box(mark):
    """What a text covers, by the widths of Pillow's font, which is about as wide as those of systems."""
    width = ImageFont.load_default(SIZES[mark.role]).getlength(mark.text)
    x = mark.at[0] - {"start": 0.0, "middle": width / 2, "end": width}[mark.anchor]
    return x, mark.at[1] - 6, x + width, mark.at[1] + 6


def contrast(one, other):
    """Source: WCAG 2.2, relative luminance."""

    def light(colour):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_axis_is_logarithmic():
    lies = axis([Interval(0.5, 0.5, 0.5), Interval(4.0, 4.0, 4.0)], 0.01, (100.0, 700.0))
    assert lies.at(2.0) - lies.at(1.0) == pytest.approx(lies.at(4.0) - lies.at(2.0))
    assert lies.at(1e9) == lies.right
    assert (lies.beyond(1e9), lies.beyond(1.0), lies.beyond(1e-9)) == (1, 0, -1)


@pytest.mark.parametrize("ends", RANGES)
@pytest.mark.parametrize("width", [600.0, 330.0])
def test_ticks_are_apart_and_on_the_axis(ends, width):
    lies = between(*ends, width)
    found = ticks(lies)
    places = [lies.at(tick) for tick in found]
    assert 1.0 in found
    assert len(found) >= 3
    assert not any(lies.beyond(tick) for tick in found)
    assert all(right - left >= 44 for left, right in pairwise(places))


@pytest.mark.parametrize(("last", "most"), [(0.0, 8), (0.003, 8), (1.0, 3), (7.3, 8), (146.0, 8), (999.0, 3)])
def test_round_steps_are_few_and_even(last, most):
    found = round_steps(last, most)
    assert found[0] == 0
    assert len(found) <= most
    assert last - found[-1] <= (found[1] if last else 0)


def test_an_interval_without_end_does_not_squeeze_the_others():
    lies = axis([Interval(1.5, 1.4, 1.6), Interval(1.1, 1e-300, 1e300)], 0.01, (0.0, 600.0))
    assert lies.at(1.5) - lies.at(1.0) > 100
    assert lies.beyond(1e300) == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_can_be_read(material, width):
    drawing = forest(material.analysis, width)
    boxes = [(mark.text, box(mark)) for mark in texts(drawing)]
    for text, (left, top, right, bottom) in boxes:
        assert left >= 0, text
        assert top >= 0, text
        assert right <= drawing.width, text
        assert bottom <= drawing.height, text
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (one, other)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_control_is_on_top_and_every_row_is_there(material, width):
    found = material.analysis
    labels = [mark.text for mark in texts(forest(found, width)) if mark.role == "ink"]
    assert labels[0] == "control"
    assert labels[-1] == "all"
    assert set(labels[1:-1]) == {row.technique for row in found.techniques}


def test_figures_and_verdicts_are_written(material):
    said = [mark.text for mark in texts(forest(material.analysis, 1040.0))]
    amp = next(row for row in material.analysis.techniques if row.technique == "amp").alone.speedup
    assert f"{amp.estimate:.3f}x ({amp.low:.3f} to {amp.high:.3f}) faster" in said
    assert {"skipped", "failed", "not active"} <= set(said)


def test_an_interval_lies_where_its_axis_says(material):
    drawing = forest(material.analysis, 1040.0)
    one, other = (next(mark for mark in texts(drawing) if mark.text == f"{tick}x").at[0] for tick in (1, 1.4))
    amp = next(row for row in material.analysis.techniques if row.technique == "amp").alone.speedup
    circles = [mark.at[0] for mark in drawing.marks if mark.shape == "circle"]
    per_log = (other - one) / math.log(1.4)
    assert max(circles) == pytest.approx(one + per_log * math.log(amp.estimate), abs=0.01)


def test_all_together_far_off_is_an_arrow(material):
    squares = [mark for mark in forest(material.analysis, 1040.0).marks if mark.shape == "square" and mark.text]
    assert [mark.role for mark in squares] == ["control"]
    near = replace(material.analysis, all=replace(material.analysis.all, speedup=Interval(1.5, 1.4, 1.6)))
    squares = [mark for mark in forest(near, 1040.0).marks if mark.shape == "square" and mark.text]
    assert [mark.role for mark in squares] == ["control", "all"]


def test_a_study_without_intervals_is_drawn():
    arms = stories.techniques()
    drawing = forest(analyse(arms, [], StudySettings()), 1040.0)
    assert "1x" in [mark.text for mark in texts(drawing)]


def test_svg_is_well_formed_whatever_the_label_says():
    marks = [Mark("text", (5, 5), "ink", "<b>&\"'"), Mark("circle", (5, 5), "alone", "</title>")]
    root = ElementTree.fromstring(svg(Drawing(10, 10, marks, "<&>"), alone=True))
    assert "<b>&\"'" in [element.text for element in root.iter()]


def test_png_shows_both_series(material):
    drawing = forest(material.analysis, 940.0)
    image = Image.open(io.BytesIO(png(drawing)))
    assert image.size == (round(drawing.width * SCALE), round(drawing.height * SCALE))
    seen = {colour for _, colour in image.getcolors(1 << 20)}
    for role in ("alone", "company", "band", "ink"):
        assert tuple(int(LIGHT[role][n : n + 2], 16) for n in (1, 3, 5)) in seen, role


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_have_contrast(palette):
    for role in ("ink", "muted", "alone", "company", "failed"):
        assert contrast(palette[role], palette["ground"]) >= 4.5, role
        assert contrast(palette[role], palette["band"]) >= 3, role  # no text of that colour stands there
    assert LIGHT.keys() == DARK.keys()


def test_series_differ_in_shape_as_well():
    assert len({SHAPES[role] for role in ("control", "alone", "company")}) == 3
