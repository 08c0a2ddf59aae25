"""The study itself: plans, and runs the arms in random order within blocks, one process each."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from framework.mistakes import ConfigError
from framework.study.model import Arm, Kind, RunRecord, StudySettings
from framework.study.plan import Slot, append, block_order, claim
from framework.study.process import Job, Outcome, quoted, run_jobs, set_aside, summary_of
from framework.study.progress import NarrowEnough, before, done, given_up, most_blocks, runs_left


@dataclass
class Study:
    """One study in `folder`. `overrides` are common to all arms; `lacking` says why an arm cannot run here."""

    folder: Path
    arms: list[Arm]
    settings: StudySettings
    overrides: tuple[str, ...]
    first_seed: int
    time_limit_s: float | None
    lacking: dict[str, str]
    say: Callable[[str], None]
    runs: list[RunRecord] = field(default_factory=list)

    def run(self, narrow_enough: NarrowEnough) -> None:
        """Runs what the plan still lacks, block by block. `narrow_enough` looks at widths only.

        Errors: ConfigError where the baseline itself fails; KeyboardInterrupt goes on after the running job has ended.
        """
        self.runs = claim(self.folder, self.arms, self.settings, self.overrides, commit())
        self._announce()
        for arm in self.arms:
            if arm.name in self.lacking and not self._of(arm.name):
                self._keep(RunRecord(arm.name, 0, -1, "skipped", self.lacking[arm.name], 0.0, 0.0, self.first_seed))
        with _alone_on_the_machine():
            if self.settings.compile_cache == "warm":
                self._prime()
            for block in range(most_blocks(self.settings)):
                judged = before(self.runs, block)  # an interrupted study may have begun later blocks
                if block >= self.settings.blocks and narrow_enough(self.arms, judged, self.settings):
                    break
                self._block(block)

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
        else:
            self.say("how long it takes is known after the first run of each arm")

    def _of(self, arm: str) -> list[RunRecord]:
        return [run for run in self.runs if run.arm == arm]

    def _block(self, block: int) -> None:
        ended = done(self.runs)
        slots = block_order(self.arms, block, self.settings.seed)
        for slot in slots:
            if (slot.arm.name, block) not in ended and not given_up(slot.arm.name, self.runs):
                self._one(slot)

    def _one(self, slot: Slot) -> None:
        job = self._job(slot.arm, self.folder / "runs" / f"{slot.position:04d}", self.first_seed + slot.block)
        set_aside(job.folder)
        outcome = self._process(job)
        summary = summary_of(job.folder)
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
            raise ConfigError(f"the baseline fails, so there is nothing to compare with: {outcome.reason}")

    def _process(self, job: Job) -> Outcome:
        outcomes: list[Outcome] = []
        run_jobs([(0, job)], [{}], lambda _, outcome: outcomes.append(outcome))
        if self.settings.compile_cache == "cold":
            shutil.rmtree(job.folder / "compile_cache", ignore_errors=True)
        return outcomes[0]

    def _job(self, arm: Arm, folder: Path, seed: int) -> Job:
        cache = (folder if self.settings.compile_cache == "cold" else self.folder) / "compile_cache"
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
        own = (*self.overrides, *arm.overrides, f"seed={seed}", f"name={quoted(arm.name)}")
        return Job(own, folder, environment, self.time_limit_s)

    def _prime(self) -> None:
        """Fills the shared compile cache: one unmeasured run of each arm that compiles."""
        for arm in self.arms:
            folder = self.folder / "priming" / arm.name
            compiles = any(one.startswith("perf.compile=") for one in arm.overrides)
            if compiles and arm.name not in self.lacking and summary_of(folder).get("status") != "completed":
                set_aside(folder)
                self._process(self._job(arm, folder, self.first_seed))
                self.say(f"primed the compile cache with {arm.name}")

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


@contextmanager
def _alone_on_the_machine() -> Iterator[None]:
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
