"""Hydra takes launchers and sweepers from this package only; the work is in framework/study."""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

from framework.study.launcher import IsolatedLauncher as _IsolatedLauncher
from framework.study.sweeper import StudySweeper as _StudySweeper


class IsolatedLauncher(_IsolatedLauncher):
    """Every job in a process of its own."""


class StudySweeper(_StudySweeper):
    """One command, a whole study."""


@dataclass
class IsolatedLauncherConf:
    """`gpus`: one job at a time on each of them; null: one job at a time. `time_limit_s`: for each job."""

    _target_: str = "hydra_plugins.gearshift.IsolatedLauncher"
    gpus: list[int] | None = None
    time_limit_s: float | None = None


@dataclass
class StudySweeperConf:
    """What it does is set in the node `study`."""

    _target_: str = "hydra_plugins.gearshift.StudySweeper"


ConfigStore.instance().store(group="hydra/launcher", name="isolated", node=IsolatedLauncherConf, provider="gearshift")
ConfigStore.instance().store(group="hydra/sweeper", name="study", node=StudySweeperConf, provider="gearshift")
