"""What one command becomes: the arms of a study, composed as the sweeper composes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from framework import config
from framework.environment import Machine
from framework.mistakes import ConfigError
from framework.records import RECORDS
from framework.study.arms import with_arms_quoted
from framework.study.model import Arm
from framework.study.sweeper import Code, StudySweeper, _sorted_out

CONFIGS = Path(__file__).parents[2] / "configs"
GPU = Machine((2, 11), cuda_build=True, gpus=1)


def composed(arm: Arm, hydra: str) -> config.Perf:
    """The switches that an arm of `experiment=mine` has."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        perf = OmegaConf.to_object(compose("config", [hydra, "experiment=mine", *arm.overrides]).perf)
    assert isinstance(perf, config.Perf)
    return perf


def looked_at(arguments: tuple[str, ...], hydra: str) -> tuple[dict[str, Arm], dict[str, Code]]:
    """The arms of the study that `python train.py ARGUMENTS` would run on a machine with a GPU; what they compile."""
    config.register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        own = [one for one in with_arms_quoted(arguments) if one.lstrip("+").startswith("study")]
        sweeper = StudySweeper()
        sweeper.composed = compose("config", [hydra, *own], return_hydra_config=True)
        sweeper.loader, sweeper.machine = GlobalHydra.instance().config_loader(), GPU
        plain = OmegaConf.to_object(sweeper.composed.study)
        assert isinstance(plain, config.Study)
        common, values = _sorted_out(arguments)
        made = sweeper._arms(plain, common, values)
        return {arm.name: arm for arm in made}, sweeper._looked_at(made, common)[1]


def arms(*arguments: str, hydra: str = "hydra.job.chdir=false") -> dict[str, Arm]:
    return looked_at(arguments, hydra)[0]


def test_a_switch_that_is_not_compared_is_in_every_arm() -> None:
    made = arms("study=techniques", "study.techniques=[amp,channels_last]", "perf.workers=14", "perf.log_every=50")
    for arm in made.values():
        assert arm.overrides[:3] == ("perf=baseline", "perf.log_every=50", "perf.workers=14")
    assert made["baseline"].overrides[3:] == ()
    assert made["amp"].overrides[3:] == ("perf.amp=bf16",)
    assert set(made) == {
        *("baseline", "control", "amp", "channels_last", "all", "without_amp", "without_channels_last"),
    }


def test_what_is_not_in_all_is_compared_where_the_user_names_it() -> None:
    others = [name for name, record in RECORDS.items() if not record.in_all]
    assert others
    made = arms("study=techniques")
    assert {arm.technique for arm in made.values() if arm.technique} == {*RECORDS} - {*others}
    for name in others:
        named = arms("study=techniques", f"study.techniques=[{name},amp]")
        own = [one for one in named[name].overrides if one.startswith(f"perf.{name}=")]
        assert own
        assert {*own} <= {*named["all"].overrides}
        assert named[f"without_{name}"].technique == name


def test_what_a_technique_needs_is_not_brought_along_where_every_arm_has_it() -> None:
    plain = arms("study=techniques", "study.techniques=[prefetch]")
    assert plain["prefetch"].brings == ("pinned",)
    assert plain["prefetch"].reference == "needs_of_prefetch"
    fixed = arms("study=techniques", "study.techniques=[prefetch]", "perf.pinned=true")
    assert fixed["prefetch"].brings == ()
    assert fixed["prefetch"].reference == "baseline"
    assert fixed["baseline"].overrides == ("perf=baseline", "perf.pinned=true")


def test_a_switch_that_is_compared_has_the_users_value_where_it_is_on() -> None:
    made = arms("study=techniques", "perf.workers=14")
    assert made["baseline"].overrides == ("perf=baseline",)
    assert "perf.workers=14" in made["workers"].overrides
    assert "perf.workers=14" in made["all"].overrides
    assert "perf.workers=14" not in made["without_workers"].overrides


def test_in_company_what_the_missing_technique_needs_stays_on_both_sides() -> None:
    made = arms("study=techniques", "study.techniques=[prefetch,amp]")
    everything, without = made["all"].overrides, made["without_prefetch"].overrides
    assert made["without_prefetch"].reference == "all"
    assert set(everything) - set(without) == {"perf.prefetch=2"}
    assert "perf.pinned=true" in without
    assert set(everything) - set(made["without_amp"].overrides) == {"perf.amp=bf16"}


def test_in_company_what_needs_the_missing_technique_goes_on_both_sides() -> None:
    made = arms("study=techniques", "study.techniques=[prefetch,amp,pinned]")
    everything = set(made["all"].overrides)
    assert made["without_pinned"].reference == "without_prefetch"
    assert everything - set(made["without_prefetch"].overrides) == {"perf.prefetch=2"}
    assert everything - set(made["without_pinned"].overrides) == {"perf.prefetch=2", "perf.pinned=true"}


@pytest.mark.parametrize("kind", ["control", "arms"])
def test_without_techniques_to_compare_every_switch_is_in_every_arm(kind: str) -> None:
    named = ["+study.arms.best=[perf=all,perf.amp=fp32]"] if kind == "arms" else []
    made = arms(f"study={kind}", *named, "perf.workers=2", "perf.amp=bf16")
    assert (
        made["control"].overrides == made["baseline"].overrides == ("perf=baseline", "perf.amp=bf16", "perf.workers=2")
    )
    if named:  # the arm's own word comes last, and its group does not undo what is common
        assert made["best"].overrides == ("perf=all", "perf.amp=bf16", "perf.workers=2", "perf.amp=fp32")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("[perf.amp=bf16]", ["perf.amp=bf16"]),
        ("[perf.amp=bf16, perf=all]", ["perf.amp=bf16", "perf=all"]),
        ("['perf.amp=bf16',\"+a=b\"]", ["perf.amp=bf16", "+a=b"]),
        ("[optim.optimizer.betas=[0.9,0.95],+a={b:1,c:2}]", ["optim.optimizer.betas=[0.9,0.95]", "+a={b:1,c:2}"]),
        ("[perf.allocator='a:1,b:2',perf=all]", ["perf.allocator='a:1,b:2'", "perf=all"]),
    ],
)
def test_an_arm_is_written_without_quotes(written: str, meant: list[str]) -> None:
    (argument,) = with_arms_quoted([f"+study.arms.mine={written}"])
    parsed = OverridesParser.create().parse_overrides([argument])[0]
    assert parsed.get_key_element() == "+study.arms.mine"
    assert [str(one) if isinstance(one, str) else one.text for one in parsed.value()] == meant


def test_other_arguments_stay_as_they_are() -> None:
    given = ["perf.amp=bf16,fp32", "study.techniques=[amp,compile]", "+study.arms={a:[b]}", "data.x=[a=b]"]
    assert with_arms_quoted(given) == given


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    """A folder of configs with an experiment that sets switches of its own."""
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nperf:\n  workers: 3\n  channels_last: true\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    return f"hydra.searchpath=[file://{tmp_path}]"


def test_what_an_experiment_switches_on_is_off_in_the_baseline_where_it_is_compared(experiment: str) -> None:
    made = arms("experiment=mine", "study=techniques", "study.techniques=[amp,workers]", hydra=experiment)
    switches = {name: composed(arm, experiment) for name, arm in made.items()}
    assert {name: perf.workers for name, perf in switches.items()} == {
        **dict.fromkeys(("baseline", "control", "amp", "without_workers"), 0),
        **dict.fromkeys(("workers", "all", "without_amp"), 3),
    }
    assert all(perf.channels_last for perf in switches.values())
    assert made["amp"].reference == made["workers"].reference == "baseline"


@pytest.mark.parametrize("argument", ["perf=all", "name=mine", "perf.if_unavailable=skip"])
def test_what_a_study_decides_itself_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"a study decides .* itself"):
        arms("study=control", argument)


@pytest.mark.parametrize("argument", ["profile=trace", "study.arms.mine=[profile=trace]"])
def test_a_study_of_profiled_runs_is_refused(argument: str) -> None:
    kind = "arms" if argument.startswith("study") else "control"
    added = f"+{argument}" if argument.startswith("study") else argument
    with pytest.raises(ConfigError, match=r"^profile=trace would change what a study measures: leave it out"):
        looked_at((f"study={kind}", added), "hydra.job.chdir=false")


def test_a_mistake_in_an_arm_ends_the_study_before_it_begins() -> None:
    with pytest.raises(ConfigError, match=r"^in the study's arm prefetch: perf\.prefetch=-1 is too small"):
        arms("study=techniques", "study.techniques=[prefetch]", "perf.prefetch=-1")


def test_what_arms_compile_is_told_by_what_they_compose_to() -> None:
    same, other = "+study.arms.same=[perf=all,perf.log_every=5]", "+study.arms.other=[perf=all,perf.amp=fp16]"
    named = ("+study.arms.all=[perf=all]", same, other, "+study.arms.eager=[perf=all,perf.compile=eager]")
    compiling = looked_at(("study=arms", *named), "hydra.job.chdir=false")[1]
    assert list(compiling) == ["all", "same", "other"]
    assert compiling["same"] == compiling["all"] != compiling["other"]
