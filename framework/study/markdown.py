"""report.md: the report as Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from framework.study.material import Material, cautions, commands, head, title
from framework.study.plan_tables import control_sentences, plan_table, troubles_table
from framework.study.tables import Cell, Table, result_tables
from framework.study.wording import clean

_SPECIAL = re.compile(r"[\\`*\[\]|#~!]|(?<!\w)_|_(?!\w)")


def markdown(material: Material, plot: str | None) -> str:
    """The whole report; `plot` is the file of the forest plot, None where the reader can open none.

    The warning that the machine is too noisy is the first line.
    """
    found = material.analysis
    lines = [f"**{escaped(found.warning)}**", ""] if found.warning else []
    lines += [f"# {title(material)}", ""]
    lines += [f"- {name}: {escaped(value)}" for name, value in head(material)]
    lines += ["", *(f"**{escaped(one)}**\n" for one in cautions(material))]
    lines += ["## Recommendation", "", escaped(sentence(material)), ""]
    for whole in commands(material):
        lines += [f"    {whole}", ""]
    lines += ["## The control first", "", *(f"{escaped(one)}\n" for one in control_sentences(material))]
    if plot is not None:
        lines += [f"![Speedups with their intervals]({plot})", ""]
    for table in result_tables(material):
        lines += _table(table)
    lines += ["## Method", "", escaped(found.method), ""]
    lines += _table(plan_table(material))
    if (troubles := troubles_table(material)) is not None:
        lines += _table(troubles)
    return "\n".join(lines).rstrip() + "\n"


def sentence(material: Material) -> str:
    """The recommendation, without the warning that stands above it."""
    said = clean(material.analysis.recommendation.sentence)
    return said.removeprefix(clean(material.analysis.warning or "")).strip()


def escaped(text: str | None) -> str:
    """Text of the user, in which Markdown and HTML mean nothing."""
    plain = clean(text or "").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\g<0>", plain)


def _table(table: Table) -> Iterator[str]:
    yield from (f"## {table.title}", "", escaped(table.about), "")
    yield f"| {' | '.join(table.columns)} |"
    yield f"|{' --- |' * len(table.columns)}"
    for row in table.rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _cell(cell: Cell) -> str:
    text = f"**{escaped(cell.text)}**" if cell.style == "verdict" else escaped(cell.text)
    note = "; ".join(escaped(line) for line in cell.note.splitlines())
    return f"{text} ({note})" if note else text
