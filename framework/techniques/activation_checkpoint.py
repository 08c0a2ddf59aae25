"""Activation checkpointing: a block keeps only its input for the backward pass, and computes the rest again there.

A block is a module of a class that stands at least twice in a ModuleList or a Sequential; of nested ones the outermost.
Helps when: activations are what fills the memory, as with long sequences or large batches.
Not in perf=all: it is no speed-up, it buys memory with time.
Costs: a second forward of every block, in time about a third of a step.
Needs: repeated blocks, whose forward depends on its arguments and weights alone: what else it changes would change
twice. Running statistics of batch and instance norms are looked after, and so are random numbers.
Numbers: close; bit-equal without perf.compile where the kernels repeat bit by bit.
Source: https://docs.pytorch.org/docs/stable/checkpoint.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("activation_checkpoint", Equivalence.close, in_all=False)


@dataclass
class Checkpointing:
    """What happened in training: forwards of blocks that kept their input only, how many of them ran again, and how
    many forwards went into a compiled graph, whose backward then recomputes without coming back here.
    """

    blocks: int
    forwards: int = 0
    recomputations: int = 0
    compiled: int = 0


def apply(model: nn.Module, kernels: Callable[[], AbstractContextManager[object]]) -> Checkpointing:
    """Checkpoints the blocks of `model`, whose state_dict stays as it is. `kernels` is the context of attention.

    Errors: UnavailableError where there are no repeated blocks.
    """
    found = list({id(block): block for block in blocks(model)}.values())
    if not found:
        raise UnavailableError(f"finds no repeated blocks in {type(model).__name__}")
    done = Checkpointing(len(found))
    for block in found:
        block.forward = _checkpointed(block, kernels, done)
    return done


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost repeated blocks. A single layer of torch is none: recomputing it would free nothing."""
    children = list(model._modules.values())
    number = Counter(type(child) for child in children) if isinstance(model, nn.ModuleList | nn.Sequential) else {}
    for child in children:
        if child is None:
            continue
        if number.get(type(child), 0) > 1 and _is_block(child):
            yield child
        else:
            yield from blocks(child)


def _is_block(module: nn.Module) -> bool:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):  # no forward of their own
        return False
    return bool(module._modules) or not type(module).__module__.startswith("torch.nn.")


def _checkpointed(
    block: nn.Module, kernels: Callable[[], AbstractContextManager[object]], done: Checkpointing
) -> Callable[..., Any]:
    """The block's forward with checkpointing, where gradients are wanted."""
    plain = block.forward

    def noted() -> None:
        done.compiled += 1

    note = torch.compiler.assume_constant_result(noted)  # runs while the graph is made, and leaves nothing in it

    def body(*args: Any, **named: Any) -> Any:
        with kernels():  # also when autograd comes back for it, outside the forward's own context
            return plain(*args, **named)

    def forward(*args: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **named)
        if torch.compiler.is_compiling():  # a graph keeps statistics and random numbers apart by itself
            note()
            return checkpoint(body, *args, use_reentrant=False, **named)
        return _eagerly(body, block, done, args, named)

    return forward


def _eagerly(
    body: Callable[..., Any], block: nn.Module, done: Checkpointing, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    again = False

    def run(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        nonlocal again
        if not again:
            again = True
            done.forwards += 1
            return body(*args, **named)
        done.recomputations += 1
        with _statistics_kept(block):
            return body(*args, **named)

    # Named arguments are handed over as one: generators are kept for the devices of unnamed arguments only.
    return checkpoint(run, args, named, use_reentrant=False)


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Lets the norms of `block` update copies of their running statistics, which are thrown away afterwards.

    Leaving the update out would save other tensors for the backward pass than the first forward did.
    """
    norms = [module for module in block.modules() if isinstance(module, _NormBase)]
    kept = [(norm, dict(norm._buffers)) for norm in norms]
    try:
        for norm, buffers in kept:
            norm._buffers.update({name: None if one is None else one.clone() for name, one in buffers.items()})
        yield
    finally:
        for norm, buffers in kept:
            norm._buffers.update(buffers)


def evidence(done: Checkpointing) -> Evidence:
    """Active where blocks were computed again, or are part of a compiled graph that does so."""
    seen = {
        "blocks": done.blocks,
        "forwards": done.forwards,
        "recomputations": done.recomputations,
        "compiled_forwards": done.compiled,
    }
    return Evidence(done.recomputations + done.compiled > 0, seen)
