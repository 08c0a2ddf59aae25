"""The study itself: plans, and runs the arms in random order within blocks, one process each."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from framework.mistakes import ConfigError
from framework.study.model import Arm, Kind, RunRecord, StudySettings
from framework.study.plan import Slot, append, block_order, claim
from framework.study.process import Job, Outcome, Runner, quoted, set_aside, summary_of
from framework.study.progress import NarrowEnough, before, done, given_up, most_blocks, runs_left


@dataclass
class Study:
    """One study in `folder`. `overrides` are common to all arms; `lacking` says why an arm cannot run.

    `run_jobs` runs the processes of a block, which are handed over in the order drawn for it;
    `alone` keeps other studies away meanwhile, where they would be disturbed.
    """

    folder: Path
    arms: list[Arm]
    settings: StudySettings
    overrides: tuple[str, ...]
    first_seed: int
    time_limit_s: float | None
    lacking: dict[str, str]
    say: Callable[[str], None]
    run_jobs: Runner
    alone: Callable[[], AbstractContextManager[None]]
    compiling: frozenset[str] = frozenset()
    flags: tuple[str, ...] = ()
    runs: list[RunRecord] = field(default_factory=list)

    def run(self, narrow_enough: NarrowEnough) -> None:
        """Runs what the plan still lacks, block by block. `narrow_enough` looks at widths only.

        Errors: ConfigError where the baseline itself fails; KeyboardInterrupt goes on after the running job has ended.
        """
        with self.alone():
            self.runs = claim(self.folder, self.arms, self.settings, self.overrides, commit())
            self._announce()
            for arm in self.arms:
                if arm.name in self.lacking and not self._of(arm.name):
                    why = self.lacking[arm.name]
                    self._keep(RunRecord(arm.name, 0, -1, "skipped", why, 0.0, 0.0, self.first_seed))
            self._rehearse()
            for block in range(most_blocks(self.settings)):
                judged = before(self.runs, block)  # an interrupted study may have begun later blocks
                if block >= self.settings.blocks and narrow_enough(self.arms, judged, self.settings):
                    break
                self._block(block)
        past = self._of(next(arm.name for arm in self.arms if arm.kind is Kind.baseline))
        if not any(run.status == "ok" for run in past):
            raise _no_baseline(past[-1].reason)

    def _announce(self) -> None:
        settings, runnable = self.settings, [arm for arm in self.arms if arm.name not in self.lacking]
        blocks = f"{settings.blocks} blocks"
        if settings.half_width is not None:
            blocks = (
                f"{settings.blocks} to {settings.max_blocks} blocks, until intervals are {settings.half_width:g} narrow"
            )
        self.say(f"study of {len(self.arms)} arms, {blocks}: {len(runnable) * settings.blocks} runs, in {self.folder}")
        for arm in self.arms:
            lack = f"  (skipped: {self.lacking[arm.name]})" if arm.name in self.lacking else ""
            held = f"  against {arm.reference}" if arm.reference else ""
            self.say(f"  {arm.name}: {' '.join(arm.overrides)}{held}{lack}")
        if self.runs:
            self.say(f"{len(self.runs)} runs were done before: going on")

    def _of(self, arm: str) -> list[RunRecord]:
        return [run for run in self.runs if run.arm == arm]

    def _block(self, block: int) -> None:
        ended = done(self.runs)
        slots = {
            slot.position: slot
            for slot in block_order(self.arms, block, self.settings.seed)
            if (slot.arm.name, block) not in ended and not given_up(slot.arm.name, self.runs)
        }
        jobs = {position: self._run_of(slot) for position, slot in slots.items()}
        for job in jobs.values():
            set_aside(job.folder)
        self.run_jobs(list(jobs.items()), lambda n, outcome: self._ended(slots[n], jobs[n], outcome))

    def _run_of(self, slot: Slot) -> Job:
        return self._job(slot.arm, self.folder / "runs" / f"{slot.position:04d}", self.first_seed + slot.block)

    def _ended(self, slot: Slot, job: Job, outcome: Outcome) -> None:
        self._tidy(job)
        if outcome.cut_off:
            return  # the study itself is interrupted, and will do this run again
        summary = summary_of(job.folder)
        outcome = _with_figures(outcome, summary)
        self._keep(
            RunRecord(
                slot.arm.name,
                slot.block,
                slot.position,
                outcome.status,
                outcome.reason,
                outcome.started,
                outcome.seconds,
                self.first_seed + slot.block,
                summary,
            )
        )
        step = summary.get("step_ms")
        figure = f"{step:.4g} ms a step" if step else outcome.reason or outcome.status
        self.say(f"block {slot.block + 1}, {slot.arm.name}: {figure}; {self._time_left(slot.block)}")
        if slot.arm.kind is Kind.baseline and given_up(slot.arm.name, self.runs):
            raise _no_baseline(outcome.reason)

    def _tidy(self, job: Job) -> None:
        if self.settings.compile_cache == "cold":
            shutil.rmtree(job.folder / "compile_cache", ignore_errors=True)

    def _job(self, arm: Arm, folder: Path, seed: int) -> Job:
        cache = (folder if self.settings.compile_cache == "cold" else self.folder) / "compile_cache"
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
        own = (*self.overrides, *arm.overrides, f"seed={seed}", f"name={quoted(arm.name)}")
        return Job(own, folder, environment, self.time_limit_s, self.flags)

    def _rehearse(self) -> None:
        """Unmeasured runs: one of the baseline, and where the compile cache is warm those in `compiling`.

        The first finds a mistake before hours are spent, reads from disk what every run reads, and tells how long a run
        takes; the others fill the cache.
        """
        warm = self.settings.compile_cache == "warm"
        for arm in self.arms:
            folder, kept = self.folder / "rehearsal" / arm.name, warm and arm.name in self.compiling
            wanted = kept or (arm.kind is Kind.baseline and not any(run.status == "ok" for run in self.runs))
            if not wanted or arm.name in self.lacking or summary_of(folder).get("status") == "completed":
                continue
            set_aside(folder)
            job = self._job(arm, folder, self.first_seed)
            self.run_jobs([(0, job)], lambda _, outcome, arm=arm: self._rehearsed(arm, outcome))  # type: ignore[misc]
            self._tidy(job)

    def _rehearsed(self, arm: Arm, outcome: Outcome) -> None:
        if outcome.cut_off:
            return
        if arm.kind is Kind.baseline:
            if outcome.status != "ok":
                raise _no_baseline(outcome.reason)
            minutes = outcome.seconds / 60 * sum(runs_left(self.arms, self.runs, self.settings.blocks).values())
            self.say(f"the baseline takes {outcome.seconds:.0f} s; with every run like it, about {minutes:.0f} min")
            return
        self.say(
            f"rehearsed {arm.name}, so that its compiled code lies in the cache: {outcome.reason or outcome.status}"
        )

    def _keep(self, run: RunRecord) -> None:
        append(self.folder, run)
        self.runs.append(run)

    def _time_left(self, block: int) -> str:
        """What the runs take that are sure to come, each as long as its arm took so far; `block` is the one begun."""
        left, blocks = 0.0, max(self.settings.blocks, block + 1)
        known = [run.seconds for run in self.runs if run.seconds]
        mean = sum(known) / len(known) if known else 0.0
        for arm, runs in runs_left(self.arms, self.runs, blocks).items():
            past = [run.seconds for run in self._of(arm) if run.seconds]
            left += runs * (sum(past) / len(past) if past else mean)
        return f"{'about' if blocks == most_blocks(self.settings) else 'at least'} {left / 60:.1f} min left"


def _with_figures(outcome: Outcome, summary: dict[str, Any]) -> Outcome:
    """A run that ended well without a step time, as one shorter than its warm-up, is of no use to the study."""
    if outcome.status != "ok" or summary.get("step_ms"):
        return outcome
    why = summary.get("missing", {}).get("step_ms", "its summary has none")
    return replace(outcome, status="failed", reason=f"no step time: {why}")


def _no_baseline(reason: str | None) -> ConfigError:
    return ConfigError(f"the baseline fails, so there is nothing to compare with: {reason}")


@contextmanager
def alone_on_the_machine() -> Iterator[None]:
    """Holds a lock that no second study gets: two at once would measure each other."""
    path = Path(tempfile.gettempdir()) / f"gearshift-study-{os.getuid()}.lock"
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                "another study runs on this machine: wait for it, since two would measure each other."
            ) from None
        yield


def commit() -> str | None:
    """The git commit of this checkout, with a + where files differ from it."""
    here = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return None
    changed = subprocess.run(
        [*here, "status", "--porcelain"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return head.stdout.strip() + ("+" if changed else "")
