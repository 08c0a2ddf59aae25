"""From runs to conclusions: every comparison judged, its costs, and what to use."""

from __future__ import annotations

from collections.abc import Sequence

from framework.study.comparisons import INTERACTION, POOLED, SINGLE
from framework.study.costs import figures
from framework.study.equivalence import repeats
from framework.study.family import Family, family
from framework.study.findings import Analysis, Figures, Row
from framework.study.model import Arm, Kind, RunRecord, StudySettings, Verdict
from framework.study.recommendation import Found, recommend
from framework.study.rows import baselines, row, technique_row
from framework.study.statistics import narrow
from framework.study.wording import times


def narrow_enough(arms: Sequence[Arm], runs: Sequence[RunRecord], settings: StudySettings) -> bool:
    """Whether every interval is as narrow as `settings.half_width` asks. Looks at widths only, never at effects."""
    study, width = family(arms, runs, settings), settings.half_width
    return width is None or all(narrow(study.bounds(one), width) for one in study.open())


def analyse(arms: Sequence[Arm], runs: Sequence[RunRecord], settings: StudySettings) -> Analysis:
    """All conclusions of a study, as far as it got. The same runs give the same conclusions, in whatever order."""
    study = family(arms, runs, settings)
    rows = [row(study, one, why) for one, why in zip(study.compared, study.standings, strict=True)]
    names = dict.fromkeys(arm.technique for arm in arms if arm.technique is not None)
    techniques = tuple(technique_row(study, name, rows) for name in names)
    together = next((one for one in rows if one.kind is Kind.all), None)
    named = tuple(one for one in rows if one.kind is Kind.named)
    repeated = [one for one in rows if _repeats_baseline(arms, one)]
    other = tuple(one for one in named if one not in repeated)
    warning = _warning(repeated)
    return Analysis(
        warning=warning,
        baseline=_baseline(study),
        repeats=repeats(baselines(study)),
        controls=tuple(one for one in rows if one.kind is Kind.control),
        techniques=techniques,
        all=together,
        named=named,
        recommendation=recommend(Found(arms, study.runs, techniques, together, other), warning),
        method=_method(study),
        family=len(study.open()) + len(study.pairs()),
        confidence=settings.confidence,
        smallest_effect=settings.smallest_effect,
        blocks=study.runs.blocks,
    )


def _baseline(study: Family) -> Figures:
    name = next((arm.name for arm in study.arms if arm.kind is Kind.baseline), None)
    return figures(name, (), study.runs) if name is not None else Figures()


def _repeats_baseline(arms: Sequence[Arm], one: Row) -> bool:
    """Whether the row holds the baseline against itself, under whatever name."""
    overrides = {arm.name: arm.overrides for arm in arms}
    baseline = [arm for arm in arms if arm.kind is Kind.baseline and arm.name == one.reference]
    return bool(baseline) and overrides[one.arm] == baseline[0].overrides


def _warning(repeated: Sequence[Row]) -> str | None:
    """What the report says first, where the baseline was found to differ from itself."""
    for one in repeated:
        if one.verdict in (Verdict.faster, Verdict.slower) and one.speedup is not None:
            return (
                f"This machine is too noisy for the claims below: {one.arm}, the baseline under another name, "
                f"was judged {one.verdict.value}, {times(one.speedup)}."
            )
    return None


def _method(study: Family) -> str:
    """How the figures were made, for the reader who wants to make them again."""
    settings, claims, both = study.settings, len(study.open()), len(study.pairs())
    confidence, least = f"{100 * settings.confidence:g} %", f"{100 * settings.smallest_effect:g} %"
    levels = ", ".join(
        f"{100 * study.level(weight):.4g} % {what}"
        for weight, what in (
            (SINGLE, "where single runs are compared"),
            (POOLED, "against the mean of baseline and control, and for the control"),
            (INTERACTION, "for whether a technique is worth the same alone and in company"),
        )
    )
    return (
        "The unit is the run. Runs are compared within their block, as log ratios of the median step time (divided "
        "by the rows of a step where those differ), by the paired t interval (scipy.stats.ttest_1samp), which lets "
        "every arm have its own noise. Baseline and control are one configuration, and their mean is the reference of "
        "every arm that is held against the baseline. "
        f"The {claims + both} claims ({claims} verdicts and {both} interactions) hold together with {confidence}, by "
        f"Bonferroni with weights fixed beforehand; each interval by itself has {levels}. "
        f"Faster or slower: the interval excludes 1 and the estimate is at least {least} away from it. "
        "No effect: the whole interval is nearer to 1 than that. "
        "Break-even: the steps of the warm-up, and the extra seconds of the warm-up over those saved in a mean step, "
        "the extremes of two such intervals divided. "
        "Same numbers: bit-equal losses, or two one-sided t tests on the final loss against the baseline's own spread "
        "from seed to seed and from run to run."
    )
