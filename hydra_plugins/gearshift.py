"""Hydra takes launchers and sweepers from this package only; the work is in framework/study."""

from dataclasses import dataclass

from hydra._internal.core_plugins.basic_sweeper import BasicSweeperConf
from hydra.core.config_store import ConfigStore

from framework.study.launcher import IsolatedLauncher as _IsolatedLauncher
from framework.study.launcher import JobSweeper as _JobSweeper
from framework.study.sweeper import StudySweeper as _StudySweeper


class IsolatedLauncher(_IsolatedLauncher):
    """Every job in a process of its own."""


class JobSweeper(_JobSweeper):
    """Every job of a sweep in a process of its own, whatever the launcher."""


class StudySweeper(_StudySweeper):
    """One command, a whole study."""


@dataclass
class IsolatedLauncherConf:
    """`gpus`: one job at a time on each of them; null: one job at a time. `time_limit_s`: for each job."""

    _target_: str = "hydra_plugins.gearshift.IsolatedLauncher"
    gpus: list[int] | None = None
    time_limit_s: float | None = None


@dataclass
class JobSweeperConf(BasicSweeperConf):
    """Takes what Hydra's own sweeper takes."""

    _target_: str = "hydra_plugins.gearshift.JobSweeper"


@dataclass
class StudySweeperConf:
    """What it does is set in the node `study`."""

    _target_: str = "hydra_plugins.gearshift.StudySweeper"


ConfigStore.instance().store(group="hydra/launcher", name="isolated", node=IsolatedLauncherConf, provider="gearshift")
# In the place of Hydra's own: an `override /hydra/sweeper` in config.yaml would win over those in configs/study.
ConfigStore.instance().store(group="hydra/sweeper", name="basic", node=JobSweeperConf, provider="gearshift")
ConfigStore.instance().store(group="hydra/sweeper", name="study", node=StudySweeperConf, provider="gearshift")
