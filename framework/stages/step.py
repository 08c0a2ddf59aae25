"""What a run does in each step, made from the draft: optimizer, forward, the way of batches to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from torch.optim.lr_scheduler import LambdaLR

from framework import first_layer, schedule
from framework.components import call, make
from framework.config import Compile
from framework.forward import ForwardLoss, Scores, forwards
from framework.meter import Meter
from framework.stages.draft import Draft
from framework.techniques import amp, attention, channels_last, fused_optimizer, gc_freeze, pinned, prefetch
from framework.techniques import compile as compiling
from framework.transfer import Transfer
from framework.tree import Batch, shapes, tree_map
from framework.update import State, Window
from framework.utilisation import Utilisation

Arrived = Callable[[], None]


def training_state(draft: Draft, steps: int | None) -> State:
    """Model, optimizer, schedule and scaler."""
    cfg, device = draft.cfg, draft.device
    optimizer = call(draft.make_optimizer, "optim.optimizer", draft.model.parameters())
    draft.switches.evidence["fused_optimizer"] = lambda: fused_optimizer.evidence(optimizer)
    course = schedule.factor(cfg.optim.schedule.name, cfg.optim.warmup_steps, steps)
    return State(draft.model, optimizer, LambdaLR(optimizer, course), amp.scaler(draft.dtype, device))


def compiled_forwards(draft: Draft) -> tuple[ForwardLoss, Scores]:
    """Forward and loss for training, and the scores for evaluation."""
    forward_loss, scores = forwards(draft.model, draft.objective, draft.autocasts, draft.kernels)
    if (mode := draft.cfg.perf.compile) is Compile.eager:
        return forward_loss, scores
    compiled = compiling.Compiled(forward_loss, mode.name, shapes)
    draft.switches.evidence["compile"] = lambda: compiling.evidence(compiled)
    return compiled, compiling.Compiled(scores, mode.name, shapes)


def uncounted() -> None:
    """Told of windows whose way to the device is in no figure."""


def placing(draft: Draft) -> Callable[[Arrived], Callable[[Iterator[Window]], Iterator[Window]]]:
    """Makes iterators around iterators of windows that bring them to the device; one for each loader.

    Each tells `arrived` when the next window is at hand, before the device is made to wait for it.
    """
    perf, switches = draft.cfg.perf, draft.switches
    transfer = Transfer(draft.device, asynchronous=perf.pinned)
    switches.evidence["pinned"] = lambda: pinned.evidence(transfer.pinned, transfer.pageable)

    def move(window: Window) -> Window:
        placed: Window = transfer(window)
        return list(tree_map(channels_last.convert, placed)) if perf.channels_last else placed

    def placing(arrived: Arrived) -> Callable[[Iterator[Window]], Iterator[Window]]:
        def told(window: Window) -> Window:
            arrived()
            return move(window)

        if not perf.prefetch:
            return partial(map, told)
        ahead = prefetch.Prefetch(perf.prefetch, draft.device, move, arrived)
        switches.evidence.setdefault("prefetch", lambda: prefetch.evidence(ahead))  # the first made is that of training
        return ahead

    return placing


def kept(draft: Draft) -> Callable[[Iterator[Window]], Iterator[Window]]:
    """What stands around the windows of training for as long as it lasts."""
    if not draft.cfg.perf.gc_freeze:
        return iter
    freeze = gc_freeze.Freeze(draft.cfg.meter.warmup_steps)
    draft.switches.evidence["gc_freeze"] = lambda: gc_freeze.evidence(freeze)
    return freeze


def first_batch(draft: Draft, meter: Meter, utilisation: Utilisation) -> Callable[[Batch], None]:
    """What is done with the first batch, outside the meter: its arithmetic is counted, two rows kept as evidence."""
    cfg, switches = draft.cfg, draft.switches

    def seen(batch: Batch) -> None:
        with meter.paused():
            kept = first_layer.sample(batch)
            utilisation.count(lambda: make(cfg.model, "model"), draft.objective, batch)

        def forward() -> object:
            with draft.kernels():
                return draft.objective.loss(draft.model, kept)

        layer = cache(partial(first_layer.look, draft.model, forward, draft.autocasts))
        switches.evidence["amp"] = lambda: amp.evidence(draft.dtype, layer().dtype)
        switches.evidence["channels_last"] = lambda: channels_last.evidence(layer().strides)
        switches.evidence["attention"] = lambda: attention.evidence(cfg.perf.attention.name, layer().attention)

    return seen
