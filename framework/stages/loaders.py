"""Where the batches of training set and held-out set come from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from framework.components import factory, make
from framework.config import Config, Data
from framework.data.loader import Loader, LoaderSettings
from framework.data.resident import Resident
from framework.data.whole import UnfitError, WholeBatches
from framework.feed import Source
from framework.stages.device import enter
from framework.switches import Switches
from framework.techniques import UnavailableError, batch_fetch, pinned, resident, workers
from framework.transfer import brought


@dataclass(frozen=True)
class Part:
    """A set, and how it is batched."""

    dataset: Any
    settings: LoaderSettings


def loaders(cfg: Config, switches: Switches, model: nn.Module) -> tuple[Source, Source | None]:
    """The sources of training set and held-out set, started: workers are running, resident sets are on the device.

    With perf.pinned CUDA is touched as soon as the first loader starts, so the second's workers are forked after that.
    """
    parts, device = _parts(cfg, model), torch.device(cfg.device)
    stored = switches.offered("resident", partial(_resident, parts, device), list[Resident]())
    if stored:
        switches.replaced(resident.REPLACED, resident.WHY_REPLACED)
        tensors = [tensor for one in stored for tensor in one.tensors]
        switches.evidence["resident"] = lambda: resident.evidence(tensors, device)
        return stored[0], stored[1] if len(stored) > 1 else None
    parts = switches.offered("batch_fetch", partial(_whole, parts), parts)
    options, function = _options(cfg), factory(cfg.data.collate, "data.collate") if cfg.data.collate else None
    if cfg.perf.pinned and device.index:
        enter(device)  # before any fork: the pinning thread begins with the loader, on the GPU that is current then
    made = []
    for part in parts:
        made.append(Loader(part.dataset, replace(part.settings, options=options), function))
        made[-1].start()
    loader = made[0]
    switches.evidence["workers"] = lambda: workers.evidence(loader.processes, os.getpid())
    switches.evidence["batch_fetch"] = lambda: batch_fetch.evidence(loader.whole, loader.handed)
    return loader, made[1] if len(made) > 1 else None


def _parts(cfg: Config, model: nn.Module) -> list[Part]:
    """The training set, and the held-out set where there is one."""
    data = cfg.data
    settings = LoaderSettings(
        name="data.train",
        batch_size=data.batch_size,
        seed=cfg.seed,
        shuffle=True,
        drop_last=data.drop_last,
        drop_single=any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()),
        seed_samples=data.seed_samples,
        self_sharded=data.self_sharded,
    )
    parts = [Part(make(data.train, "data.train"), settings)]
    if data.eval is not None:
        size = data.eval_batch_size or data.batch_size
        settings = replace(
            settings, name="data.eval", batch_size=size, shuffle=False, drop_last=False, drop_single=False
        )
        parts.append(Part(make(data.eval, "data.eval"), settings))
    return parts


def _options(cfg: Config) -> dict[str, Any]:
    """Arguments of torch's DataLoader."""
    data, perf = cfg.data, cfg.perf
    asked = (data.worker_batches, data.start_method) != (Data.worker_batches, Data.start_method)
    options = workers.options(perf.workers, data.worker_batches, data.start_method.name, asked)
    return options | (pinned.options() if perf.pinned else {})


def _resident(parts: list[Part], device: torch.device) -> list[Resident]:
    """The sets on the device; whether both fit is known before the first is copied."""
    with _unfit_is_unavailable():
        stored = [Resident(part.dataset, part.settings, device, partial(brought, device=device)) for part in parts]
        enter(device)
        resident.check_room(sum(one.nbytes for one in stored), device)
        for one in stored:
            one.start()
    return stored


def _whole(parts: list[Part]) -> list[Part]:
    with _unfit_is_unavailable():
        return [replace(part, dataset=WholeBatches(part.dataset, part.settings.name)) for part in parts]


@contextmanager
def _unfit_is_unavailable() -> Iterator[None]:
    """What the sets lack becomes what the run lacks."""
    try:
        yield
    except UnfitError as error:
        raise UnavailableError(str(error)) from error
