"""One sentence for each mistake: the key, the nearest name, the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hydra
import pytest
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from framework.mistakes import ConfigError, explain, nearest, told_while_composing, unknown_argument


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_step", "did you mean max_steps?"),
        ("epoch", "did you mean epochs?"),
        ("lr", "did you mean optim.lr?"),
        ("batchsize", "did you mean data.batch_size?"),
        ("zzz", "known are epochs, max_steps."),
    ],
)
def test_the_nearest_name_is_named(name: str, words: str) -> None:
    assert nearest(name, {"max_steps", "epochs"}, ["data", "data.batch_size", "optim.lr", "train.max_steps"]) == words


def test_a_name_beside_comes_before_one_elsewhere() -> None:
    assert nearest("lr", ["lrs"], ["optim.lr"]) == "did you mean lrs?"
    assert nearest("name", [], ["name", "data.name"]) == "did you mean name?"


def test_an_unknown_argument_names_its_target() -> None:
    sentence = unknown_argument("model.hiddn", "models.convnet.ConvNet", ["hidden", "channels"])
    assert sentence == "model.hiddn is not an argument of models.convnet.ConvNet: did you mean hidden?"


def failing(change: Callable[[DictConfig], Any], **config: Any) -> OmegaConfBaseException:
    node = OmegaConf.create(config)
    OmegaConf.set_struct(node, True)
    with pytest.raises(OmegaConfBaseException) as raised:
        change(node)
    return raised.value


def test_a_missing_value_is_named() -> None:
    error = failing(lambda node: node.a, a="${b.c}", b={"c": "???"})
    assert explain(error) == "b.c has no value: set it with b.c=..."


def test_an_unknown_option_lists_the_options() -> None:
    error = MissingConfigException("In 'config': ...", "model/resnt18", ["vit", "resnet18"])
    assert explain(error) == "model=resnt18 is not an option: did you mean resnet18? The options are resnet18, vit."
    error = MissingConfigException("In 'config': ...", "model/zzz", ["vit", "resnet18"])
    assert explain(error) == "model=zzz is not an option: the options are resnet18, vit."


def test_a_missing_file_without_options_is_told_as_it_is() -> None:
    assert explain(MissingConfigException("no\n  such file", "x", None)) == "no such file"


def test_a_key_that_a_class_may_take_is_offered_with_a_plus() -> None:
    cause = failing(lambda node: node.optimizer.betas, optimizer={"_target_": "torch.optim.AdamW", "lr": 1})
    assert isinstance(cause, ConfigKeyError | AttributeError)
    error = ConfigCompositionException("Could not override 'optimizer.betas'.")
    error.__cause__ = cause
    assert (
        explain(error)
        == "optimizer.betas is not set so far: to pass it to torch.optim.AdamW, write +optimizer.betas=..."
    )


def test_a_key_of_an_empty_section_is_offered_with_a_plus() -> None:
    assert explain(failing(lambda node: node.a.b, a={})) == "a.b is not a key: to add it, write +a.b=..."


def test_a_null_group_is_told() -> None:
    error = ValueError("Config group override must be a string or a list. Got NoneType")
    assert explain(error).startswith("a group cannot be null: leave its override out")


@pytest.mark.parametrize("error", [ValueError("a\n b"), OSError(2, "No such file"), HydraException("a\tb")])
def test_any_other_error_becomes_one_line(error: Exception) -> None:
    assert "\n" not in explain(error)
    assert explain(error)


# What is told, and what is a crash


def job() -> None:
    raise error_to_raise


error_to_raise: Exception = ValueError("mine")


def raised_by(call: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call()
    return raised.value


@pytest.mark.parametrize("kind", [ValueError, OSError, HydraException, OmegaConfBaseException, ConfigError, KeyError])
def test_an_error_of_the_job_itself_is_a_crash(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "error_to_raise", kind("of a user's own code"))
    assert not told_while_composing(raised_by(job), job)
    decorated = hydra.main(version_base="1.3", config_path=None)(job)
    assert not told_while_composing(raised_by(job), decorated)


def composing() -> None:
    raise error_to_raise


@pytest.mark.parametrize("kind", [ValueError, OSError, HydraException, OmegaConfBaseException])
def test_an_error_before_the_job_is_told(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "error_to_raise", kind("of an override"))
    decorated = hydra.main(version_base="1.3", config_path=None)(job)
    assert told_while_composing(raised_by(composing), decorated)


@pytest.mark.parametrize("kind", [ValueError, OSError])
def test_a_crash_of_our_own_code_before_the_job_is_a_crash(kind: type[Exception]) -> None:
    def ours() -> None:
        exec("raise error", {"__name__": "framework.study.study", "error": kind("a bug")})

    def theirs() -> None:
        exec("raise error", {"__name__": "hydra._internal", "error": kind("a mistake")})

    assert not told_while_composing(raised_by(ours), job)
    assert told_while_composing(raised_by(theirs), job)


def test_a_mistake_found_by_a_sweep_is_told_as_it_is() -> None:
    def ours() -> None:
        raise ConfigError("study.blocks=0: use 1 or more.") from failing(lambda node: node.a, a="???")

    assert told_while_composing(raised_by(ours), job)
    assert explain(raised_by(ours)) == "study.blocks=0: use 1 or more."


@pytest.mark.parametrize("kind", [KeyError, RuntimeError, AssertionError])
def test_a_fault_of_the_front_door_is_a_crash(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "error_to_raise", kind("of ours"))
    assert not told_while_composing(raised_by(composing), job)
