"""The report of a study, written anew from its plan and its raw runs."""

from __future__ import annotations

import os
from pathlib import Path

from framework.study import board, document
from framework.study.drawing import svg
from framework.study.forest import forest
from framework.study.markdown import markdown
from framework.study.material import gather
from framework.study.page import page
from framework.study.terminal import show

PLOT = "forest.svg"
WIDTH = 940.0  # of the plot where it stands alone, in pixels


def report(folder: Path) -> None:
    """Writes report.json, report.md, report.html, forest.svg and an event file into `folder`, and prints the table.

    Errors: ConfigError where `folder` holds no study.
    """
    material = gather(folder)
    plot = forest(material.analysis, WIDTH)
    files = {
        "report.json": document.text(document.document(material)),
        "report.md": markdown(material, PLOT),
        "report.html": page(material),
        PLOT: svg(plot, alone=True),
    }
    for name, contents in files.items():
        _write(folder / name, contents)
    board.write(folder, plot, markdown(material, None))
    show(material, [folder / name for name in files])


def _write(path: Path, contents: str) -> None:
    """The whole file or none of it."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
