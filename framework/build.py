"""Config to Run: the one place that reads the switches. The order of the recipe is written once, in `build`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from framework import feed, first_layer, schedule
from framework.components import call, factory, make
from framework.config import Compile, Config, Data
from framework.data.loader import Loader, LoaderSettings
from framework.data.seeding import seed_process
from framework.draft import Draft
from framework.engine import Run
from framework.forward import ForwardLoss, Scores, forwards
from framework.losses import Losses
from framework.memory import Memory, source
from framework.meter import Meter, clock
from framework.mistakes import ConfigError
from framework.objective import Objective
from framework.records import RECORDS
from framework.report import Report, Sources
from framework.rules import Settled
from framework.summary import describe, write_unbuilt
from framework.switches import Switches
from framework.techniques import (
    allocator,
    amp,
    channels_last,
    cudnn_benchmark,
    fused_optimizer,
    log_every,
    pinned,
    prefetch,
    tf32,
    workers,
)
from framework.techniques import compile as compiling
from framework.transfer import Transfer
from framework.tree import Batch, shapes, tree_map
from framework.update import Parts, State, Window, make_update
from framework.utilisation import Utilisation, peak_tflops


def build(settled: Settled, folder: Path) -> Run:
    """Composes a run whose results go to `folder`. Errors: ConfigError for what turns out to be wrong only now."""
    try:
        return _build(settled, folder)
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(str(error)) from error
    except BaseException as error:
        write_unbuilt(folder, settled.config.name, settled.composed, error)
        raise


def _build(settled: Settled, folder: Path) -> Run:
    cfg, switches = settled.config, Switches(settled)
    device = torch.device(cfg.device)
    seed_process(cfg.seed)
    model, objective = make(cfg.model, "model"), make(cfg.objective, "objective")
    on_device = partial(_on_device, cfg, switches, model, objective)
    early = on_device() if device.type == "cpu" else None  # what is lacking is told before data are read, but
    loader, held_out = _loaders(cfg, switches, model)  # workers are forked before this process computes on a GPU
    draft = early or on_device()
    steps = feed.total_steps(loader.batches, cfg.train.accumulate, cfg.train.epochs, cfg.train.max_steps)
    state = _state(draft, steps)
    forward_loss, scores = _step(draft)
    meter, memory = Meter(clock(device), cfg.meter.warmup_steps), Memory(source(device), cfg.meter.warmup_steps)
    losses = Losses(device)
    switches.evidence["log_every"] = lambda: log_every.evidence(losses.host_reads, meter.steps)
    utilisation = Utilisation(cfg.meter.peak_tflops or peak_tflops(device, draft.dtype, cfg.perf.tf32))
    placing = _placing(draft)
    place = placing()
    windows = feed.windows(loader, cfg.train.accumulate, cfg.train.epochs, cfg.train.max_steps)
    sources = Sources(state, losses, meter, memory, utilisation, partial(switches.table, RECORDS), steps)
    summary = describe(cfg.name, settled.composed, model, device)
    parts = Parts(forward_loss, objective.count, amp.step, cfg.train.clip_norm, cfg.train.max_skipped_steps)
    return Run(
        windows=lambda: feed.shown_first(place(windows), _first_batch(draft, meter, utilisation)),
        held_out=None if held_out is None else partial(feed.single, placing(), held_out),
        update=make_update(state, parts),
        scores=scores,
        count=objective.count,
        work=partial(feed.work, cfg.data.context or 0),
        state=state,
        losses=losses,
        meter=meter,
        memory=memory,
        report=Report(folder, OmegaConf.to_yaml(settled.composed), summary, sources),
        log_due=log_every.cadence(cfg.perf.log_every),
        evaluation_due=lambda step: cfg.train.eval_every > 0 and step % cfg.train.eval_every == 0,
    )


def _loaders(cfg: Config, switches: Switches, model: nn.Module) -> tuple[Loader, Loader | None]:
    """Loaders of the training set and of the held-out set, their workers running.

    With perf.pinned CUDA is touched as soon as the first loader starts, so the second's workers are forked after that.
    """
    data, perf, device = cfg.data, cfg.perf, torch.device(cfg.device)
    asked = (data.worker_batches, data.start_method) != (Data.worker_batches, Data.start_method)
    options = workers.options(perf.workers, data.worker_batches, data.start_method.name, asked)
    options |= pinned.options() if perf.pinned else {}
    function = factory(data.collate, "data.collate") if data.collate else None
    settings = LoaderSettings(
        name="data.train",
        batch_size=data.batch_size,
        seed=cfg.seed,
        shuffle=True,
        drop_last=data.drop_last,
        drop_single=any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()),
        seed_samples=data.seed_samples,
        self_sharded=data.self_sharded,
        options=options,
    )
    if perf.pinned and device.index:
        _enter(device)  # before any fork: the pinning thread begins with the loader, on the GPU that is current then
    loader = Loader(make(data.train, "data.train"), settings, function)
    switches.evidence["workers"] = lambda: workers.evidence(loader.processes, os.getpid())
    loader.start()
    if data.eval is None:
        return loader, None
    size = data.eval_batch_size or data.batch_size
    settings = replace(settings, name="data.eval", batch_size=size, shuffle=False, drop_last=False, drop_single=False)
    held_out = Loader(make(data.eval, "data.eval"), settings, function)
    held_out.start()
    return loader, held_out


def _enter(device: torch.device) -> None:
    """Makes a GPU the current one, as compiled kernels, events and the pinning thread need it."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={device} does not start: its driver may be too old for this torch; set device=cpu.")
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _on_device(cfg: Config, switches: Switches, model: nn.Module, objective: Objective) -> Draft:
    """Sets the flags of the process, tries what may be lacking, then moves the model to its device in its format."""
    perf, device = cfg.perf, torch.device(cfg.device)
    _enter(device)
    tf32.apply(perf.tf32)
    cudnn_benchmark.apply(perf.cudnn_benchmark)
    switches.evidence |= {"tf32": tf32.evidence, "cudnn_benchmark": cudnn_benchmark.evidence}
    if (asked := perf.allocator) is not None:
        switches.evidence["allocator"] = lambda: allocator.evidence(asked)
    switches.offered("compile", lambda: compiling.probe(device), None)
    switches.offered("amp", lambda: amp.check(amp.DTYPES[perf.amp.name], device), None)
    if perf.channels_last:
        model = channels_last.convert_model(model)
    dtype = amp.DTYPES[perf.amp.name]
    model, make_optimizer = model.to(device), factory(cfg.optim.optimizer, "optim.optimizer")
    fused = partial(fused_optimizer.arguments, make_optimizer, device, {p.dtype for p in model.parameters()})
    make_optimizer = partial(make_optimizer, **switches.offered("fused_optimizer", fused, dict[str, Any]()))
    return Draft(cfg, switches, device, model, objective, make_optimizer, dtype, amp.autocasts(dtype, device))


def _state(draft: Draft, steps: int | None) -> State:
    """Model, optimizer, schedule and scaler."""
    cfg, device = draft.cfg, draft.device
    optimizer = call(draft.make_optimizer, "optim.optimizer", draft.model.parameters())
    draft.switches.evidence["fused_optimizer"] = lambda: fused_optimizer.evidence(optimizer)
    course = schedule.factor(cfg.optim.schedule.name, cfg.optim.warmup_steps, steps)
    return State(draft.model, optimizer, LambdaLR(optimizer, course), amp.scaler(draft.dtype, device))


def _step(draft: Draft) -> tuple[ForwardLoss, Scores]:
    """Forward and loss for training, and the scores for evaluation."""
    forward_loss, scores = forwards(draft.model, draft.objective, draft.autocasts)
    if (mode := draft.cfg.perf.compile) is Compile.eager:
        return forward_loss, scores
    compiled = compiling.Compiled(forward_loss, mode.name, shapes)
    draft.switches.evidence["compile"] = lambda: compiling.evidence(compiled)
    return compiled, compiling.Compiled(scores, mode.name, shapes)


def _placing(draft: Draft) -> Callable[[], Callable[[Iterator[Window]], Iterator[Window]]]:
    """Makes iterators around iterators of windows that bring them to the device; one for each loader."""
    perf, switches = draft.cfg.perf, draft.switches
    transfer = Transfer(draft.device, asynchronous=perf.pinned)
    switches.evidence["pinned"] = lambda: pinned.evidence(transfer.pinned, transfer.pageable)

    def move(window: Window) -> Window:
        placed: Window = transfer(window)
        return list(tree_map(channels_last.convert, placed)) if perf.channels_last else placed

    def placing() -> Callable[[Iterator[Window]], Iterator[Window]]:
        if not perf.prefetch:
            return partial(map, move)
        ahead = prefetch.Prefetch(perf.prefetch, draft.device, move)
        switches.evidence.setdefault("prefetch", lambda: prefetch.evidence(ahead))  # the first made is that of training
        return ahead

    return placing


def _first_batch(draft: Draft, meter: Meter, utilisation: Utilisation) -> Callable[[Batch], None]:
    """What is done with the first batch, outside the meter: its arithmetic is counted, two rows kept as evidence."""
    cfg, switches = draft.cfg, draft.switches

    def seen(batch: Batch) -> None:
        with meter.paused():
            kept = first_layer.sample(batch)
            utilisation.count(lambda: make(cfg.model, "model"), draft.objective, batch)

        forward = partial(draft.objective.loss, draft.model, kept)
        layer = cache(partial(first_layer.look, draft.model, forward, draft.autocasts))
        switches.evidence["amp"] = lambda: amp.evidence(draft.dtype, layer().dtype)
        switches.evidence["channels_last"] = lambda: channels_last.evidence(layer().strides)

    return seen
