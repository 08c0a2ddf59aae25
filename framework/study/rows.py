"""The rows of the report: each comparison judged, with its costs and its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from framework.study.comparisons import INTERACTION, Comparison, Standing, active, fault, per_row, switched
from framework.study.costs import break_even, figures, ratio
from framework.study.equivalence import Histories, Trained, same_numbers
from framework.study.family import Family
from framework.study.findings import Interaction, Numbers, Row, TechniqueRow
from framework.study.model import Arm, Kind, Verdict
from framework.study.statistics import MOST_BLOCKS, Bounds, bounds, level_of, more_blocks, verdicts

_STRICTNESS = ("exact", "close", "reduced")
_TRAINED = (Kind.alone, Kind.all, Kind.named)  # arms whose losses are judged


def row(study: Family, one: Comparison, standing: Standing) -> Row:
    """A comparison with its verdict; where its standing forbids one, with that and no interval."""
    found, level, least = study.bounds(one), study.level(one.weight), study.settings.smallest_effect
    verdict: Verdict = standing[0] if standing else verdicts(found, least).item()
    more = more_blocks(found, level, least) if standing is None and verdict is Verdict.undecided else None
    reason = standing[1] if standing else "; ".join(_remarks(study, one, found, verdict, more)) or None
    return Row(
        arm=one.judged,
        reference=one.slow[0],
        kind=one.arm.kind,
        technique=one.arm.technique,
        speedup=ratio(found) if standing is None else None,
        verdict=verdict,
        reason=reason,
        more_blocks=more,
        blocks=int(found.pairs),
        level=level,
        figures=figures(one.judged, one.slow, study.runs),
        break_even=break_even(one, study.runs, level) if standing is None else None,
        numbers=_numbers(study, one) if standing is None and one.arm.kind in _TRAINED else None,
        evidence=_evidence(study, one),
        per_row=per_row(one, study.runs),
    )


def _remarks(study: Family, one: Comparison, found: Bounds, verdict: Verdict, more: int | None) -> Iterator[str]:
    """What must be known to read the interval."""
    pairs = int(found.pairs)
    if pairs < 2:
        yield f"{pairs} block{'' if pairs == 1 else 's'} with both runs, and two are the least"
    elif verdict is Verdict.undecided:
        some = f"about {more} more block{'' if more == 1 else 's'} would decide"
        yield some if more else f"more than {MOST_BLOCKS} blocks would be needed"
    past = [run for arm in (*one.fast, *one.slow) for run in study.runs.past.get(arm, [])]
    lost = [run for run in past if run is not study.runs.counted.get(run.arm, {}).get(run.block)]
    if lost:
        yield f"{len(lost)} of {len(past)} runs do not count: {lost[-1].arm}: {fault(lost[-1])}"
    if one.arm.kind in (Kind.all, Kind.named):
        silent = [name for name in switched(study.runs, one) if not active(study.runs, one.judged, name)]
        if silent:
            yield f"no sign of {', '.join(silent)}"
    if per_row(one, study.runs):
        fast, slow = (study.runs.rows_a_step(side) for side in (one.fast, one.slow))
        yield f"its steps have {fast:g} rows against {slow:g}, so the time per row is compared"


def _evidence(study: Family, one: Comparison) -> dict[str, Any]:
    """What was seen of the technique in the first run that counts; of all that were added, where they are several."""
    seen = next(iter(study.runs.switches(one.judged)), {})
    if one.arm.technique is not None:
        return dict(seen.get(one.arm.technique, {}).get("evidence") or {})
    return {name: seen[name].get("evidence") or {} for name in switched(study.runs, one) if name in seen}


def _numbers(study: Family, one: Comparison) -> Numbers:
    classes = [one.arm.technique] if one.arm.technique else switched(study.runs, one)
    rules = [_class_of(study, name) or "reduced" for name in classes]
    rule = max(rules, key=_STRICTNESS.index, default="reduced")
    trained = Trained(losses(study, one.judged), tuple(losses(study, arm) for arm in one.slow), baselines(study))
    judged = sum(other.arm.kind in _TRAINED for other in study.open())
    return same_numbers(trained, rule, study.settings.confidence, level_of(1, judged, study.settings.confidence))


def losses(study: Family, arm: str) -> Histories:
    """The losses of an arm, by block."""
    return {block: run.summary.get("losses", []) for block, run in sorted(study.runs.counted.get(arm, {}).items())}


def baselines(study: Family) -> tuple[Histories, ...]:
    """The losses of baseline and control."""
    return tuple(losses(study, arm.name) for arm in study.arms if arm.kind in (Kind.baseline, Kind.control))


def _class_of(study: Family, technique: str) -> str | None:
    """The class of equivalence that the runs tell."""
    for arm in study.arms:
        for switches in study.runs.switches(arm.name):
            if technique in switches:
                return str(switches[technique]["equivalence"])
    return None


def technique_row(study: Family, technique: str, rows: Sequence[Row]) -> TechniqueRow:
    """What one technique is worth alone and in company."""
    own = {one.kind: one for one in rows if one.technique == technique}
    alone, company = own.get(Kind.alone), own.get(Kind.without)
    shown = alone or company
    return TechniqueRow(
        technique=technique,
        equivalence=_class_of(study, technique),
        brings=next((arm.brings for arm in study.arms if _is_alone(arm, technique)), ()),
        alone=alone,
        company=company,
        interaction=_interaction(study, technique),
        numbers=alone.numbers if alone else None,
        evidence=shown.evidence if shown else {},
    )


def _is_alone(arm: Arm, technique: str) -> bool:
    return arm.kind is Kind.alone and arm.technique == technique


def _interaction(study: Family, technique: str) -> Interaction | None:
    if technique not in study.pairs():
        return None
    alone, company = study.pairs()[technique]
    found = bounds(study.per_block(alone) - study.per_block(company), study.level(INTERACTION))
    interval = ratio(found)
    return Interaction(interval, bool(found.low > 0 or found.high < 0)) if interval else None
