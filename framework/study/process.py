"""One job, one process: a new interpreter running train.py, its environment in place before torch is imported."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from framework.mistakes import ConfigError

FRONT_DOOR = Path(__file__).parents[2] / "train.py"
LOG = "job.log"
OVERRIDES = "overrides.json"
MISTAKE, UNAVAILABLE = 2, 3  # train.py's exit codes for a mistake in the config, and a switch that the machine lacks
GRACE_S = 30.0  # what an interrupted job has to close its files
POLL_S = 0.05


@dataclass(frozen=True)
class Job:
    """What to run. `environment` adds to this process's; `time_limit_s` None is no limit.

    `flags` are what of the parent's own command line every job needs too, such as --config-dir (see `inherited`).
    """

    overrides: tuple[str, ...]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    time_limit_s: float | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ok, failed, skipped or interrupted. `reason` is the first line of the error."""

    status: str
    reason: str | None
    started: float  # seconds since the epoch
    seconds: float

    @property
    def cut_off(self) -> bool:
        """Whether whoever ran the job stopped, and the job with it: it is to be done again."""
        return self.status == "interrupted" and self.reason is None


Ended = Callable[[int, Outcome], None]  # is told of each numbered job
Runner = Callable[[Sequence[tuple[int, Job]], Ended], None]  # runs numbered jobs: `one_by_one`, or a carrier's `run`


@dataclass
class _Running:
    job: Job
    number: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    started: float
    slot: int


def one_by_one(jobs: Sequence[tuple[int, Job]], ended: Ended) -> None:
    """Runs numbered jobs on this machine, one at a time, and tells `ended` of each."""
    run_jobs(jobs, [{}], ended)


def run_jobs(
    jobs: Sequence[tuple[int, Job]],
    slots: Sequence[dict[str, str]],
    ended: Ended,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Runs numbered jobs in order, one at a time in each slot, and tells `ended` of each.

    A slot is the environment that its jobs get, such as the GPU they may see. On Ctrl+C, or any other exception, the
    running jobs are interrupted and told of, the rest do not start, and the exception goes on. `stopped` is asked again
    and again; once it says yes, that is as good as Ctrl+C.
    """
    waiting, running = list(jobs), list[_Running]()
    try:
        while waiting or running:
            if stopped():
                raise KeyboardInterrupt
            free = set(range(len(slots))) - {one.slot for one in running}
            while waiting and free:
                number, job = waiting.pop(0)
                slot = free.pop()
                running.append(_start(number, job, slot, slots[slot]))
            time.sleep(POLL_S)
            for one in [one for one in running if _over(one)]:
                running.remove(one)
                ended(one.number, _outcome(one))
    except BaseException:
        for one in running:
            one.process.terminate()  # Ctrl+C's own signal is ignored by what a script started with &
        for one in running:
            _wait(one.process)
            one.log.close()
            ended(one.number, Outcome("interrupted", None, one.started, time.time() - one.started))
        raise


def _start(number: int, job: Job, slot: int, environment: dict[str, str]) -> _Running:
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / OVERRIDES).write_text(json.dumps([*job.overrides, *job.flags]), encoding="utf-8")
    log = (job.folder / LOG).open("wb")
    _lock(log)
    given = [*job.flags, *job.overrides, f"hydra.run.dir={quoted(str(job.folder))}", "hydra.mode=RUN"]
    given.sort(key=lambda one: not one.startswith("--"))  # Hydra takes its options in front of overrides only
    command = [sys.executable, str(FRONT_DOOR), *given]
    # A session of its own: Ctrl+C in the terminal reaches this process alone, which passes it on once.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | environment | job.environment,
        start_new_session=True,
    )
    return _Running(job, number, process, log, time.time(), slot)


def _over(one: _Running) -> bool:
    limit = one.job.time_limit_s
    if one.process.poll() is None and limit is not None and time.time() - one.started > limit:
        one.process.terminate()
        _wait(one.process)
        one.process.returncode = 124  # as the command `timeout` has it
    return one.process.poll() is not None


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome(one: _Running) -> Outcome:
    one.log.close()
    code, seconds = one.process.returncode, time.time() - one.started
    if code == 0:
        return Outcome("ok", None, one.started, seconds)
    if code == 124:
        return Outcome("failed", f"ran past the time limit of {one.job.time_limit_s:g} s", one.started, seconds)
    status = "skipped" if code == UNAVAILABLE else "interrupted" if code in (130, 143) else "failed"
    return Outcome(status, _reason(one.job.folder, code), one.started, seconds)


def _reason(folder: Path, code: int) -> str:
    """The first line of what went wrong, from the run's summary, else from its log."""
    error = summary_of(folder).get("error")
    if error:
        return str(error)
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line for line in (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = [line.removeprefix("gearshift: ") for line in lines if line.startswith("gearshift: ")]
    return ((told if code in (MISTAKE, UNAVAILABLE) else []) or lines or [f"exit code {code}"])[-1]


def summary_of(folder: Path) -> dict[str, Any]:
    """The run's summary.json, empty where there is none."""
    path = folder / "summary.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def finished(job: Job) -> bool:
    """Whether `job.folder` holds this very job, done."""
    path = job.folder / OVERRIDES
    same = path.exists() and json.loads(path.read_text(encoding="utf-8")) == [*job.overrides, *job.flags]
    return same and summary_of(job.folder).get("status") == "completed"


def _lock(log: IO[bytes]) -> bool:
    """False where a job holds it: a job's process inherits the lock with its output, and outlives a killed parent."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def set_aside(folder: Path) -> None:
    """Moves what an earlier attempt left in `folder` out of the way, log and all; nothing is deleted.

    Errors: ConfigError where the job of a killed sweep or study still runs there.
    """
    if not folder.exists():
        return
    with contextlib.suppress(FileNotFoundError), (folder / LOG).open("r+b") as log:
        if not _lock(log):
            raise ConfigError(
                f"the job of an earlier start still runs in {folder}: wait until it ends, or end it, and start again."
            )
    attempts = folder.parent / "attempts"
    attempts.mkdir(exist_ok=True)
    folder.rename(attempts / f"{folder.name}-{sum(1 for _ in attempts.glob(f'{folder.name}-*'))}")


def quoted(value: str) -> str:
    """`value` as a quoted string of Hydra's override grammar."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
