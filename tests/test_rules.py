"""Which values and combinations make sense, told before torch is imported."""

from __future__ import annotations

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from framework import config, rules
from framework.config import Amp, Compile, IfUnavailable, Perf
from framework.environment import Machine
from framework.mistakes import ConfigError, LackError
from framework.rules import Settled

CONFIGS = str(Path(__file__).parents[1] / "configs")
GPU, TWO_GPUS = Machine((2, 14), True, 1), Machine((2, 14), True, 2)
CPU, CPU_BUILD = Machine((2, 14), True, 0), Machine((2, 14), False, 1)


@pytest.fixture(scope="module")
def base() -> DictConfig:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        return compose("config", [])


def settled(base: DictConfig, machine: Machine = GPU, **changes: Any) -> Settled:
    """The default config with `changes`; `__` stands for a dot."""
    raw = copy.deepcopy(base)
    OmegaConf.set_struct(raw, False)
    for key, value in changes.items():
        OmegaConf.update(raw, key.replace("__", "."), value, force_add=True)
    return rules.settle(raw, machine)


def refused(base: DictConfig, machine: Machine = GPU, **changes: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        settled(base, machine, **changes)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


SMALLEST = {
    "data__batch_size": 1,
    "data__eval_batch_size": 1,
    "data__worker_batches": 1,
    "train__epochs": 1,
    "train__max_steps": 1,
    "train__accumulate": 1,
    "train__eval_every": 0,
    "train__max_skipped_steps": 1,
    "optim__warmup_steps": 0,
    "meter__warmup_steps": 1,
    "profile_steps": 1,
    "perf__workers": 0,
    "perf__prefetch": 0,
    "perf__log_every": 0,
    "seed": 0,
}


@pytest.mark.parametrize(("key", "least"), SMALLEST.items())
def test_a_number_that_is_too_small_is_refused(base: DictConfig, key: str, least: int) -> None:
    dotted = key.replace("__", ".")
    assert refused(base, **{key: least - 1}) == f"{dotted}={least - 1} is too small: use {least} or more."
    settled(base, **{key: least})


def test_a_seed_that_no_generator_takes_is_refused(base: DictConfig) -> None:
    assert refused(base, seed=2**64) == f"seed={2**64} is too large: use {2**64 - 1} or less."
    assert settled(base, seed=2**64 - 1).config.seed == 2**64 - 1


@pytest.mark.parametrize("key", ["train__clip_norm", "meter__peak_tflops"])
def test_a_limit_of_nothing_is_refused(base: DictConfig, key: str) -> None:
    for value in (0.0, -1.0, float("nan")):
        assert "must be above 0: use null" in refused(base, **{key: value})
    settled(base, **{key: 0.5})


@pytest.mark.parametrize(
    ("asked", "machine", "device"),
    [
        ("auto", GPU, "cuda:0"),
        ("auto", CPU, "cpu"),
        ("auto", CPU_BUILD, "cpu"),
        ("cpu", GPU, "cpu"),
        ("cuda", GPU, "cuda:0"),
        ("cuda:1", TWO_GPUS, "cuda:1"),
    ],
)
def test_the_device_is_settled(base: DictConfig, asked: str, machine: Machine, device: str) -> None:
    assert settled(base, machine, device=asked).config.device == device


@pytest.mark.parametrize(
    ("asked", "machine", "words"),
    [
        ("cuda", CPU, "this machine shows 0 GPU(s)"),
        ("cuda:1", GPU, "this machine shows 1 GPU(s)"),
        ("cuda", CPU_BUILD, "needs a CUDA build of torch"),
        ("cuda:x", GPU, "is not a device: use auto, cpu, cuda or cuda:N."),
        ("cuda:-1", GPU, "is not a device"),
        ("mps", GPU, "is not a device"),
        ("", GPU, "is not a device"),
    ],
)
def test_a_device_that_is_not_here_is_refused(base: DictConfig, asked: str, machine: Machine, words: str) -> None:
    sentence = refused(base, machine, device=asked)
    assert sentence.startswith(f"device={asked} ")
    assert words in sentence


# Switches and what they need: every rule, refused and left out


ON: dict[str, Any] = {
    "pinned": True,
    "prefetch": 2,
    "tf32": True,
    "allocator": "expandable_segments:True",
    "cudnn_benchmark": True,
    "amp": "fp16",
    "compile": "reduce_overhead",
    "attention": "efficient",
}


def test_a_lack_and_a_mistake_end_with_different_codes(base: DictConfig) -> None:
    with pytest.raises(LackError) as lack:
        settled(base, CPU, perf__tf32=True)
    with pytest.raises(ConfigError) as mistake:
        settled(base, CPU, seed=-1)
    assert (lack.value.exit_code, mistake.value.exit_code) == (3, 2)


def test_the_cases_below_cover_every_rule() -> None:
    assert {rule.switch for rule in rules.RULES} == {*ON, *OF_THE_SET}


OF_THE_SET = ("batch_fetch", "resident")


@pytest.mark.parametrize("switch", OF_THE_SET)
@pytest.mark.parametrize(
    ("data", "needs"),
    [
        ({"data__seed_samples": True}, "needs data.seed_samples=false, as "),
        ({"data__collate": {"_target_": "some.where.collate"}}, "needs data.collate=null, "),
    ],
)
@pytest.mark.parametrize("machine", [CPU, GPU])
def test_a_switch_that_needs_a_set_of_its_kind_is_refused_or_left_out(
    base: DictConfig, switch: str, data: dict[str, Any], needs: str, machine: Machine
) -> None:
    off: dict[str, Any] = {"data__seed_samples": False, "data__collate": None}
    asked: dict[str, Any] = {f"perf__{switch}": True}
    assert refused(base, machine, **asked, **(off | data)).startswith(f"perf.{switch}=true {needs}")
    done = settled(base, machine, **asked, **(off | data), perf__if_unavailable="skip")
    assert list(done.left_out) == [switch]
    assert settled(base, machine, **asked, **off).left_out == {}


@pytest.mark.parametrize(("switch", "value"), ON.items())
def test_a_switch_that_needs_cuda_is_refused_on_the_cpu(base: DictConfig, switch: str, value: Any) -> None:
    spelt = rules.spell(value)
    sentence = refused(base, CPU, **{f"perf__{switch}": value})
    assert sentence.startswith(f"perf.{switch}={spelt} ")
    assert "this run is on the CPU" in sentence
    off = rules.spell(getattr(Perf(), switch))
    assert sentence.endswith(f": set perf.{switch}={off}, or perf.if_unavailable=skip to leave it out.")


@pytest.mark.parametrize(("switch", "value"), ON.items())
def test_a_switch_that_needs_cuda_is_left_out_and_listed_where_that_is_allowed(
    base: DictConfig, switch: str, value: Any
) -> None:
    done = settled(base, CPU, **{f"perf__{switch}": value, "perf__if_unavailable": "skip"})
    assert list(done.left_out) == [switch]
    assert "CPU" in done.left_out[switch]
    assert not rules.is_on(done.config.perf, switch)
    assert rules.is_on(done.requested, switch)
    others = [f.name for f in fields(Perf) if f.name not in (switch, "if_unavailable")]
    assert all(getattr(done.config.perf, name) == getattr(Perf(), name) for name in others)


@pytest.mark.parametrize(("switch", "value"), ON.items())
def test_the_same_switch_stays_on_a_gpu(base: DictConfig, switch: str, value: Any) -> None:
    done = settled(base, GPU, **{f"perf__{switch}": value, "perf__pinned": True})
    assert done.left_out == {}
    assert done.config.perf == done.requested
    assert rules.is_on(done.config.perf, switch)


def test_C06_prefetch_without_pinning_is_refused_with_both_keys(base: DictConfig) -> None:
    sentence = refused(base, GPU, perf__prefetch=2)
    assert sentence.startswith("perf.prefetch=2 needs perf.pinned=true")
    assert settled(base, GPU, perf__prefetch=2, perf__if_unavailable="skip").config.perf.prefetch == 0


@pytest.mark.parametrize("mode", ["reduce_overhead", "max_autotune"])
def test_E03_recorded_graphs_with_accumulation_are_refused_with_both_keys(base: DictConfig, mode: str) -> None:
    sentence = refused(base, GPU, perf__compile=mode, train__accumulate=4)
    assert sentence.startswith(f"perf.compile={mode} records CUDA graphs")
    assert "train.accumulate" in sentence
    left_out = settled(base, GPU, perf__compile=mode, train__accumulate=4, perf__if_unavailable="skip").left_out
    assert list(left_out) == ["compile"]
    settled(base, GPU, perf__compile=mode)
    for other in ("default", "max_autotune_no_cudagraphs"):
        settled(base, GPU, perf__compile=other, train__accumulate=4)


@pytest.mark.parametrize(
    "changes",
    [
        {"perf__amp": "bf16"},
        {"perf__compile": "default"},
        {"perf__channels_last": True},
        {"perf__attention": "flash"},
        {"perf__attention": "math"},
    ],
)
def test_what_works_on_the_cpu_is_let_pass(base: DictConfig, changes: dict[str, Any]) -> None:
    assert settled(base, CPU, **changes).left_out == {}


def test_D05_fp16_on_the_cpu_never_passes_for_fp16(base: DictConfig) -> None:
    assert "perf.amp=bf16 works there" in refused(base, CPU, perf__amp="fp16")
    done = settled(base, CPU, perf__amp="fp16", perf__if_unavailable="skip")
    assert (done.requested.amp, done.config.perf.amp) == (Amp.fp16, Amp.fp32)


def test_settling_leaves_the_request_as_it_was(base: DictConfig) -> None:
    done = settled(base, CPU, perf__compile="max_autotune", perf__if_unavailable="skip")
    assert done.requested.compile is Compile.max_autotune
    assert done.config.perf.compile is Compile.eager
    assert done.config.perf.if_unavailable is IfUnavailable.skip
    assert done.composed["perf"]["compile"] == "max_autotune"


@pytest.mark.parametrize(
    ("value", "spelt"), [(None, "null"), (True, "true"), (False, "false"), (2, "2"), (Amp.bf16, "bf16"), ("a:b", "a:b")]
)
def test_values_are_spelt_as_on_a_command_line(value: Any, spelt: str) -> None:
    assert rules.spell(value) == spelt


# Keys and components


def test_a_key_that_was_added_is_refused(base: DictConfig) -> None:
    assert refused(base, perf__ampp=1) == "perf.ampp is not a key: did you mean amp?"
    assert refused(base, mode="x") == "mode is not a key: did you mean model?"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model__hiddn": 3}, "model.hiddn is not an argument of models.convnet.ConvNet: did you mean hidden?"),
        ({"optim__optimizer__bettas": 1}, "did you mean betas?"),
        (
            {"data__train__sed": 1},
            "data.train.sed is not an argument of framework.data.digits.Digits: did you mean seed?",
        ),
        ({"data__eval__sed": 1}, "data.eval.sed is not an argument"),
        ({"data__collate": {"_target_": "framework.data.images.normaliser", "chanels": 1}}, "did you mean channels?"),
        ({"model__in_channels": {"_target_": "models.vit.ViT", "widht": 1}}, "model.in_channels.widht is not"),
    ],
)
def test_an_argument_that_no_class_takes_is_refused(base: DictConfig, changes: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(base, **changes)


def test_arguments_of_hydra_itself_and_of_unknown_classes_pass(base: DictConfig) -> None:
    settled(base, model___convert_="all", data__train={"_target_": "some.where.MySet", "anything": 1})


@pytest.mark.parametrize(
    "key", ["model", "data__train", "data__eval", "data__collate", "optim__optimizer", "objective"]
)
def test_a_component_without_a_class_is_refused(base: DictConfig, key: str) -> None:
    dotted = key.replace("__", ".")
    raw = copy.deepcopy(base)
    OmegaConf.update(raw, dotted, {"a": 1}, merge=False, force_add=True)
    with pytest.raises(ConfigError, match=rf"^{dotted} names no class: set {dotted}\._target_=module\.Name\.$"):
        rules.settle(raw, GPU)


def test_a_fact_that_the_data_lack_is_named(base: DictConfig) -> None:
    assert refused(base, data__channels=None) == (
        "model.in_channels takes data.channels, which data=digits leaves null: set data.channels=..., or choose a "
        "model for this kind of data."
    )


def test_a_path_that_a_set_needs_is_named(base: DictConfig) -> None:
    folder = {"_target_": "framework.data.imagefolder.ImageFolder", "path": "${data.path}", "classes": "${data.count}"}
    assert refused(base, data__train=folder).startswith("data.path has no value")
    settled(base, data__train=folder, data__path="x")  # `classes` may be null


def test_a_reference_that_leads_nowhere_is_told(base: DictConfig) -> None:
    assert "Interpolation key 'nope' not found" in refused(base, optim__lr="${nope}")


def test_F03_a_malformed_allocator_setting_is_told_before_the_machine_is_asked(base: DictConfig) -> None:
    for machine in (GPU, CPU):
        sentence = refused(base, machine, perf__allocator="expandable_segments:Ture", perf__if_unavailable="skip")
        assert sentence.startswith("perf.allocator=expandable_segments:Ture: 'expandable_segments:Ture' should read")
