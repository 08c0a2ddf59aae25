"""How far a study has come: which arms are given up, how many blocks it takes, and what is still to be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framework.study.model import Arm, RunRecord, StudySettings

ATTEMPTS = 2  # an arm that failed this often is not run again
NarrowEnough = Callable[[Sequence[Arm], Sequence[RunRecord], StudySettings], bool]  # looks at widths only


def done(runs: Sequence[RunRecord]) -> set[tuple[str, int]]:
    """Arm and block of the runs that are not to be done again."""
    return {(run.arm, run.block) for run in runs if run.status != "interrupted"}


def given_up(arm: str, runs: Sequence[RunRecord]) -> bool:
    """Whether an arm is not run again: it cannot run here, or it failed too often and never ended well."""
    ends = [run.status for run in runs if run.arm == arm]
    return "skipped" in ends or (ends.count("failed") >= ATTEMPTS and "ok" not in ends)


def runs_left(arms: Sequence[Arm], runs: Sequence[RunRecord], blocks: int) -> dict[str, int]:
    """By arm, how many of its runs in the first `blocks` blocks are to be done; arms that are given up are left out."""
    ended = done(runs)
    going = [arm.name for arm in arms if not given_up(arm.name, runs)]
    return {name: sum((name, block) not in ended for block in range(blocks)) for name in going}


def most_blocks(settings: StudySettings) -> int:
    """No more blocks than that."""
    return settings.max_blocks if settings.half_width is not None else settings.blocks


def before(runs: Sequence[RunRecord], block: int) -> list[RunRecord]:
    """The runs of the blocks before `block`: what is judged when it is asked whether `block` is needed."""
    return [run for run in runs if run.block < block]


def blocks_needed(
    arms: Sequence[Arm], runs: Sequence[RunRecord], settings: StudySettings, narrow_enough: NarrowEnough
) -> int:
    """How many blocks the plan asks for; with a half width, how many at the least, as far as the runs tell."""
    begun = 1 + max((run.block for run in runs), default=-1)
    for block in range(settings.blocks, most_blocks(settings)):
        if block > begun or narrow_enough(arms, before(runs, block), settings):
            return block
    return most_blocks(settings)
