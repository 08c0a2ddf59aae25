"""The sweeper `study`: turns one command into the arms of a study, and runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from framework import environment
from framework.config import TECHNIQUES, Compile, Perf, Profile, StudyKind
from framework.config import Study as StudyConfig
from framework.mistakes import ConfigError, LackError
from framework.rules import settle, spell
from framework.study.arms import BASELINE, Switches, control_arms, named_arms, on_top_of, technique_arms
from framework.study.carrier import Carrier
from framework.study.launcher import inherited
from framework.study.model import Arm, Kind, StudySettings, refuse
from framework.study.process import one_by_one
from framework.study.study import Study, alone_on_the_machine

Code = tuple[str, ...]  # the overrides of an arm that its compiled code may depend on
_OUTSIDE = ("workers", "pinned", "prefetch", "batch_fetch", "resident", "log_every", "allocator", "fused_optimizer")
OUTSIDE = tuple(f"perf.{switch}=" for switch in _OUTSIDE)
SKIPPING = "perf.if_unavailable=skip"  # arms of several techniques go on with those that the machine has


class StudySweeper(Sweeper):
    """Compares techniques. Source: Hydra's sweeper interface; the comma lists of plain sweeps mean nothing here."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `sweep`. Errors: ConfigError in copies of one process, as torchrun starts them."""
        self.loader, self.composed = hydra_context.config_loader, config
        self.machine, self.run_jobs = environment.look(), one_by_one
        self.alone: Callable[[], AbstractContextManager[None]] = alone_on_the_machine
        if not str(config.hydra.launcher["_target_"]).endswith(".IsolatedLauncher"):
            carrier = Carrier(hydra_context, config)
            self.run_jobs = carrier.run
            if carrier.elsewhere:  # where there are GPUs; a job that lacks one says so itself
                self.machine, self.alone = replace(self.machine, cuda_build=True, gpus=1), nullcontext

    def sweep(self, arguments: list[str]) -> Any:
        """Runs the study and reports. Exits with 130 on Ctrl+C; the same command in the same folder goes on."""
        plain = OmegaConf.to_object(self.composed.study)
        assert isinstance(plain, StudyConfig)
        settings = _settings(plain)
        refuse(settings)
        common, values = _sorted_out(arguments)
        arms = self._arms(plain, common, values)
        lacking, compiling = self._looked_at(arms, common)
        folder = Path(self.composed.hydra.runtime.cwd) / self.composed.hydra.sweep.dir
        study = Study(
            folder,
            arms,
            settings,
            tuple(common),
            self.composed.seed,
            plain.time_limit_s,
            lacking | _idle(arms, lacking),
            _say,
            self.run_jobs,
            self.alone,
            frozenset({code: name for name, code in reversed(compiling.items())}.values()),
            inherited(self.composed),
        )
        from framework.study.analysis import narrow_enough  # scipy is slow to import: not before it is needed
        from framework.study.render import report

        try:
            study.run(narrow_enough)
        except KeyboardInterrupt:
            _say(f"interrupted: the same command with hydra.sweep.dir={folder} goes on")
            sys.exit(130)
        report(folder)
        return None

    def _arms(self, plain: StudyConfig, common: Sequence[str], given: dict[str, str]) -> list[Arm]:
        """The arms. Switches that the user set and the study does not compare are in all of them.

        What an experiment sets in `perf` counts as set by the user.
        """
        off = Perf()
        stated = self._switches([*common, "perf=baseline"])
        values = stated | given
        if plain.kind is StudyKind.control:
            return on_top_of(values, control_arms(plain.controls))
        if plain.kind is StudyKind.arms:
            return on_top_of(values, named_arms(plain.arms))
        compared = list(self._switches(["perf=all"])) if plain.techniques is None else plain.techniques
        base = {switch: value for switch, value in values.items() if switch not in compared}
        every = base | {switch: spell(getattr(off, switch)) for switch in stated if switch in compared}
        presets = {name: self._preset(name, values, base) for name in TECHNIQUES if name not in base}
        alone = on_top_of(every, technique_arms(presets, compared, []))
        lacking, _ = self._looked_at(alone, common)
        here = [name for name in compared if name not in lacking]
        arms = on_top_of(every, technique_arms(presets, compared, here))
        several = (Kind.all, Kind.without, Kind.needs)
        return [
            replace(arm, overrides=(*arm.overrides, SKIPPING))
            if arm.kind in several and arm.name not in presets
            else arm
            for arm in arms
        ]

    def _preset(self, name: str, values: Switches, base: Switches) -> dict[str, str]:
        """The switches that `perf=name` sets beyond `base`, spelled; the user's own values for those that are on."""
        preset = self._switches([f"perf={name}"])
        return {switch: values.get(switch, value) for switch, value in preset.items() if switch not in base}

    def _switches(self, overrides: Sequence[str]) -> dict[str, str]:
        """The switches that are on with these overrides, spelled."""
        perf, off = self._of(overrides).perf, Perf()
        return {switch: spell(perf[switch]) for switch in TECHNIQUES if perf[switch] != getattr(off, switch)}

    def _of(self, overrides: Sequence[str]) -> DictConfig:
        composed = self.loader.load_sweep_config(self.composed, list(overrides))
        with read_write(composed), open_dict(composed):
            del composed["hydra"]
        return composed

    def _looked_at(self, arms: Sequence[Arm], common: Sequence[str]) -> tuple[dict[str, str], dict[str, Code]]:
        """Why an arm cannot run on this machine, and what those that compile compile.

        Errors: ConfigError where not even the baseline can run, or where an arm makes no sense anywhere.
        """
        lacking, compiling = dict[str, str](), dict[str, Code]()
        for arm in arms:
            try:
                settled = settle(self._of([*common, *arm.overrides]), self.machine)
            except LackError as error:
                if arm.name == BASELINE:
                    raise
                lacking[arm.name] = str(error)
                continue
            except ConfigError as error:
                raise ConfigError(f"in the study's arm {arm.name}: {error}") from error
            if settled.config.profile is not Profile.none:
                raise ConfigError(
                    f"profile={settled.config.profile.name} would change what a study measures: leave it out, and "
                    "profile a run of its own."
                )
            if settled.config.perf.compile is not Compile.eager:
                compiling[arm.name] = tuple(one for one in arm.overrides if not one.startswith(OUTSIDE))
        return lacking, compiling


def _sorted_out(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The overrides common to all arms, and the user's own values of switches.

    Errors: ConfigError for what a study decides itself.
    """
    common, values = [], {}
    for argument in arguments:
        key, _, value = argument.lstrip("+~").partition("=")
        if key.startswith("study"):
            continue
        if key in ("perf", "name", "perf.if_unavailable"):
            raise ConfigError(f"{argument}: a study decides {key} itself; leave it out.")
        if key.startswith("perf."):
            values[key.removeprefix("perf.")] = value
        else:
            common.append(argument)
    return common, values


def _idle(arms: Sequence[Arm], lacking: Mapping[str, str]) -> dict[str, str]:
    """References that no arm which can run is held against, with the reason why they need not run."""
    held = {arm.reference for arm in arms if arm.name not in lacking}
    why = "nothing that can run here is held against it"
    return {arm.name: why for arm in arms if arm.kind is Kind.needs and arm.name not in held}


def _settings(plain: StudyConfig) -> StudySettings:
    return StudySettings(
        smallest_effect=plain.smallest_effect,
        confidence=plain.confidence,
        blocks=plain.blocks,
        half_width=plain.half_width,
        max_blocks=plain.max_blocks,
        compile_cache=plain.compile_cache.value,
        seed=plain.seed,
    )


def _say(line: str) -> None:
    print(line, flush=True)
