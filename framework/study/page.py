"""report.html: one page that needs nothing else, light or dark as the reader's system is, on any width."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from framework.study.dots import overview, panels
from framework.study.drawing import Drawing, svg
from framework.study.forest import forest
from framework.study.markdown import sentence
from framework.study.material import Material, cautions, commands, head, title
from framework.study.plan_tables import control_sentences, plan_table, troubles_table
from framework.study.style import SYMBOLS, style
from framework.study.tables import Cell, Table, result_tables
from framework.study.wording import clean

WIDE, NARROW = 1040.0, 350.0  # widths in pixels for which the plots are drawn
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # text of the user can load and run nothing


def page(material: Material) -> str:
    """The whole page."""
    name = escape(title(material))
    lines = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{name}</title><style>{style()}</style></head><body><main>",
        *_top(material),
        *_results(material),
        *_runs(material),
        *_making(material),
        "</main></body></html>",
    ]
    return "\n".join(lines) + "\n"


def _top(material: Material) -> Iterator[str]:
    """Warning, title and facts, recommendation, control."""
    if material.analysis.warning:
        warning = escape(clean(material.analysis.warning))
        yield f'<p class="warning" role="alert"><b>Warning.</b> {warning}</p>'
    yield f'<header><p class="over">Gearshift study</p><h1>{escape(title(material))}</h1><dl class="facts">'
    for name, value in head(material):
        yield f'<div class="{name.lower()}"><dt>{name}</dt><dd>{escape(value)}</dd></div>'
    yield "</dl></header>"
    for caution in cautions(material):
        yield f'<p class="caution"><b>Note.</b> {escape(caution)}</p>'
    yield f'<section class="advice"><h2>Recommendation</h2><p>{escape(sentence(material))}</p>'
    for whole in commands(material):
        yield f"<pre><code>{escape(whole)}</code></pre>"
    yield "</section><section><h2>The control first</h2>"
    yield from (f"<p>{escape(one)}</p>" for one in control_sentences(material))
    yield "</section>"


def _results(material: Material) -> Iterator[str]:
    confidence = f"{100 * material.analysis.confidence:g} %"
    least = f"{100 * material.analysis.smallest_effect:g} %"
    yield "<section><h2>Speedups</h2>"
    yield (
        f"<p>Intervals hold together with {confidence}. The band is the smallest effect that matters, {least} to "
        "either side of 1x. An interval that ends in an arrow goes on.</p>"
    )
    yield _figure(forest(material.analysis, WIDE), forest(material.analysis, NARROW))
    yield "</section>"
    for table in result_tables(material):
        yield from _table(table)


def _runs(material: Material) -> Iterator[str]:
    yield "<section><h2>Each run over time</h2>"
    small = panels(material)
    if not small:
        yield "<p>No run was started.</p></section>"
        return
    yield (
        "<p>Each dot is one run. Drift of the machine would show as a slope or a step that all arms share. First each "
        "run against the median of its arm, triangles lying further out; then step time in ms, arm by arm. No panel "
        "spans a smaller ratio than that.</p>"
    )
    yield _figure(overview(material, WIDE), overview(material, NARROW))
    yield '<div class="panels">'
    for name, drawing in small:
        yield f"<figure><figcaption>{escape(name)}</figcaption>{svg(drawing)}</figure>"
    yield "</div></section>"


def _making(material: Material) -> Iterator[str]:
    yield f"<section><h2>Method</h2><p>{escape(clean(material.analysis.method))}</p></section>"
    yield from _table(plan_table(material), folded=True)
    if (troubles := troubles_table(material)) is not None:
        yield from _table(troubles)
    yield "<footer>Written from the raw runs by <code>python -m framework.study DIR</code>. report.json beside this "
    yield "page holds every run, so that each figure can be computed again.</footer>"


def _figure(wide: Drawing, narrow: Drawing) -> str:
    return f'<figure class="wide">{svg(wide)}</figure><figure class="narrow">{svg(narrow)}</figure>'


def _table(table: Table, folded: bool = False) -> Iterator[str]:
    """A section; `folded`: the reader opens it."""
    title = f"<h2>{escape(table.title)}</h2>"
    yield f"<section>{f'<details><summary>{title}</summary>' if folded else title}<p>{escape(table.about)}</p>"
    yield '<div class="scroll" tabindex="0"><table><thead><tr>'
    styles = [cell.style for cell in table.rows[0]] if table.rows else []
    for column, kind in zip(table.columns, styles, strict=True):
        yield f'<th scope="col" class="{kind}">{escape(column)}</th>'
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = (_cell(cell, column) for cell, column in zip(row, table.columns, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield f"</tbody></table></div>{'</details>' if folded else ''}</section>"


def _cell(cell: Cell, column: str) -> str:
    text = escape(cell.text)
    if cell.style == "verdict":
        symbol = f'<i aria-hidden="true">{SYMBOLS[cell.text]}</i>' if cell.text in SYMBOLS else ""
        text = f'<span class="verdict {cell.text.replace(" ", "-")}">{symbol}{text}</span>'
    elif cell.style == "code":
        text = f"<code>{text}</code>"
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    if cell.style == "name":
        return f'<th scope="row" class="name">{text}{note}</th>'
    return f'<td class="{cell.style}" data-label="{escape(column)}"><div>{text}{note}</div></td>'
