"""Drawings as marks with a role, turned into SVG or PNG. What a role looks like stands in `LIGHT` and `DARK` alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Blue, orange and grey are told apart by colour-blind readers (Okabe and Ito's pair); shapes differ as well.
LIGHT = {
    "ground": "#ffffff",
    "ink": "#1c2024",
    "muted": "#5b6470",
    "line": "#d9dde2",
    "one": "#6b7480",
    "band": "#e9ecef",
    "alone": "#0a6aa8",
    "company": "#b8520b",
    "control": "#4a525c",
    "all": "#1c2024",
    "named": "#0a6aa8",
    "failed": "#a81e4d",
}
DARK = {
    "ground": "#15181c",
    "ink": "#e6e9ed",
    "muted": "#a0a9b4",
    "line": "#343a42",
    "one": "#8d97a3",
    "band": "#262b31",
    "alone": "#62b4ec",
    "company": "#f2a05c",
    "control": "#b9c1ca",
    "all": "#f4f6f8",
    "named": "#62b4ec",
    "failed": "#f286ab",
}
SIZES = {"ink": 13, "muted": 12}  # of text, in pixels
SCALE = 2  # of a PNG
THICK = ("alone", "company", "control", "all", "named", "failed")  # lines of two pixels


@dataclass(frozen=True)
class Mark:
    """`shape`: line or rect (x, y, x, y); circle, diamond, square, cross, up or down (x, y); text (x, y).

    `text` is what a text says, and what a pointer that rests on any other shape is told.
    """

    shape: str
    at: tuple[float, ...]
    role: str
    text: str = ""
    anchor: str = "start"


@dataclass(frozen=True)
class Drawing:
    """Marks in their order; `says` describes the drawing to who cannot see it."""

    width: float
    height: float
    marks: Sequence[Mark]
    says: str


def colours(palette: dict[str, str]) -> str:
    """The palette as CSS properties."""
    return "".join(f"--{role}:{colour};" for role, colour in palette.items())


STYLE = (
    "svg text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;font-variant-numeric:tabular-nums}"
    + "".join(f"svg text.{role}{{font-size:{size}px}}" for role, size in SIZES.items())
    + "".join(f"svg .{role}{{fill:var(--{role})}}svg line.{role}{{stroke:var(--{role})}}" for role in LIGHT)
    + "svg line{stroke-width:1}"
    + "".join(f"svg line.{role}{{stroke-width:2}}" for role in THICK)
    + "svg line.one{stroke-dasharray:4 3}"
    + "svg text{paint-order:stroke;stroke:var(--ground);stroke-width:3px}"
)


def svg(drawing: Drawing, alone: bool = False) -> str:
    """As SVG. `alone`: with its colours, for a file of its own; else the page has them."""
    size = f'viewBox="0 0 {drawing.width:g} {drawing.height:g}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(drawing.says)}</title>']
    if alone:
        dark = f"@media (prefers-color-scheme:dark){{:root{{{colours(DARK)}}}}}"
        parts.append(f"<style>:root{{{colours(LIGHT)}}}{dark}{STYLE}</style>")
        parts.append(f'<rect class="ground" width="{drawing.width:g}" height="{drawing.height:g}"/>')
    return "".join([*parts, *map(_element, drawing.marks), "</svg>"])


def _element(mark: Mark) -> str:
    x, y = mark.at[:2]
    if mark.shape == "text":
        anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
        return f'<text class="{mark.role}" x="{x:.1f}" y="{y + 4:.1f}"{anchor}>{escape(mark.text)}</text>'
    tip = f"<title>{escape(mark.text)}</title>" if mark.text else ""
    if mark.shape == "circle":
        return f'<circle class="{mark.role}" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS:g}">{tip}</circle>'
    if mark.shape == "line":
        ends = 'x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"'.format(*mark.at)
        return f'<line class="{mark.role}" {ends}>{tip}</line>'
    corners = _corners(mark)
    if mark.shape == "cross":
        (a, b, c, d) = corners
        strokes = "".join(_element(Mark("line", (*ends[0], *ends[1]), mark.role)) for ends in ((a, c), (b, d)))
        return f"<g>{tip}{strokes}</g>"
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners)
    return f'<polygon class="{mark.role}" points="{points}">{tip}</polygon>'


_RADIUS = 4.0


def _corners(mark: Mark) -> list[tuple[float, float]]:
    x, y = mark.at[:2]
    if mark.shape == "rect":
        right, bottom = mark.at[2:]
        return [(x, y), (right, y), (right, bottom), (x, bottom)]
    if mark.shape == "diamond":
        r = _RADIUS * 1.3
        return [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
    if mark.shape in ("up", "down"):
        r = _RADIUS * (1.2 if mark.shape == "up" else -1.2)
        return [(x - abs(r), y + r), (x, y - r), (x + abs(r), y + r)]
    r = _RADIUS * 0.9
    return [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]


def png(drawing: Drawing) -> bytes:
    """As PNG in the light palette, `SCALE` pixels for each of the drawing's."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (round(drawing.width * SCALE), round(drawing.height * SCALE)), LIGHT["ground"])
    canvas = ImageDraw.Draw(image)
    fonts = {role: ImageFont.load_default(size * SCALE) for role, size in SIZES.items()}
    for mark in drawing.marks:
        at, colour = [value * SCALE for value in mark.at], LIGHT[mark.role]
        if mark.shape == "text":
            anchor = {"start": "lm", "middle": "mm", "end": "rm"}[mark.anchor]
            canvas.text((at[0], at[1]), mark.text, fill=colour, font=fonts[mark.role], anchor=anchor)
        elif mark.shape == "line":
            canvas.line(at, fill=colour, width=SCALE * (2 if mark.role in THICK else 1))
        elif mark.shape == "circle":
            canvas.circle((at[0], at[1]), _RADIUS * SCALE, fill=colour)
        else:
            canvas.polygon([(x * SCALE, y * SCALE) for x, y in _corners(mark)], fill=colour)
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()
