"""The launcher `isolated`: every job of a sweep in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from framework import environment
from framework.mistakes import ConfigError
from framework.study.process import Job, Outcome, finished, run_jobs, set_aside, summary_of

PARENTS_OWN = ("hydra.sweep.", "hydra.launcher", "hydra.sweeper", "hydra/launcher", "hydra/sweeper", "hydra.mode")


class IsolatedLauncher(Launcher):
    """Runs jobs one after another, or one on each of `gpus`. Source: Hydra's launcher interface.

    Each job has a folder with its number, its log and its overrides. A job that fails does not stop the others; one
    that the same sweep finished before, in the same folder, is not run again.
    """

    def __init__(self, gpus: Sequence[int] | None = None, time_limit_s: float | None = None) -> None:
        self.gpus, self.time_limit_s = gpus, time_limit_s

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `launch`. Errors: ConfigError in copies of one process, as torchrun starts them."""
        environment.alone()
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs. Exits with 1 where one failed, with 130 on Ctrl+C; both after the table of all jobs."""
        jobs = [self._job(list(overrides), initial_job_idx + n) for n, overrides in enumerate(job_overrides)]
        outcomes: dict[int, Outcome | None] = dict.fromkeys(number for number, _ in jobs)
        for number, job in jobs:
            if finished(job):
                outcomes[number] = Outcome("ok", "finished before", 0.0, 0.0)
        waiting = [(number, job) for number, job in jobs if outcomes[number] is None]
        for _, job in waiting:
            _clear(job)
        slots = [{"CUDA_VISIBLE_DEVICES": str(gpu)} for gpu in self.gpus] if self.gpus else [{}]
        try:
            run_jobs(waiting, slots, outcomes.__setitem__)
        except KeyboardInterrupt:
            _print(jobs, outcomes)
            sys.exit(130)
        _print(jobs, outcomes)
        if any(outcome is None or outcome.status in ("failed", "interrupted") for outcome in outcomes.values()):
            sys.exit(1)
        return [_returned(job) for _, job in jobs]

    def _job(self, overrides: list[str], number: int) -> tuple[int, Job]:
        own = [o for o in self.config.hydra.overrides.hydra if not o.lstrip("+~").startswith(PARENTS_OWN)]
        folder = Path(self.config.hydra.runtime.cwd) / self.config.hydra.sweep.dir / str(number)
        return number, Job((*filter_overrides(overrides), *own), folder, {}, self.time_limit_s)


def _clear(job: Job) -> None:
    """Makes way for a job that is to run. Errors: ConfigError where its folder holds another job that is done."""
    if summary_of(job.folder).get("status") == "completed":
        raise ConfigError(
            f"hydra.sweep.dir={job.folder.parent} holds the finished jobs of another sweep: name another folder, or "
            "start that very sweep again."
        )
    set_aside(job.folder)


def _returned(job: Job) -> JobReturn:
    done = JobReturn(overrides=list(job.overrides), status=JobStatus.COMPLETED)
    done.return_value = None
    return done


def _print(jobs: Sequence[tuple[int, Job]], outcomes: dict[int, Outcome | None]) -> None:
    """A table of all jobs. Nothing in it is cut off: overrides and reasons are what a user looks for."""
    rows = [("job", "", "seconds", "overrides", "reason")]
    for number, job in jobs:
        outcome = outcomes[number]
        status, reason = (outcome.status, outcome.reason or "") if outcome else ("not started", "")
        seconds = f"{outcome.seconds:.0f}" if outcome and outcome.seconds else ""
        rows.append((str(number), status, seconds, " ".join(job.overrides), reason))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"jobs lie in {jobs[0][1].folder.parent}", flush=True)
