"""What a study finds: plain data, all that the report shows. `dataclasses.asdict` turns it into JSON; no NaN in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from framework.study.model import Interval, Kind, Verdict


class Sameness(StrEnum):
    """Whether training still gives the same numbers."""

    same = "same"
    differs = "differs"
    undecided = "undecided"


@dataclass(frozen=True)
class Numbers:
    """Whether training still gives the same numbers, and how that was seen."""

    verdict: Sameness
    reason: str


@dataclass(frozen=True)
class Peak:
    """Peak memory: median over runs, and how far above that of the reference (None where there is none)."""

    gib: float
    change_gib: float | None


@dataclass(frozen=True)
class Figures:
    """Medians over the runs of one arm. `memory` is by the names of the summary, as peak_allocated_gib."""

    step_ms: float | None = None
    samples_per_s: float | None = None
    warmup_s: float | None = None
    memory: dict[str, Peak] | None = None


@dataclass(frozen=True)
class BreakEven:
    """After how many steps, counted from the start of training, an extra warm-up is paid back.

    Either `word`, which is "at once", "never" or "not known", or `steps`; the other is None.
    """

    word: str | None
    steps: Interval | None
    extra_warmup_s: Interval | None


@dataclass(frozen=True)
class Row:
    """One comparison. `arm` is the one whose figures stand here and whose speed is judged, against `reference`.

    In company `arm` has the technique and `reference` is the same without it. `reason` is None where the interval says
    it all; `more_blocks` is about how many more would decide, where it is undecided and that is known.
    """

    arm: str
    reference: str
    kind: Kind
    technique: str | None
    speedup: Interval | None
    verdict: Verdict
    reason: str | None
    more_blocks: int | None
    blocks: int  # that have both runs
    level: float  # confidence of this interval by itself
    figures: Figures
    break_even: BreakEven | None
    numbers: Numbers | None  # None for the control and in company
    evidence: dict[str, Any]
    per_row: bool  # the speedup is that of the time per row, since the steps of the two have other numbers of rows


@dataclass(frozen=True)
class Interaction:
    """Speedup alone over speedup in company. `differs`: the interval excludes 1."""

    ratio: Interval
    differs: bool


@dataclass(frozen=True)
class TechniqueRow:
    """What one technique is worth. `alone` or `company` is None where the plan has no such arm."""

    technique: str
    equivalence: str | None  # exact, close or reduced; None where no run told
    brings: tuple[str, ...]
    alone: Row | None
    company: Row | None
    interaction: Interaction | None
    numbers: Numbers | None
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Recommendation:
    """The overrides to use. `speedup` is None unless the arm `measured_by` ran exactly this combination."""

    techniques: tuple[str, ...]
    overrides: tuple[str, ...]
    speedup: Interval | None
    measured_by: str | None
    cautions: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Analysis:
    """All that is concluded from a study. `warning` is what the report must say first, None where there is nothing."""

    warning: str | None
    baseline: Figures
    repeats: str  # whether the baseline's own repeats give the same numbers
    controls: tuple[Row, ...]
    techniques: tuple[TechniqueRow, ...]
    all: Row | None
    named: tuple[Row, ...]
    recommendation: Recommendation
    method: str
    family: int  # claims that hold together
    confidence: float
    smallest_effect: float
    blocks: int
