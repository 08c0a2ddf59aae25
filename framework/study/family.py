"""The family: all claims of a study, whose intervals hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from framework.study.comparisons import INTERACTION, Comparison, Runs, Standing, comparisons, per_row, standing
from framework.study.model import Arm, Kind, RunRecord, StudySettings
from framework.study.statistics import Array, Bounds, bounds, differences, level_of


@dataclass(frozen=True)
class Family:
    """The comparisons of a study, its runs, and what stands in the way of each comparison."""

    arms: Sequence[Arm]
    runs: Runs
    settings: StudySettings
    compared: list[Comparison]
    standings: list[Standing]

    def open(self) -> list[Comparison]:
        """Comparisons on which a claim may be made."""
        return [one for one, why in zip(self.compared, self.standings, strict=True) if why is None]

    def pairs(self) -> dict[str, tuple[Comparison, Comparison]]:
        """By technique, its comparison alone and in company, where both may claim something."""
        return paired(self.open())

    def level(self, weight: int) -> float:
        """The level of one interval of this family."""
        return level_of(weight, total_weight(self.open()) or weight, self.settings.confidence)

    def per_block(self, one: Comparison) -> Array:
        """Log ratio of the step times, slow over fast, by block; of the times per row where `per_row` says so."""
        arms = (*one.fast, *one.slow)
        times = self.runs.table(arms, "step_ms")
        if per_row(one, self.runs):
            times = times * self.runs.table(arms, "steps") / self.runs.table(arms, "rows")
        return differences(np.log(times), range(len(one.fast)), range(len(one.fast), len(arms)))

    def bounds(self, one: Comparison) -> Bounds:
        """The interval of a comparison."""
        return bounds(self.per_block(one), self.level(one.weight))


def paired(compared: Sequence[Comparison]) -> dict[str, tuple[Comparison, Comparison]]:
    """By technique, its comparison alone and in company, where both are there."""
    by_kind = {(one.arm.technique, one.arm.kind): one for one in compared}
    return {
        technique: (one, by_kind[technique, Kind.without])
        for (technique, kind), one in by_kind.items()
        if technique is not None and kind is Kind.alone and (technique, Kind.without) in by_kind
    }


def total_weight(compared: Sequence[Comparison]) -> int:
    """The weights of these comparisons and of the interactions that they allow."""
    return sum(one.weight for one in compared) + INTERACTION * len(paired(compared))


def family(arms: Sequence[Arm], runs: Sequence[RunRecord], settings: StudySettings) -> Family:
    """The comparisons that these arms allow, with the runs so far."""
    counted, compared = Runs(runs), comparisons(arms)
    return Family(arms, counted, settings, compared, [standing(one, counted) for one in compared])
