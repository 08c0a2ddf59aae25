"""The tables of the report, for the page and for Markdown alike: what each technique brings, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from framework.study import wording
from framework.study.findings import Figures, Row, TechniqueRow
from framework.study.material import Material
from framework.study.model import Kind
from framework.study.wording import MEMORY, NOTHING, clean, figure

PAID_BACK = (
    "Paid back: after how many steps, counted from the start of training, the whole time is no longer than that of the "
    "reference (break-even)."
)


@dataclass(frozen=True)
class Cell:
    """`note` stands below `text`, smaller, on one or several lines.

    `style`: name, verdict, number, word, code or prose, and where it needs the whole width, full.
    """

    text: str
    note: str = ""
    style: str = "number"


@dataclass(frozen=True)
class Table:
    """The first column names the row."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def result_tables(material: Material) -> Iterator[Table]:
    """What was found, those tables left out that would be empty."""
    if material.analysis.techniques:
        yield _speed(material)
        yield _cost(material)
    if several := [row for row in (material.analysis.all, *material.analysis.named) if row is not None]:
        yield _several(material, several)
    if material.analysis.techniques or several:
        yield _numbers(material, several)


def _speed(material: Material) -> Table:
    columns = ("Technique", "Speedup alone", "Alone", "Speedup in company", "In company", "Alone over company")
    about = (
        "Alone: on top of the baseline, or of what it needs. In company: what all techniques together lose without it. "
        "Speedup is step time without over step time with."
    )
    return Table("Speed", about, columns, tuple(map(_speed_row, wording.order(material.analysis.techniques))))


def _speed_row(row: TechniqueRow) -> tuple[Cell, ...]:
    differs, ratio = wording.differs(row.interaction)
    needs = ""
    if row.brings and row.alone is not None:
        needs = f"with {', '.join(map(clean, row.brings))}, against {clean(row.alone.reference)}"
    return (
        Cell(clean(row.technique), needs, "name"),
        _speedup(row.alone),
        _verdict(row.alone),
        _speedup(row.company),
        _verdict(row.company),
        Cell(differs, ratio, "prose ratio"),
    )


def _verdict(row: Row | None) -> Cell:
    if row is None:
        return Cell(NOTHING, "no such arm in the plan", "prose")
    return Cell(row.verdict.value, wording.why(row), "verdict")


def _speedup(row: Row | None) -> Cell:
    if row is None or row.speedup is None:
        return Cell(NOTHING)
    return Cell(wording.ratio(row.speedup.estimate), wording.span(row.speedup))


def _memory_names(material: Material) -> list[str]:
    """The peaks that the runs tell of, in our order."""
    rows = [one for row in material.analysis.techniques for one in (row.alone, row.company)]
    rows += [*material.analysis.controls, *material.analysis.named, material.analysis.all]
    told = {name for row in rows if row is not None for name in row.figures.memory or {}}
    return [*(name for name in MEMORY if name in told), *sorted(told - MEMORY.keys())]


def _cost(material: Material) -> Table:
    names = _memory_names(material)
    heads = (MEMORY.get(name, clean(name)) for name in names)
    columns = ("Technique", "Step", "Samples/s", "Warm-up", "Paid back alone", "Paid back in company", *heads)
    about = (
        "Medians over the runs of the technique alone. Warm-up: compiling, autotuning and starting workers, and what "
        f"that is above the reference. {PAID_BACK} Peaks are those after the warm-up: what compile and cudnn_benchmark "
        "need only while they compile and tune is not in them."
    )
    step, samples, warmup = _plain(material.analysis.baseline)
    baseline = (Cell("baseline", "", "name"), step, samples, warmup, Cell(NOTHING), Cell(NOTHING))
    peaks = tuple(Cell(wording.gib((material.analysis.baseline.memory or {}).get(name))) for name in names)
    rows = (_cost_row(row, names) for row in wording.order(material.analysis.techniques))
    return Table("Cost", about, columns, ((*baseline, *peaks), *rows))


def _plain(figures: Figures) -> tuple[Cell, Cell, Cell]:
    step, warmup = figures.step_ms, figures.warmup_s
    return (
        Cell(NOTHING if step is None else figure(step, "ms")),
        Cell(figure(figures.samples_per_s)),
        Cell(NOTHING if warmup is None else figure(warmup, "s", 3), "", "number full"),
    )


def _cost_row(row: TechniqueRow, names: list[str]) -> tuple[Cell, ...]:
    own = row.alone.figures if row.alone else Figures()
    step, samples, warmup = _plain(own)
    if own.step_ms is None and row.alone is not None:
        step = Cell(NOTHING, row.alone.verdict.value)
    alone, company = (one.break_even if one else None for one in (row.alone, row.company))
    return (
        Cell(clean(row.technique), "", "name"),
        step,
        samples,
        Cell(warmup.text, wording.seconds_more(alone), "number full"),
        Cell(*wording.paid_back(alone)),
        Cell(*wording.paid_back(company)),
        *(_peak(row, name) for name in names),
    )


def _peak(row: TechniqueRow, name: str) -> Cell:
    alone, company = ((one.figures.memory or {}).get(name) if one else None for one in (row.alone, row.company))
    changes = [f"{where} {wording.change(peak)}" for peak, where in ((alone, "alone"), (company, "in company")) if peak]
    return Cell(wording.gib(alone), "\n".join(changes))


def _numbers(material: Material, several: list[Row]) -> Table:
    first = "Technique" if material.analysis.techniques else "Arm"
    columns = (first, "Class", "Same numbers?", "How that was seen", "Evidence that it was on")
    about = (
        "Exact techniques must give bit-equal losses; close ones compute the same with other rounding; reduced ones "
        f"compute in lower precision by design. {clean(material.analysis.repeats)}"
    )
    rows = [
        (row.technique, row.equivalence or NOTHING, row.numbers, row.evidence, wording.why(row.alone))
        for row in wording.order(material.analysis.techniques)
    ]
    rows += [(row.arm, NOTHING, row.numbers, row.evidence, wording.why(row)) for row in several]
    cells = (
        (
            Cell(clean(name), "", "name"),
            Cell(clean(equivalence), "", "word"),
            Cell(numbers.verdict.value if numbers else "not judged", "", "verdict"),
            Cell(clean(numbers.reason) if numbers else why or NOTHING, "", "prose"),
            Cell(wording.evidence(seen) or "nothing was seen", "", "prose"),
        )
        for name, equivalence, numbers, seen, why in rows
    )
    return Table("Same numbers, and evidence", about, columns, tuple(cells))


def _several(material: Material, rows: list[Row]) -> Table:
    names = _memory_names(material)
    heads = (MEMORY.get(name, clean(name)) for name in names)
    columns = ("Arm", "Speedup", "Verdict", "Step", "Samples/s", "Warm-up", "Paid back", *heads, "Same numbers?")
    title = "All together" if rows[0].kind is Kind.all else "The arms"
    about = (
        "What these arms bring and cost, each held against the arm that is named below it. Speedup is by step time, or "
        f"by time per row where the steps of the two have other numbers of rows. {PAID_BACK}"
    )
    return Table(title, about, columns, tuple(_several_row(row, names) for row in rows))


def _several_row(row: Row, names: list[str]) -> tuple[Cell, ...]:
    step, samples, warmup = _plain(row.figures)
    peaks = ((row.figures.memory or {}).get(name) for name in names)
    return (
        Cell(clean(row.arm), f"against {clean(row.reference)}", "name"),
        _speedup(row),
        _verdict(row),
        step,
        samples,
        Cell(warmup.text, wording.seconds_more(row.break_even)),
        Cell(*wording.paid_back(row.break_even)),
        *(Cell(wording.gib(peak), wording.change(peak)) for peak in peaks),
        Cell(row.numbers.verdict.value if row.numbers else "not judged", "", "verdict"),
    )
