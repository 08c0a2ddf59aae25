"""The forest plot: speedups alone and in company with their intervals, the control on top."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framework.study import wording
from framework.study.drawing import Drawing, Mark
from framework.study.findings import Analysis, Row
from framework.study.model import Interval
from framework.study.scale import Axis, axis, ticks
from framework.study.wording import clean

NARROW = 600  # pixels: below that, a row's text stands above its interval
SHAPES = {"control": "square", "alone": "circle", "company": "diamond", "all": "square", "named": "circle"}
FAR = 1.5  # times the log ratio of the farthest technique: there the axis may end before all together
LEGEND = {"control": "control", "alone": "alone", "company": "in company", "all": "all together", "named": "named arm"}


@dataclass(frozen=True)
class Group:
    """What stands under one label: rows with the role in which they are drawn."""

    label: str
    rows: tuple[tuple[str, Row], ...]


@dataclass(frozen=True)
class Layout:
    """Where things stand, in pixels. `text` is where a row's figures end or begin."""

    width: float
    axis: Axis
    narrow: bool
    top: float = 62.0  # below the legend and the upper tick labels

    @property
    def row(self) -> float:
        """Height of one row."""
        return 33.0 if self.narrow else 21.0

    def height(self, groups: Sequence[Group]) -> float:
        """Of the rows of all groups."""
        return sum(self.of(group) for group in groups)

    def of(self, group: Group) -> float:
        """Height of a group, its gap and its own line of text included."""
        return len(group.rows) * self.row + 12


def groups_of(found: Analysis) -> list[Group]:
    """The control, the techniques, all together, and the arms that the user named."""
    groups = [Group(clean(row.arm), (("control", row),)) for row in found.controls]
    for one in wording.order(found.techniques):
        rows = [(role, row) for role, row in (("alone", one.alone), ("company", one.company)) if row is not None]
        groups.append(Group(clean(one.technique), tuple(rows)))
    if found.all is not None:
        groups.append(Group(clean(found.all.arm), (("all", found.all),)))
    return [*groups, *(Group(clean(row.arm), (("named", row),)) for row in found.named)]


def forest(found: Analysis, width: float) -> Drawing:
    """The plot for a page of that width in pixels."""
    groups, narrow = groups_of(found), width < NARROW
    pixels = (10.0, width - 10.0) if narrow else (168.0, width - 300.0)
    lies = axis(_kept(groups), found.smallest_effect, pixels)
    layout = Layout(width, lies, narrow)
    bottom = layout.top + layout.height(groups)
    marks = [*_legend(groups, layout), *_frame(layout, bottom, found.smallest_effect)]
    y = layout.top
    for group in groups:
        marks += _group(group, layout, y)
        y += layout.of(group)
    says = "Speedups with their intervals: " + "; ".join(
        f"{group.label}: " + ", ".join(f"{LEGEND[role]} {_figures(row)}" for role, row in group.rows)
        for group in groups
    )
    return Drawing(width, bottom + 46, marks, says)


def _kept(groups: Sequence[Group]) -> list[Interval]:
    """The intervals that the axis is made for: all together may lie so far off that it would squeeze the others."""
    known = [(role, row.speedup) for group in groups for role, row in group.rows if row.speedup is not None]
    farthest = max([0.0, *(abs(math.log(one.estimate)) for role, one in known if role != "all")])
    return [one for role, one in known if role != "all" or abs(math.log(one.estimate)) <= FAR * farthest]


def _legend(groups: Sequence[Group], layout: Layout) -> Iterator[Mark]:
    roles = {role: None for group in groups for role, _ in group.rows}
    x = layout.axis.left
    for role in roles:
        yield Mark(SHAPES[role], (x + 6, 14), role)
        yield Mark("text", (x + 16, 14), "muted", LEGEND[role])
        x += (26 + 6.4 * len(LEGEND[role])) if layout.narrow else (34 + 7.2 * len(LEGEND[role]))


def _frame(layout: Layout, bottom: float, least: float) -> Iterator[Mark]:
    """Band, grid, the line of 1x, and what the directions mean."""
    lies, top = layout.axis, layout.top
    yield Mark("rect", (lies.at(1 / (1 + least)), top, lies.at(1 + least), bottom), "band", f"within {least:.3g} of 1x")
    for tick in ticks(lies):
        x = lies.at(tick)
        yield Mark("line", (x, top, x, bottom), "one" if tick == 1 else "line")
        for y in (top - 12, bottom + 12):
            yield Mark("text", (x, y), "muted", f"{tick:.4g}x", "middle")
    yield Mark("text", (lies.left, bottom + 34), "muted", "slower")
    yield Mark("text", (lies.right, bottom + 34), "muted", "faster", "end")
    percent = f"band: less than {100 * least:g} %"
    yield Mark("text", ((lies.left + lies.right) / 2, bottom + 34), "muted", percent, "middle")


def _group(group: Group, layout: Layout, y: float) -> Iterator[Mark]:
    left = 0.0 if layout.narrow else 8.0
    yield Mark("line", (left, y, layout.width - left, y), "line")
    for n, (role, row) in enumerate(group.rows):
        start = y + 6 + n * layout.row
        words = start + (8 if layout.narrow else layout.row / 2)
        middle = start + (23 if layout.narrow else layout.row / 2)
        if n == 0:
            yield Mark("text", (layout.axis.left if layout.narrow else 12, words), "ink", group.label)
        yield from _interval(role, row, layout.axis, middle)
        if layout.narrow:
            yield Mark("text", (layout.width - 10, words), "muted", _short(row), "end")
        else:
            yield Mark("text", (layout.axis.right + 18, words), "muted", _figures(row))


def _interval(role: str, row: Row, lies: Axis, y: float) -> Iterator[Mark]:
    if row.speedup is None:
        return
    tip = f"{clean(row.arm)} against {clean(row.reference)}: {_figures(row)}"
    low, high = lies.at(row.speedup.low), lies.at(row.speedup.high)
    off = lies.beyond(row.speedup.estimate)
    shaft = 18 * off if low == high else 0  # of an arrow, where all of the interval is off the axis
    yield Mark("line", (low - max(shaft, 0), y, high - min(shaft, 0), y), role, tip)
    for end, x in ((row.speedup.low, low), (row.speedup.high, high)):
        inward = -5 * lies.beyond(end)  # an arrow where it goes on, else a cap
        yield Mark("line", (x, y, x + inward, y - 4), role)
        yield Mark("line", (x, y, x + inward, y + 4), role)
    if not off:
        yield Mark(SHAPES[role], (lies.at(row.speedup.estimate), y), role, tip)


def _figures(row: Row) -> str:
    return row.verdict.value if row.speedup is None else f"{wording.times(row.speedup)} {row.verdict.value}"


def _short(row: Row) -> str:
    return row.verdict.value if row.speedup is None else f"{wording.ratio(row.speedup.estimate)} {row.verdict.value}"
