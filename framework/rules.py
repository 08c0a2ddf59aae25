"""The rules of a run: which values and combinations make sense, and what this machine lacks for them.

Nothing here imports torch, so that a user's mistake is answered at once, in a sentence that names the key and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework import composed
from framework.config import Amp, Attention, Compile, Config, IfUnavailable, Perf, Profile
from framework.environment import Machine, allocator_fault
from framework.mistakes import ConfigError, LackError, explain

MOST_SEED = 2**64 - 1  # what torch's generators take


@dataclass(frozen=True)
class Settled:
    """A checked config: `config.perf` is what will be tried; `left_out` says why a requested switch is not."""

    config: Config
    composed: dict[str, Any]  # as plain values, before anything was left out
    requested: Perf
    left_out: dict[str, str]


@dataclass(frozen=True)
class Rule:
    """What a switch needs. `broken` is asked only while the switch is on."""

    switch: str
    broken: Callable[[Config], bool]
    says: str


def is_on(perf: Perf, switch: str) -> bool:
    """Whether `switch` differs from its off value."""
    return bool(getattr(perf, switch) != getattr(Perf(), switch))


def _on_cpu(cfg: Config) -> bool:
    return cfg.device == "cpu"


def _records_graphs(cfg: Config) -> bool:
    return cfg.perf.compile in (Compile.reduce_overhead, Compile.max_autotune)


RULES = (
    *(
        Rule(switch, _on_cpu, "needs a CUDA device and this run is on the CPU")
        for switch in ("pinned", "prefetch", "tf32", "allocator", "cudnn_benchmark")
    ),
    Rule("prefetch", lambda cfg: not cfg.perf.pinned, "needs perf.pinned=true, else its copies cannot overlap"),
    *(
        Rule(switch, lambda cfg: cfg.data.seed_samples, f"needs data.seed_samples=false, {why}")
        for switch, why in {
            "batch_fetch": "as the samples of a batch that is made at once cannot be seeded one by one",
            "resident": "as samples that draw random numbers must be read anew in each epoch",
        }.items()
    ),
    *(
        Rule(switch, lambda cfg: cfg.data.collate is not None, "needs data.collate=null, which alone makes the batches")
        for switch in ("batch_fetch", "resident")
    ),
    Rule(
        "amp",
        lambda cfg: cfg.perf.amp is Amp.fp16 and _on_cpu(cfg),
        "needs a CUDA device and this run is on the CPU (perf.amp=bf16 works there)",
    ),
    Rule(
        "attention",
        lambda cfg: cfg.perf.attention in (Attention.efficient, Attention.cudnn) and _on_cpu(cfg),
        "needs a CUDA device and this run is on the CPU (perf.attention=flash and math work there)",
    ),
    Rule(
        "compile",
        lambda cfg: _records_graphs(cfg) and _on_cpu(cfg),
        "records CUDA graphs and this run is on the CPU (perf.compile=default works there)",
    ),
    Rule(
        "compile",
        lambda cfg: _records_graphs(cfg) and cfg.train.accumulate > 1,
        "records CUDA graphs, which give wrong gradients with train.accumulate above 1 "
        "(perf.compile=default and max_autotune_no_cudagraphs work with it)",
    ),
)


def settle(raw: DictConfig, machine: Machine) -> Settled:
    """Checks a composed config and turns it into plain typed Python.

    Errors: ConfigError for a value out of range or a switch that this run lacks, unless
    `perf.if_unavailable=skip` leaves that switch out.
    """
    try:
        for fault in composed.faults(raw):
            raise ConfigError(fault)
        cfg, plain = OmegaConf.to_object(raw), OmegaConf.to_container(raw, resolve=True, enum_to_str=True)
    except OmegaConfBaseException as error:  # a reference that leads nowhere
        raise ConfigError(explain(error)) from error
    assert isinstance(cfg, Config)
    assert isinstance(plain, dict)
    for fault in _faults(cfg):
        raise ConfigError(fault)
    cfg.device = _device(cfg.device, machine)
    if cfg.profile in (Profile.nvtx, Profile.memory) and _on_cpu(cfg):
        raise LackError(
            f"profile={cfg.profile.name} needs a CUDA device and this run is on the CPU: set profile=none "
            "(profile=trace works there)."
        )
    requested, left_out = replace(cfg.perf), dict[str, str]()
    for rule in RULES:
        if not is_on(cfg.perf, rule.switch) or not rule.broken(cfg):
            continue
        refuse(cfg.perf, rule.switch, rule.says)
        left_out[rule.switch] = rule.says
    return Settled(cfg, {str(key): value for key, value in plain.items()}, requested, left_out)


def refuse(perf: Perf, switch: str, why: str) -> None:
    """Switches `switch` off where `perf.if_unavailable=skip` allows it, else raises LackError."""
    asked = f"perf.{switch}={spell(getattr(perf, switch))}"
    if perf.if_unavailable is IfUnavailable.error:
        off = spell(getattr(Perf(), switch))
        raise LackError(f"{asked} {why}: set perf.{switch}={off}, or perf.if_unavailable=skip to leave it out.")
    setattr(perf, switch, getattr(Perf(), switch))


def spell(value: Any) -> str:
    """A value as a command line would spell it."""
    if isinstance(value, Enum):
        return value.name
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def _device(asked: str, machine: Machine) -> str:
    """'cpu' or 'cuda:N'. Errors: ConfigError where the device does not exist here."""
    if asked == "auto":
        return "cuda:0" if machine.gpus and machine.cuda_build else "cpu"
    if asked == "cpu":
        return asked
    kind, _, number = asked.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ConfigError(f"device={asked} is not a device: use auto, cpu, cuda or cuda:N.")
    if not machine.cuda_build:
        raise ConfigError(f"device={asked} needs a CUDA build of torch and this one has none: set device=cpu.")
    if int(number or 0) >= machine.gpus:
        raise ConfigError(
            f"device={asked} is not here: this machine shows {machine.gpus} GPU(s); set device=cpu or auto."
        )
    return f"cuda:{int(number or 0)}"


def _too_small(cfg: Config) -> Iterator[str]:
    least = {
        "data.batch_size": (cfg.data.batch_size, 1),
        "data.eval_batch_size": (cfg.data.eval_batch_size, 1),
        "data.worker_batches": (cfg.data.worker_batches, 1),
        "train.epochs": (cfg.train.epochs, 1),
        "train.max_steps": (cfg.train.max_steps, 1),
        "train.accumulate": (cfg.train.accumulate, 1),
        "train.eval_every": (cfg.train.eval_every, 0),
        "train.max_skipped_steps": (cfg.train.max_skipped_steps, 1),
        "optim.warmup_steps": (cfg.optim.warmup_steps, 0),
        "meter.warmup_steps": (cfg.meter.warmup_steps, 1),
        "profile_steps": (cfg.profile_steps, 1),
        "perf.workers": (cfg.perf.workers, 0),
        "perf.prefetch": (cfg.perf.prefetch, 0),
        "perf.log_every": (cfg.perf.log_every, 0),
        "seed": (cfg.seed, 0),
    }
    yield from (
        f"{key}={value} is too small: use {low} or more."
        for key, (value, low) in least.items()
        if value is not None and value < low
    )


def _faults(cfg: Config) -> Iterator[str]:
    """Sentences about values that no machine could run."""
    yield from _too_small(cfg)
    if cfg.seed > MOST_SEED:
        yield f"seed={cfg.seed} is too large: use {MOST_SEED} or less."
    for key, number in {"train.clip_norm": cfg.train.clip_norm, "meter.peak_tflops": cfg.meter.peak_tflops}.items():
        if number is not None and not number > 0:
            yield f"{key}={number} must be above 0: use null to switch it off."
    sections = {
        "model": cfg.model,
        "data.train": cfg.data.train,
        "optim.optimizer": cfg.optim.optimizer,
        "objective": cfg.objective,
        "data.eval": cfg.data.eval,
        "data.collate": cfg.data.collate,
    }
    for key, component in sections.items():
        if component is not None and not (isinstance(component, dict) and component.get("_target_")):
            yield f"{key} names no class: set {key}._target_=module.Name."
    if cfg.perf.allocator is not None and (fault := allocator_fault(cfg.perf.allocator)):
        yield f"perf.allocator={cfg.perf.allocator}: {fault}"
