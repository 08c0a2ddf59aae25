"""The last line of the report: which overrides to use, and what they bring together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framework.study.comparisons import Runs, active, without_runs
from framework.study.findings import Numbers, Recommendation, Row, Sameness, TechniqueRow
from framework.study.model import Arm, Kind, Verdict
from framework.study.wording import times

_MEASURE = "study=arms measures these overrides as one arm"
_SAYS_NOTHING = (Verdict.failed, Verdict.skipped)  # as good as no row in company


@dataclass(frozen=True)
class Found:
    """What the recommendation rests on."""

    arms: Sequence[Arm]
    runs: Runs
    techniques: tuple[TechniqueRow, ...]
    all: Row | None
    named: tuple[Row, ...]


def recommend(found: Found, warning: str | None) -> Recommendation:
    """The techniques judged faster in company, or alone where nothing is known in company.

    Only an arm that ran exactly this combination gives the figure: the winners' own figures were chosen for being high.
    """
    chosen = [row for row in found.techniques if _wins(row)]
    if chosen:
        return _together(found, chosen, warning)
    winners = [row for row in found.named if row.verdict is Verdict.faster and row.speedup]
    if winners:
        return _named(found, winners, warning)
    rows = [*(row for one in found.techniques for row in (one.alone, one.company) if row), *found.named]
    return Recommendation((), (), None, None, (), _warned(_nothing(found, rows), warning))


def _nothing(found: Found, rows: Sequence[Row]) -> str:
    """Why there is nothing to recommend."""
    if all(run.status == "skipped" for past in found.runs.past.values() for run in past):
        return "Nothing has run, so there is nothing to recommend."
    same = [arm.name for arm in found.arms if arm.kind in (Kind.baseline, Kind.control)]
    lacks = [lack for name in same if (lack := without_runs(name, found.runs))]
    if lacks and len(lacks) == len(same):
        return f"No run of the baseline gave a step time, so nothing can be held against it: {lacks[0][1].rstrip('.')}."
    if not rows:
        return "This study holds the baseline against itself alone, so there is nothing to recommend."
    open_ = sum(row.verdict is Verdict.undecided for row in rows)
    hint = f"; {open_} of {len(rows)} comparisons are undecided, so more blocks may tell" if open_ else ""
    return f"Keep the baseline: nothing was shown to be faster here{hint}."


def _wins(row: TechniqueRow) -> bool:
    judge = row.company if row.company and row.company.verdict not in _SAYS_NOTHING else row.alone
    return judge is not None and judge.verdict is Verdict.faster


def _together(found: Found, chosen: Sequence[TechniqueRow], warning: str | None) -> Recommendation:
    names = tuple(row.technique for row in chosen)
    switches = {*names, *(brought for row in chosen for brought in row.brings)}
    overrides, figure, arm = _overrides(found, names), None, None
    if found.all is not None and _all_runs_just(found, switches):
        overrides, figure, arm = _of(found, found.all.arm).overrides, found.all.speedup, found.all.arm
        brings = f"the arm {arm}, which ran exactly this, is {_says(found.all)}"
    elif len(names) == 1 and (alone := chosen[0].alone) is not None and _held_against_baseline(found, alone):
        figure, arm = alone.speedup, alone.arm
        brings = f"alone it is {_says(alone)}; picked by these very data, so a new study may find less"
    else:
        beside = f" ({found.all.arm}, with all switches on, is {_says(found.all)})" if found.all else ""
        brings = f"picked by these very data and not measured together, so there is no figure{beside}; {_MEASURE}"
    cautions = tuple(caution for row in chosen for caution in _differing(row.technique, row.numbers))
    says = f"Use {' '.join(overrides)} ({', '.join(names)} judged faster): {brings}.{_caution(cautions)}"
    return Recommendation(names, overrides, figure, arm, cautions, _warned(says, warning))


def _named(found: Found, winners: Sequence[Row], warning: str | None) -> Recommendation:
    """Of the arms that the user named, the one that is faster by the most, at the least."""
    best = max(winners, key=lambda row: row.speedup.low if row.speedup else 0.0)
    overrides = _of(found, best.arm).overrides
    cautions = _differing(best.arm, best.numbers)
    picked = "; the best of several by these very data, so a new study may find less" if len(found.named) > 1 else ""
    says = f"Use {' '.join(overrides)}: the arm {best.arm} is {_says(best)}{picked}.{_caution(cautions)}"
    return Recommendation((), overrides, best.speedup, best.arm, cautions, _warned(says, warning))


def _overrides(found: Found, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the arms that have the techniques alone, each once; a switch that its arm brings along comes too."""
    alone = {arm.technique: arm for arm in found.arms if arm.kind is Kind.alone}
    return tuple(dict.fromkeys(one for name in names if name in alone for one in alone[name].overrides))


def _all_runs_just(found: Found, switches: set[str]) -> bool:
    """Whether every switch that took effect in the arm `all` is among `switches`."""
    assert found.all is not None
    on = {name for seen in found.runs.switches(found.all.arm) for name, row in seen.items() if row.get("on")}
    return bool(on) and {name for name in on if active(found.runs, found.all.arm, name)} <= switches <= on


def _held_against_baseline(found: Found, row: Row) -> bool:
    return row.verdict is Verdict.faster and _of(found, row.reference).kind is Kind.baseline


def _of(found: Found, name: str) -> Arm:
    return next(arm for arm in found.arms if arm.name == name)


def _differing(name: str, numbers: Numbers | None) -> tuple[str, ...]:
    return (f"{name}: {numbers.reason}",) if numbers and numbers.verdict is Sameness.differs else ()


def _says(row: Row) -> str:
    if row.speedup is None:
        return f"{row.verdict.value}: {row.reason}"
    measured = ", by the time per row" if row.per_row else ""
    return f"{times(row.speedup)} as fast as {row.reference} ({row.verdict.value}{measured})"


def _caution(cautions: Sequence[str]) -> str:
    return f" Training no longer gives the same numbers with {'; '.join(cautions)}." if cautions else ""


def _warned(says: str, warning: str | None) -> str:
    return f"{warning} {says}" if warning else says
