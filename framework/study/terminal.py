"""What the terminal shows at the end of a study: a compact table, and where the files lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from framework.study import wording
from framework.study.findings import Row
from framework.study.markdown import sentence
from framework.study.material import Material, cautions, commands, title
from framework.study.plan_tables import control_sentences
from framework.study.wording import MEMORY, NOTHING, clean

_STYLES = {"faster": "bold blue", "slower": "bold yellow", "failed": "bold red", "not active": "red"}


def show(material: Material, files: Sequence[Path], console: Console | None = None) -> None:
    """Prints the report, the warning first."""
    screen = console or Console()

    def say(line: str, style: str = "") -> None:
        screen.print(Text(line, style), soft_wrap=True)

    if material.analysis.warning:
        say(clean(material.analysis.warning), "bold red")
    say(title(material), "bold")
    for line in (*cautions(material), *control_sentences(material)):
        say(line)
    if (table := _table(material)).row_count:
        screen.print(table)
    for name, reason in _reasons(material):
        say(f"{name}: {reason}")
    say(sentence(material), "bold")
    for whole in commands(material):
        say(f"  {whole}")
    for path in files:
        say(str(path))


def _table(material: Material) -> Table:
    several = bool(material.analysis.techniques)
    table = Table(box=None, pad_edge=False)
    for column in ("", "alone", "in company") if several else ("", "verdict"):
        table.add_column(column, no_wrap=True)
    for column in ("paid back", "GiB", "numbers"):
        table.add_column(column, no_wrap=True)
    for one in wording.order(material.analysis.techniques):
        table.add_row(clean(one.technique), _judged(one.alone), _judged(one.company), *_costs(one.alone or one.company))
    for row in (material.analysis.all, *material.analysis.named):
        if row is not None:
            company = [NOTHING] if several else []
            table.add_row(clean(row.arm), _judged(row), *company, *_costs(row))
    return table


def _judged(row: Row | None) -> Text:
    """Figure and verdict, and the interval below them."""
    word = wording.judged(row)
    if row is None or row.speedup is None:
        return Text(word, _STYLES.get(word, ""))
    figures = f"{wording.ratio(row.speedup.estimate)} "
    return Text.assemble(figures, (word, _STYLES.get(word, "")), "\n", (wording.span(row.speedup), "dim"))


def _costs(row: Row | None) -> tuple[str, str, str]:
    if row is None:
        return NOTHING, NOTHING, NOTHING
    memory = row.figures.memory or {}
    name = next((name for name in MEMORY if name in memory), None)
    change = wording.change(memory[name]).removesuffix(" GiB") if name else ""
    same = row.numbers.verdict.value if row.numbers else NOTHING
    return wording.paid_back(row.break_even)[0], change or NOTHING, same


def _reasons(material: Material) -> Iterator[tuple[str, str]]:
    """Why a row has no figure, or must be read with care; in company only where that is another reason than alone."""
    for one in material.analysis.techniques:
        alone, company = wording.why(one.alone), wording.why(one.company)
        if alone:
            yield clean(one.technique), alone
        if company and company != alone:
            yield f"{clean(one.technique)} in company", company
    for row in (material.analysis.all, *material.analysis.named):
        if row is not None and row.reason:
            yield clean(row.arm), wording.why(row)
