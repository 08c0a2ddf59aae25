"""The loaders of training set and held-out set."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import nn

from framework.components import factory, make
from framework.config import Config, Data
from framework.data.loader import Loader, LoaderSettings
from framework.stages.device import enter
from framework.switches import Switches
from framework.techniques import pinned, workers


def loaders(cfg: Config, switches: Switches, model: nn.Module) -> tuple[Loader, Loader | None]:
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
        enter(device)  # before any fork: the pinning thread begins with the loader, on the GPU that is current then
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
