"""What a study is made of: arms, runs, and what is concluded from them. Plain data, as it stands in report.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from framework.mistakes import ConfigError

LEAST_FIRST_BLOCKS = 5  # simulated: with fewer, a study that stops by its widths claims too much


class Kind(StrEnum):
    """The part that an arm plays."""

    baseline = "baseline"
    control = "control"  # the baseline again, under another name
    needs = "needs"  # what a technique brings along, the fair reference for it
    alone = "alone"  # one technique on top of its reference
    all = "all"  # every technique that perf=all has, or those that the user named
    without = "without"  # the same but one
    named = "named"  # an arm that the user named


class Verdict(StrEnum):
    """What a comparison shows. `no_effect`: the interval lies inside the smallest effect that matters."""

    faster = "faster"
    slower = "slower"
    no_effect = "no effect"
    undecided = "undecided"
    not_active = "not active"
    skipped = "skipped"
    failed = "failed"


@dataclass(frozen=True)
class Arm:
    """One configuration. `reference` is the name of the arm that it is held against; None for the baseline.

    For `without`, the reference has the technique: it is `all`, or `all` without those that need the technique. The
    technique's worth in company is the ratio of the two.
    """

    name: str
    kind: Kind
    overrides: tuple[str, ...]
    reference: str | None = None
    technique: str | None = None
    brings: tuple[str, ...] = ()  # switches that come along because the technique needs them


@dataclass(frozen=True)
class RunRecord:
    """One run of one arm in one block. `summary` is the run's summary.json, empty where there is none."""

    arm: str
    block: int
    position: int  # in the order in which the study ran, from 0
    status: str  # ok, failed, skipped or interrupted
    reason: str | None  # first line of the error, where it is not ok
    started: float  # seconds since the epoch
    seconds: float  # wall time of the whole process
    seed: int
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudySettings:
    """How a study is planned and judged."""

    smallest_effect: float = 0.01  # as a ratio: 0.01 is 1 %
    confidence: float = 0.95
    blocks: int = 5
    half_width: float | None = None  # add blocks until every interval is that narrow (log ratio), at most max_blocks
    max_blocks: int = 20
    compile_cache: str = "cold"
    seed: int = 0


def refuse(settings: StudySettings) -> None:
    """Errors: ConfigError where nothing could be concluded in the end, or where a half width comes too early.

    Few blocks look narrow by chance, and most often where they also look like an effect.
    """
    blocks, most, width = settings.blocks, settings.max_blocks, settings.half_width
    faults = [
        (blocks < 1, f"blocks={blocks} is too small: use 2 or more, since a single one shows no noise"),
        (not 0 < settings.confidence < 1, f"confidence={settings.confidence:g} must lie between 0 and 1, such as 0.95"),
        (
            not 0 <= settings.smallest_effect < 1,
            f"smallest_effect={settings.smallest_effect:g} must lie from 0 to below 1, such as 0.01 for 1 %",
        ),
    ]
    if width is not None:
        early = f"half_width={width:g} needs study.blocks={LEAST_FIRST_BLOCKS} or more, not {blocks}"
        faults += [
            (not width > 0, f"half_width={width:g} must be above 0, such as 0.01"),
            (blocks < LEAST_FIRST_BLOCKS, f"{early}: fewer look narrow by chance, and then claim too much"),
            (most < blocks, f"max_blocks={most} is less than study.blocks={blocks}: raise it"),
        ]
    for broken, says in faults:
        if broken:
            raise ConfigError(f"study.{says}.")


@dataclass(frozen=True)
class Interval:
    """An estimate with its simultaneous interval. Ratios are plain (1.02 is 2 % faster), None where not known."""

    estimate: float
    low: float
    high: float
