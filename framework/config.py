"""The schema of a run: typed sections and their defaults.

The dataclasses are the only source of defaults; the YAML files state what differs. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from framework.folder import claim

Component = dict[str, Any]  # `_target_` and the arguments of the class or function that it names


class Amp(Enum):
    """Precision of the forward and the loss."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Compile(Enum):
    """`eager`, or a mode of torch.compile (underscores for hyphens)."""

    eager = "eager"
    default = "default"
    reduce_overhead = "reduce_overhead"
    max_autotune = "max_autotune"
    max_autotune_no_cudagraphs = "max_autotune_no_cudagraphs"


class Attention(Enum):
    """Kernel of scaled_dot_product_attention; `auto` is torch's own choice."""

    auto = "auto"
    flash = "flash"
    efficient = "efficient"
    cudnn = "cudnn"
    math = "math"


class Schedule(Enum):
    """Course of the learning rate after its warm-up."""

    constant = "constant"
    cosine = "cosine"
    linear = "linear"
    one_cycle = "one_cycle"


class StartMethod(Enum):
    """How loader workers are started; `default` is Python's own choice."""

    default = "default"
    fork = "fork"
    spawn = "spawn"
    forkserver = "forkserver"


class Profile(Enum):
    """What is recorded of a few steady steps: time by torch.profiler, ranges for nsys and ncu, or GPU memory."""

    none = "none"
    trace = "trace"
    nvtx = "nvtx"
    memory = "memory"


class IfUnavailable(Enum):
    """What to do with a switch that this machine or run lacks: stop, or leave it out and list it."""

    error = "error"
    skip = "skip"


@dataclass
class Perf:
    """One scalar per technique; the defaults are PyTorch's own way, but that `tf32` is off for convolutions too."""

    workers: int = 0
    pinned: bool = False
    prefetch: int = 0
    batch_fetch: bool = False
    resident: bool = False
    amp: Amp = Amp.fp32
    tf32: bool = False
    log_every: int = 1
    allocator: str | None = None
    compile: Compile = Compile.eager
    channels_last: bool = False
    fused_optimizer: bool = False
    cudnn_benchmark: bool = False
    attention: Attention = Attention.auto
    activation_checkpoint: bool = False
    gc_freeze: bool = False
    if_unavailable: IfUnavailable = IfUnavailable.error


@dataclass
class Data:
    """The sets, how they are batched, and the facts about them that a model needs."""

    name: str = MISSING
    train: Component = MISSING
    eval: Any = None  # a component, or null; OmegaConf cannot give a null dict its first keys
    collate: Any = None  # likewise
    batch_size: int = 64
    eval_batch_size: int | None = None
    drop_last: bool = False
    seed_samples: bool = True  # seed Python, numpy and torch per sample; false for sets that draw nothing
    self_sharded: bool = False  # an iterable set that splits itself by get_worker_info()
    start_method: StartMethod = StartMethod.default
    worker_batches: int = 2  # batches that each worker keeps ready (the DataLoader's prefetch_factor)
    classes: int | None = None
    channels: int | None = None
    image_size: int | None = None
    context: int | None = None  # tokens in a row; set for text only
    vocab: int | None = None
    path: str | None = None
    count: int | None = None


@dataclass
class Optim:
    """The optimizer, and the course of its learning rate in optimizer steps."""

    optimizer: Component = MISSING
    lr: float = MISSING
    schedule: Schedule = Schedule.constant
    warmup_steps: int = 0


@dataclass
class Train:
    """Length and course of training. All intervals count optimizer steps."""

    epochs: int = 1
    max_steps: int | None = None  # decides alone where it is set
    accumulate: int = 1  # batches in a step; they lie on the device together
    clip_norm: float | None = None
    eval_every: int = 0  # 0: at the end only
    max_skipped_steps: int = 25  # this many fp16 steps skipped in a row end the run


@dataclass
class MeterSettings:
    """What the meter leaves out and looks into, and the peak that MFU is held against."""

    warmup_steps: int = 10
    budget: bool = True  # marks inside some steps tell what their parts take
    peak_tflops: float | None = None  # null: from the table of known devices


class StudyKind(Enum):
    """What a study compares: every technique, arms that the user names, or the baseline with itself."""

    techniques = "techniques"
    arms = "arms"
    control = "control"


class CompileCache(Enum):
    """`cold`: each run compiles anew; `warm`: one cache for the study, filled by unmeasured runs."""

    cold = "cold"
    warm = "warm"


@dataclass
class Study:
    """How techniques are compared. Used by `study=...` only."""

    kind: StudyKind = StudyKind.techniques
    techniques: list[str] | None = None  # null: those of perf=all; the others by name
    arms: dict[str, list[str]] = field(default_factory=dict)  # overrides of each arm, for study=arms
    controls: int = 4  # for study=control
    blocks: int = 5
    half_width: float | None = None  # add blocks until every interval is that narrow
    max_blocks: int = 20
    smallest_effect: float = 0.01
    confidence: float = 0.95
    compile_cache: CompileCache = CompileCache.cold
    seed: int = 0  # draws the order of the runs
    time_limit_s: float | None = None  # of one run


@dataclass
class Config:
    """One run."""

    name: str = "${data.name}"
    seed: int = 0
    device: str = "auto"
    model: Component = MISSING
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=Optim)
    objective: Component = field(default_factory=lambda: {"_target_": "framework.objective.Classification"})
    perf: Perf = field(default_factory=Perf)
    train: Train = field(default_factory=Train)
    meter: MeterSettings = field(default_factory=MeterSettings)
    study: Study = field(default_factory=Study)
    profile: Profile = Profile.none
    profile_steps: int = 5  # steps that a profile covers, after meter.warmup_steps and one of its own


TECHNIQUES = tuple(f.name for f in fields(Perf) if f.name != "if_unavailable")


def register() -> None:
    """Makes the schema and the run folder's resolver known to Hydra; twice does no harm."""
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("run_folder", claim, replace=True)
