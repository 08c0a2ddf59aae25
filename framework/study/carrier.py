"""Jobs through a launcher of Hydra's that is not ours, such as submitit's, which takes them to a cluster.

The launcher starts `errand` in a process of its own making, wherever that is, and `errand` starts train.py in a fresh
interpreter: the environment is in place before torch is imported, and log, time limit and exit code are as ever.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

from framework.study.process import FRONT_DOOR, GRACE_S, LOG, Ended, Job, Outcome, quoted, run_jobs, set_aside

Ends = Queue[tuple[int, Outcome]]


@dataclass(frozen=True)
class Carrier:
    """The launcher that `config` names. Each job is a launch of its own, so that one which is lost loses no other.

    A launcher with a scheduler behind it says how many jobs may run at once (`array_parallelism`), and the scheduler
    gives each its GPU. All others start what they get on this machine, and get one job at a time.
    """

    context: HydraContext
    config: DictConfig

    @property
    def elsewhere(self) -> bool:
        """Whether a scheduler decides where jobs run."""
        return "array_parallelism" in self.config.hydra.launcher

    def run(self, jobs: Sequence[tuple[int, Job]], ended: Ended) -> None:
        """Runs numbered jobs, and tells `ended` of each.

        On Ctrl+C, or any other exception, running jobs are interrupted and told of; those that a scheduler still keeps
        waiting do nothing once they start.
        """
        _make_importable()
        at_once = self.config.hydra.launcher.array_parallelism if self.elsewhere else 1
        waiting, running, ends = list(jobs), dict[int, Job](), Ends()
        stop = Path(self.config.hydra.runtime.cwd) / self.config.hydra.sweep.dir / f".stop-{uuid.uuid4().hex}"
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number, job = waiting.pop(0)
                    running[number] = job
                    self._start(number, job, stop, ends)
                number, outcome = ends.get()
                del running[number]
                ended(number, outcome)
        except BaseException:
            stop.touch()
            _see_off(running, ends, ended)
            raise

    def _start(self, number: int, job: Job, stop: Path, ends: Ends) -> None:
        """Hands a job to the launcher, in a thread: a launcher returns when its job has ended."""
        task = partial(errand, job, stop)
        launcher = Plugins.instance().instantiate_launcher(self.context, task, self.config)
        overrides = [one for one in job.overrides if not one.lstrip("+~").startswith("hydra")]
        overrides += [f"hydra.sweep.dir={quoted(str(job.folder.parent))}"]
        overrides += [f"hydra.sweep.subdir={quoted(job.folder.name)}"]
        Thread(target=_launch, args=(launcher, overrides, number, ends), daemon=True).start()


def errand(job: Job, stop: Path, _: DictConfig) -> Outcome:
    """Runs a job on the machine that the launcher chose; `stop` is a file that ends it once it exists.

    What befalls the job is returned, never raised.
    """
    if stop.exists():  # by now the folder may be another attempt's
        return Outcome("interrupted", None, time.time(), 0.0)
    if (job.folder / LOG).exists():  # the scheduler took the machine away in mid-run, and starts the job again
        set_aside(job.folder)
    outcomes: list[Outcome] = []
    try:
        run_jobs([(0, job)], [{}], lambda _, outcome: outcomes.append(outcome), stop.exists)
    except KeyboardInterrupt:
        pass
    except Exception as error:  # such as submitit's own, when the time that it gave the job is up
        outcomes = [Outcome("failed", _said(error), one.started, one.seconds) for one in outcomes]
    return outcomes[0] if outcomes else Outcome("interrupted", "ended before it began", time.time(), 0.0)


def _launch(launcher: Launcher, overrides: Sequence[str], number: int, ends: Ends) -> None:
    began = time.time()
    try:
        (done,) = launcher.launch([overrides], number)
        outcome = done.return_value
        assert isinstance(outcome, Outcome)
    except Exception as error:  # the job was lost, or never submitted
        outcome = Outcome("failed", _said(error), began, time.time() - began)
    ends.put((number, outcome))


def _see_off(running: dict[int, Job], ends: Ends, ended: Ended) -> None:
    """Waits for jobs that were told to stop, those left out that have not even started."""
    until = time.time() + 2 * GRACE_S
    while any((job.folder / LOG).exists() for job in running.values()) and time.time() < until:
        try:
            number, outcome = ends.get(timeout=1.0)
        except Empty:
            continue
        del running[number]
        ended(number, outcome)
    for number in running:
        ended(number, Outcome("interrupted", None, time.time(), 0.0))


def _make_importable() -> None:
    """Lets the launcher's processes import this project, which need not be installed, from whatever folder."""
    project, path = str(FRONT_DOOR.parent), os.environ.get("PYTHONPATH", "")
    if path.split(os.pathsep)[0] != project:
        os.environ["PYTHONPATH"] = os.pathsep.join([project, path] if path else [project])


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__  # submitit breaks its sentences
