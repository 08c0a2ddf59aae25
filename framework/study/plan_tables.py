"""The tables of how a study was made: control, plan and settings, and the runs that gave no figure."""

from __future__ import annotations

from collections import Counter

from framework.study import wording
from framework.study.material import Material, troubled
from framework.study.model import Arm
from framework.study.tables import Cell, Table
from framework.study.wording import NOTHING, clean, shell


def control_sentences(material: Material) -> list[str]:
    """What the baseline against itself showed."""
    said = [
        f"{clean(row.arm)}, the baseline under another name, against {clean(row.reference)}: "
        + f"{wording.times(row.speedup)}, {row.verdict.value}"
        + (f" ({why})." if (why := wording.why(row)) else ".")
        for row in material.analysis.controls
    ]
    return [*said, clean(material.analysis.repeats)] if said else ["The plan has no control."]


def plan_table(material: Material) -> Table:
    """The arms with their overrides and how their runs ended."""
    ends: dict[str, Counter[str]] = {arm.name: Counter() for arm in material.arms}
    for run in material.runs:
        ends.setdefault(run.arm, Counter())[run.status] += 1
    settings = material.settings
    blocks = f"{settings.blocks} blocks"
    if settings.half_width is not None:
        narrow = f"until every interval reaches no further than {settings.half_width:g} (log ratio)"
        blocks = f"{settings.blocks} to {settings.max_blocks} blocks, {narrow}"
    about = (
        f"{len(material.arms)} arms, {blocks}. Each block runs every arm once, in a random order drawn from seed "
        f"{settings.seed}; its arms share a training seed, and each block has another. "
        f"Compile cache: {clean(settings.compile_cache)}."
    )
    rows = tuple(_arm(arm, ends[arm.name]) for arm in material.arms)
    return Table("Plan", about, ("Arm", "Part", "Held against", "Overrides", "Runs"), rows)


def _arm(arm: Arm, ends: Counter[str]) -> tuple[Cell, ...]:
    return (
        Cell(clean(arm.name), "", "name"),
        Cell(arm.kind.value, "", "word"),
        Cell(clean(arm.reference or NOTHING), "", "word"),
        Cell(clean(shell(arm.overrides)) or NOTHING, "", "code"),
        Cell(", ".join(f"{count} {clean(end)}" for end, count in sorted(ends.items())) or "none", "", "prose"),
    )


def troubles_table(material: Material) -> Table | None:
    """Runs that failed, were skipped or interrupted, or have no step time; None where there is no such run."""
    rows = tuple(
        (
            Cell(clean(run.arm), "", "name"),
            Cell(str(run.block + 1) if run.position >= 0 else NOTHING, "", "word"),
            Cell(clean(run.status if run.status != "ok" else "no step time"), "", "verdict"),
            Cell(clean(run.reason or run.summary.get("missing", {}).get("step_ms") or NOTHING), "", "prose"),
        )
        for run in troubled(material)
    )
    about = "They do not count; a comparison leaves out the blocks in which it lacks a run."
    return Table("Runs without figures", about, ("Arm", "Block", "End", "Reason"), rows) if rows else None
