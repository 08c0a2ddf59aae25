"""The schema, and the YAML that fills it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework import config, rules
from framework.config import Perf
from framework.environment import Machine
from framework.mistakes import ConfigError, explain

CONFIGS = Path(__file__).parents[1] / "configs"
GPU = Machine((2, 14), True, 1)
FACTS = {  # what an option leaves to the user
    "data": {
        "custom": ["data.train._target_=my_module.MySet", "model=custom", "model._target_=my_module.MyNet"],
        "imagefolder": ["data.path=x", "data.classes=2"],
        "torchvision": ["data.train.name=MNIST", "data.classes=10", "data.channels=1", "data.image_size=28"],
    },
    "model": {"custom": ["model._target_=my_module.MyNet"], "torchvision": ["model.name=resnet18"]},
    "optim": {"custom": ["optim.optimizer._target_=torch.optim.RMSprop", "optim.lr=0.1"]},
}
COMPOSING = (HydraException, OmegaConfBaseException, ValueError)
TEXT = ("gpt", "gpt2", "gpt_tiny", "stdlib_text", "synthetic_text")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    config.register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", list(overrides))


def walked(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, one in value.items():
            yield from walked(key, f"{path}.{key} (the key)")
            yield from walked(one, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from walked(one, f"{path}[{number}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from walked(getattr(value, f.name), f"{path}.{f.name}")


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in ("model", "data", "optim") for option in options(group)]
)
def test_every_option_settles(group: str, option: str) -> None:
    text = {"model": "data=stdlib_text", "data": "model=gpt"} if option in TEXT else {}
    raw = composed(f"{group}={option}", *FACTS[group].get(option, []), *([text[group]] if text else []))
    settled = rules.settle(raw, GPU)
    assert settled.left_out == {}
    assert settled.config.device == "cuda:0"


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_composes_and_names_itself(experiment: str) -> None:
    settled = rules.settle(composed(f"experiment={experiment}", "perf=all"), GPU)
    assert settled.config.name == experiment
    assert f"python train.py experiment={experiment}" in (CONFIGS / "experiment" / f"{experiment}.yaml").read_text()


def test_what_a_command_line_says_wins_over_an_experiment() -> None:
    settled = rules.settle(composed("experiment=gpt2", "train.max_steps=7", "optim.lr=0.5"), GPU)
    assert (settled.config.train.max_steps, settled.config.optim.lr) == (7, 0.5)
    assert settled.config.optim.optimizer["lr"] == 0.5


def test_the_defaults_of_a_switch_stand_in_the_schema_alone() -> None:
    assert rules.settle(composed(), GPU).requested == Perf()


def test_every_technique_is_one_scalar_whose_default_is_off() -> None:
    assert set(config.TECHNIQUES) == {f.name for f in fields(Perf)} - {"if_unavailable"}
    for name in config.TECHNIQUES:
        assert not rules.is_on(Perf(), name)
        assert isinstance(getattr(Perf(), name), bool | int | str | enum.Enum | None)


def test_no_word_of_the_schema_means_something_else_in_yaml() -> None:
    enums = [value for value in vars(config).values() if isinstance(value, type) and issubclass(value, enum.Enum)]
    words = [member.name for one in enums if one is not enum.Enum for member in one]
    assert len(words) > 15
    for word in words:
        assert OmegaConf.create(f"key: {word}").key == word


def test_registering_twice_does_no_harm() -> None:
    config.register()
    config.register()
    assert composed().perf.workers == 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["+optim.optimizer.betas=[0.9,0.95]", "model.channels=[8,16]", "perf.amp=bf16"],
        ["data=photos", "+data.train.stored.width=64", "data.collate={_target_:my_module.join,how:[1,{a:[2]}]}"],
    ],
)
def test_A09_a_settled_config_is_plain_python(overrides: list[str]) -> None:
    settled = rules.settle(composed(*overrides), GPU)
    kinds = {type(value).__module__ for _, value in walked(settled)}
    assert kinds == {"builtins", "framework.config", "framework.rules"}
    assert type(settled.config.data.train) is dict


def test_the_composed_config_keeps_what_was_asked() -> None:
    settled = rules.settle(composed("perf=all", "device=cpu"), Machine((2, 14), False, 0))
    assert settled.composed["perf"]["pinned"] is True
    assert settled.requested.pinned
    assert not settled.config.perf.pinned
    assert settled.composed["perf"]["amp"] == "bf16"


# Mistakes that are found while the config is composed and settled; tests/test_command_line.py sees them from outside


def mistake(line: str) -> str:
    """The sentence for an override, as `train.py` tells it."""
    with pytest.raises((ConfigError, *COMPOSING)) as raised:
        rules.settle(composed(*line.split(" ")), Machine((2, 14), True, 0))
    error = raised.value
    sentence = str(error) if isinstance(error, ConfigError) else explain(error)
    assert "\n" not in sentence
    return sentence


SENTENCES = {
    # misspelt keys: top level, nested, in components; with and without `+`
    "trian.max_steps=2": "trian is not a key: did you mean train?",
    "+trian.max_steps=2": "trian is not a key: did you mean train?",
    "++perf.ampp=bf16": "perf.ampp is not a key: did you mean amp?",
    "perf.ampp=bf16": "perf.ampp is not a key: did you mean amp?",
    "+meter.warmup_step=3": "meter.warmup_step is not a key: did you mean warmup_steps?",
    "data.batchsize=3": "data.batchsize is not a key: did you mean batch_size?",
    "optim.schedul=cosine": "optim.schedul is not a key: did you mean schedule?",
    "model.hiddn=3": "model.hiddn is not a key: did you mean hidden?",
    "data.train.trian=false": "data.train.trian is not a key: did you mean train?",
    "+data.eval.trian=false": "data.eval.trian is not an argument of framework.data.digits.Digits: did you mean train?",
    "+objective.labelsmoothing=0.1": "framework.objective.Classification: did you mean label_smoothing?",
    "data=photos +data.train.stored.widht=3": "data.train.stored.widht is not an argument of",
    # a key that exists elsewhere, or that its class takes but the config does not list
    "max_steps=3": "max_steps is not a key: did you mean train.max_steps?",
    "+batch_size=3": "batch_size is not a key: did you mean data.batch_size?",
    "lr=3": "lr is not a key: did you mean optim.lr?",
    "amp=bf16": "amp is not a key: did you mean perf.amp?",
    "optim.optimizer.betas=[0.9,0.95]": "to pass it to torch.optim.AdamW, write +optim.optimizer.betas=...",
    "data=custom data.eval._target_=x": "data.eval._target_ is not a key: to add it, write +data.eval._target_=...",
    # values
    "perf.amp=off": "perf.amp: Invalid value 'off', expected one of [fp32, bf16, fp16]",
    "perf.workers=many": "perf.workers: Value 'many' of type 'str' could not be converted to Integer",
    "optim.lr=${nope}": "Interpolation key 'nope' not found",
    "seed=${oc.env:NO_SUCH_VARIABLE}": "Environment variable 'NO_SUCH_VARIABLE' not found",
    "model.hidden=[1": "no viable alternative at input '[1'",
    # what is still to be given
    "data=custom model=custom": "model._target_ has no value: set it with model._target_=...",
    "data=torchvision": "data.train.name has no value: set it with data.train.name=...",
    "data=imagefolder model=custom model._target_=my_module.MyNet": "data.path has no value, and framework.data.image",
    "~model": "model has no value: set it with model=...",
    "~optim": "optim.optimizer has no value: set it with optim.optimizer=...",
    "model=gpt": "model.vocab takes data.vocab, which data=digits leaves null: set data.vocab=..., or choose a model",
    # a string, a list or null for a section
    "train=nonsense": "train is a section, not a value: set its keys, such as train.NAME=...",
    "meter=5": "meter is a section, not a value: set its keys, such as meter.NAME=...",
    "objective=nonsense": "objective is a section, not a value",
    "objective=[1]": "objective is a section, not a value",
    "data.train=nonsense": "data.train is a section, not a value",
    "data.collate=nonsense": "data.collate names no class: set data.collate._target_=module.Name.",
    "optim.optimizer=adam": "optim.optimizer is a section, not a value",
    "train=null": "train cannot be null: leave its override out.",
    "data.train=null": "data.train cannot be null: leave its override out.",
    "data=null": "a group cannot be null: leave its override out",
}


@pytest.mark.parametrize("line", SENTENCES)
def test_A08_a_mistake_is_told_with_its_key_and_the_fix(line: str) -> None:
    assert SENTENCES[line] in mistake(line)


@pytest.mark.parametrize("group", sorted(path.name for path in CONFIGS.iterdir() if path.is_dir()))
def test_A08_an_option_that_is_not_there_is_told_with_those_that_are(group: str) -> None:
    assert mistake(f"{group}=nonsense") == (
        f"{group}=nonsense is not an option: the options are {', '.join(options(group))}."
    )
