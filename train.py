"""Front door: `python train.py [group=option] [key=value]`. Composes the config, prepares the environment, trains."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from framework import config, environment, folder, mistakes, rules
from framework.study.arms import with_arms_quoted


@hydra.main(version_base="1.3", config_path="configs", config_name="config")
def job(raw: DictConfig) -> None:
    """One run. Paths of the user are relative to the launch folder, whatever hydra.job.chdir says."""
    runtime = HydraConfig.get().runtime
    os.chdir(runtime.cwd)
    sys.path.insert(1, runtime.cwd)  # a user's own model or data set lies there; it must not hide our own packages
    output = Path(runtime.output_dir)
    try:
        settled = rules.settle(raw, machine := environment.look())
        environment.prepare(settled.config.perf.allocator, machine)
        with folder.taken(output, OmegaConf.to_yaml(raw, resolve=True)):
            from framework import build, engine  # imports torch, which reads the environment

            run = build.build(settled, output)
    except mistakes.ConfigError as error:
        folder.give_up(output)
        sys.exit(_told(str(error), error.exit_code))
    engine.train(run)


def main() -> None:
    """Runs the job. Exit codes: 0 done, 1 crash, 2 mistake in the config, 3 switch lacking, 130 Ctrl+C, 143 SIGTERM."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors come here whole; this is where they are told
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.argv[1:] = with_arms_quoted(sys.argv[1:])
    try:
        job()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if not mistakes.told_while_composing(error, job):
            raise
        sys.exit(_told(mistakes.explain(error)))


def _told(sentence: str, exit_code: int = 2) -> int:
    print(f"gearshift: {sentence}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    config.register()
    main()
