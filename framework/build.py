"""Config to Run. With its stages the one place that reads the switches; the order of the recipe is written here."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from omegaconf import OmegaConf

from framework import feed
from framework.budget import Budget
from framework.clock import clock
from framework.components import make
from framework.data.seeding import seed_process
from framework.engine import Run
from framework.losses import Losses
from framework.memory import Memory, source
from framework.meter import Meter
from framework.mistakes import ConfigError
from framework.profiling.profiled import profiled
from framework.records import RECORDS
from framework.report import Report, Sources
from framework.rules import Settled
from framework.stages.device import on_device
from framework.stages.loaders import loaders
from framework.stages.step import compiled_forwards, first_batch, kept, placing, training_state, uncounted
from framework.summary import describe, write_unbuilt
from framework.switches import Switches
from framework.techniques import amp, log_every
from framework.update import Parts, make_update
from framework.utilisation import Utilisation, peak_tflops


def build(settled: Settled, folder: Path) -> Run:
    """Composes a run whose results go to `folder`. Errors: ConfigError for what turns out to be wrong only now."""
    try:
        return profiled(_build(settled, folder), settled.config, folder)
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
    to_device = partial(on_device, cfg, switches, model, objective)
    early = to_device() if device.type == "cpu" else None  # what is lacking is told before data are read, but
    loader, held_out = loaders(cfg, switches, model)  # workers are forked before this process computes on a GPU
    draft = early or to_device()
    steps = feed.total_steps(loader.batches, cfg.train.accumulate, cfg.train.epochs, cfg.train.max_steps)
    state = training_state(draft, steps)
    forward_loss, scores = compiled_forwards(draft)
    ticks, warmup_steps = clock(device), cfg.meter.warmup_steps
    budget = Budget(ticks, cfg.meter.budget)
    meter, memory = Meter(ticks, warmup_steps, budget), Memory(source(device), warmup_steps)
    losses = Losses(device)
    switches.evidence["log_every"] = lambda: log_every.evidence(losses.host_reads, meter.steps)
    utilisation = Utilisation(cfg.meter.peak_tflops or peak_tflops(device, draft.dtype, cfg.perf.tf32))
    placed = placing(draft)
    place, keep = placed(budget.arrived), kept(draft)
    windows = feed.windows(loader, cfg.train.accumulate, cfg.train.epochs, cfg.train.max_steps)
    sources = Sources(state, losses, meter, memory, utilisation, partial(switches.table, RECORDS), steps)
    summary = describe(cfg.name, settled.composed, model, device)
    parts = Parts(forward_loss, objective.count, amp.step, cfg.train.clip_norm, cfg.train.max_skipped_steps)
    return Run(
        windows=lambda: keep(feed.shown_first(place(windows), first_batch(draft, meter, utilisation))),
        held_out=None if held_out is None else partial(feed.single, placed(uncounted), held_out),
        update=budget.around(make_update(state, parts)),
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
