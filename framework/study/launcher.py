"""Sweeps: every job in a process of its own, here or through a launcher of Hydra's; then a table of all jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from framework import environment
from framework.mistakes import ConfigError
from framework.study.carrier import Carrier
from framework.study.process import Ended, Job, Outcome, Runner, finished, run_jobs, set_aside, summary_of

PARENTS_OWN = (
    *("hydra.sweep.", "hydra.launcher", "hydra.sweeper", "hydra/launcher", "hydra/sweeper", "hydra.mode"),
    "hydra.run.",
)


def inherited(config: DictConfig) -> tuple[str, ...]:
    """What of this process's own command line every job needs too: where configs lie, and Hydra's own settings."""
    named = config.hydra.job.config_name
    folders = [one.path for one in config.hydra.runtime.config_sources if one.provider == "command-line"]
    own = [one for one in config.hydra.overrides.hydra if not one.lstrip("+~").startswith(PARENTS_OWN)]
    flags = [*own, *(f"--config-dir={folder}" for folder in folders)]
    return (*flags, *([] if named == "config" else [f"--config-name={named}"]))


class IsolatedLauncher(Launcher):
    """Runs jobs one after another, or one on each of `gpus`. Source: Hydra's launcher interface."""

    def __init__(self, gpus: Sequence[int] | None = None, time_limit_s: float | None = None) -> None:
        self.gpus, self.time_limit_s = gpus, time_limit_s

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `launch`. Errors: ConfigError in copies of one process, as torchrun starts them."""
        environment.alone()
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hydra's call. What it does is told at `_through`."""
        jobs = _numbered(self.config, job_overrides, initial_job_idx, self.time_limit_s)
        return _through(self._run, jobs)

    def _run(self, jobs: Sequence[tuple[int, Job]], ended: Ended) -> None:
        run_jobs(jobs, _slots(self.gpus) if self.gpus else [{}], ended)


def _slots(gpus: Sequence[int]) -> list[dict[str, str]]:
    """One slot for each GPU, numbered as CUDA_VISIBLE_DEVICES shows them. Errors: ConfigError for one that is not."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = None if listed is None else [name.strip() for name in listed.split(",") if name.strip()]
    if len(set(gpus)) < len(gpus):
        raise ConfigError(
            f"hydra.launcher.gpus={list(gpus)} names a GPU twice: two jobs on one would hinder each other."
        )
    for gpu in gpus:
        if gpu < 0 or (visible is not None and gpu >= len(visible)):
            raise ConfigError(
                f"hydra.launcher.gpus names GPU {gpu}, and CUDA_VISIBLE_DEVICES={listed} has no such one."
            )
    return [{"CUDA_VISIBLE_DEVICES": str(gpu) if visible is None else visible[gpu]} for gpu in gpus]


class CarriedLauncher(Launcher):
    """Stands before a launcher that is not ours, such as submitit's, which carries the jobs as `Carrier` tells."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Takes what Hydra gives to a launcher."""
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hydra's call. What it does is told at `_through`."""
        jobs = _numbered(self.config, job_overrides, initial_job_idx, None)
        return _through(Carrier(self.context, self.config).run, jobs)


class JobSweeper(BasicSweeper):
    """Hydra's own sweeper, except that each job is an interpreter of its own whatever the launcher."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `sweep`."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        if not isinstance(self.launcher, IsolatedLauncher):
            self.launcher = CarriedLauncher()
            self.launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)


def _numbered(
    config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int, time_limit_s: float | None
) -> list[tuple[int, Job]]:
    """The jobs with their numbers, each in a folder of that name."""
    flags = inherited(config)
    folder = Path(config.hydra.runtime.cwd) / config.hydra.sweep.dir
    return [
        (number, Job(tuple(filter_overrides(overrides)), folder / str(number), {}, time_limit_s, flags))
        for number, overrides in enumerate(job_overrides, first)
    ]


def _through(run: Runner, jobs: Sequence[tuple[int, Job]]) -> Sequence[JobReturn]:
    """Runs the jobs. Exits with 1 where one failed, with 130 on Ctrl+C; both after the table of all jobs.

    Each job has a folder with its number, its log and its overrides. A job that fails does not stop the others; one
    that the same sweep finished before, in the same folder, is not run again.
    """
    outcomes: dict[int, Outcome | None] = dict.fromkeys(number for number, _ in jobs)
    for number, job in jobs:
        if finished(job):
            outcomes[number] = Outcome("ok", "finished before", 0.0, 0.0)
    waiting = [(number, job) for number, job in jobs if outcomes[number] is None]
    for _, job in waiting:
        _clear(job)
    try:
        run(waiting, outcomes.__setitem__)
    except KeyboardInterrupt:
        _print(jobs, outcomes)
        sys.exit(130)
    _print(jobs, outcomes)
    if any(outcome is None or outcome.status in ("failed", "interrupted") for outcome in outcomes.values()):
        sys.exit(1)
    return [_returned(job) for _, job in jobs]


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
