"""Each run as a dot over time, so that drift can be seen: all arms together, and each arm by itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framework.study.comparisons import step_of
from framework.study.drawing import Drawing, Mark
from framework.study.material import Material
from framework.study.model import Kind, RunRecord
from framework.study.scale import round_steps
from framework.study.wording import clean, figure

LEAST_SPAN = 0.0102  # log ratio to either side: less noise than that is not blown up
USUAL = 0.9  # of the runs lie within the span of the overview; the rest are drawn at its edge
LANE = 18.0  # pixels below the plot, for runs without a figure
PANEL = (212.0, 124.0)  # width and height of one arm's panel
Area = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Dot:
    """A run: when it began, in minutes of measuring with pauses left out; its step time, None where it has none."""

    run: RunRecord
    minute: float
    step_ms: float | None
    away: float  # log ratio to the median of its arm


@dataclass(frozen=True)
class Plot:
    """Where a run lies: `area` in pixels, log ratios up to `span` to either side, minutes up to `last`."""

    area: Area
    span: float
    last: float

    def place_of(self, minute: float) -> float:
        """x of a minute."""
        left, _, right, _ = self.area
        return left + 8 + minute / self.last * (right - left - 16)

    def height_of(self, away: float) -> float:
        """y of a log ratio; those beyond the span lie on its edge."""
        _, top, _, bottom = self.area
        return (top + bottom) / 2 - min(max(away / self.span, -1.0), 1.0) * (bottom - top) / 2


def dots_of(material: Material) -> list[Dot]:
    """The runs that were started, in order."""
    started = [run for run in material.runs if run.status != "skipped"]
    middle = {arm.name: _median([step_of(run) for run in started if run.arm == arm.name]) for arm in material.arms}
    dots, minute = [], 0.0
    for run in started:
        step, usual = step_of(run), middle.get(run.arm)
        dots.append(Dot(run, minute, step, math.log(step / usual) if step and usual else 0.0))
        minute += run.seconds / 60
    return dots


def _median(steps: Sequence[float | None]) -> float | None:
    known = [step for step in steps if step]
    return statistics.median(known) if known else None


def _span(dots: Sequence[Dot], share: float) -> float:
    """The log ratio within which that share of the runs lies, and a little more."""
    away = sorted(abs(dot.away) for dot in dots if dot.step_ms is not None)
    usual = away[math.ceil(share * len(away)) - 1] if away else 0.0
    return max(LEAST_SPAN, 1.25 * usual)


def overview(material: Material, width: float) -> Drawing:
    """All runs, each as its step time against the median of its own arm."""
    dots, height = dots_of(material), 250.0
    roles = {arm.name: "control" if arm.kind in (Kind.baseline, Kind.control) else "alone" for arm in material.arms}
    plot = Plot((58.0, 34.0, width - 12.0, height - 62.0), _span(dots, USUAL), _last(dots))
    marks = [*_legend(plot.area[0], any(dot.step_ms is None for dot in dots)), *_percents(plot), *_minutes(plot)]
    marks += [_mark(dot, plot, roles.get(dot.run.arm, "alone")) for dot in dots]
    says = "Step time of each run against the median of its arm, over the minutes of the study"
    return Drawing(width, height, marks, says)


def _last(dots: Sequence[Dot]) -> float:
    return max((dot.minute for dot in dots), default=0.0) or 1.0


def _legend(x: float, lost: bool) -> Iterator[Mark]:
    """What the shapes mean; `lost`: some run has no figure."""
    entries = [("circle", "alone", "other arms", 0), ("square", "control", "baseline, control", 92)]
    for shape, role, label, right in [*entries, *([("cross", "failed", "no figure", 222)] if lost else [])]:
        yield Mark(shape, (x + right + 6, 12), role)
        yield Mark("text", (x + right + 16, 12), "muted", label)


def _percents(plot: Plot) -> Iterator[Mark]:
    left, _, right, _ = plot.area
    above = round_steps(100 * math.expm1(plot.span), 3)
    below = [-percent for percent in round_steps(-100 * math.expm1(-plot.span), 3)[1:]]
    for percent in (*above, *below):
        y = plot.height_of(math.log1p(percent / 100))
        yield Mark("line", (left, y, right, y), "line" if percent else "one")
        yield Mark("text", (left - 8, y), "muted", f"{percent:+.3g} %" if percent else "0 %", "end")


def _minutes(plot: Plot) -> Iterator[Mark]:
    left, _, right, bottom = plot.area
    for minute in round_steps(plot.last, 8):
        yield Mark("text", (plot.place_of(minute), bottom + LANE + 12), "muted", f"{minute:g}", "middle")
    words = "minutes of measuring, pauses left out"
    yield Mark("text", ((left + right) / 2, bottom + LANE + 32), "muted", words, "middle")


def _mark(dot: Dot, plot: Plot, role: str) -> Mark:
    x, bottom = plot.place_of(dot.minute), plot.area[3]
    said = f"{figure(dot.step_ms)} ms"
    if dot.step_ms is None:
        said = f"{dot.run.status}: {clean(dot.run.reason or 'no step time')}"
    tip = f"{clean(dot.run.arm)}, block {dot.run.block + 1}: {said}"
    if dot.step_ms is None:
        return Mark("cross", (x, bottom + LANE / 2), "failed", tip)
    shape = "square" if role == "control" else "circle"
    if abs(dot.away) > plot.span:
        shape = "up" if dot.away > 0 else "down"
    return Mark(shape, (x, plot.height_of(dot.away)), role, tip)


def panels(material: Material) -> list[tuple[str, Drawing]]:
    """A small drawing for each arm that ran, with its name. None spans less than the overview does."""
    dots = dots_of(material)
    names = [arm.name for arm in material.arms if any(dot.run.arm == arm.name for dot in dots)]
    return [(clean(name), _panel(name, dots)) for name in names]


def _panel(name: str, dots: Sequence[Dot]) -> Drawing:
    """One arm, over the minutes of all."""
    (width, height), own = PANEL, [dot for dot in dots if dot.run.arm == name]
    span, middle = max(_span(dots, USUAL), _span(own, 1.0)), _median([dot.step_ms for dot in own])
    plot = Plot((56.0, 10.0, width - 4.0, height - 22.0), span, _last(dots))
    left, top, right, _ = plot.area
    marks = []
    for away in (span, 0.0, -span):
        y = plot.height_of(away)
        marks.append(Mark("line", (left, y, right, y), "line" if away else "one"))
        if middle is not None:
            marks.append(Mark("text", (left - 6, y), "muted", figure(middle * math.exp(away)), "end"))
    if middle is None:
        marks.append(Mark("text", ((left + right) / 2, top + 24), "muted", "no step time", "middle"))
    marks += [_mark(dot, plot, "alone") for dot in own]
    steps = ", ".join(f"{figure(dot.step_ms)} ms" if dot.step_ms else dot.run.status for dot in own)
    return Drawing(width, height, marks, f"{clean(name)}, run by run: {steps}")
