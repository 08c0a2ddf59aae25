"""Batches of any nesting: dict, list, tuple, namedtuple and dataclass around tensors, None, strings and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = Any  # tensors and plain values in any nesting of containers


def tree_map(change: Callable[[Any], Any], batch: Batch) -> Batch:
    """`batch` with `change` applied to every leaf; containers keep their type.

    A container is a dict (or another mapping that can be made from one), list, tuple, namedtuple or dataclass.
    """
    if isinstance(batch, Tensor | str | bytes):
        return change(batch)
    if isinstance(batch, Mapping):
        return _rebuilt(batch, {key: tree_map(change, value) for key, value in batch.items()})
    if isinstance(batch, list):
        return [tree_map(change, value) for value in batch]
    if isinstance(batch, tuple):
        values = [tree_map(change, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changed = {f.name: tree_map(change, getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **changed)
    return change(batch)


def _rebuilt(old: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(old) is dict:
        return values
    if isinstance(old, dict):
        new = old.copy()  # keeps a subclass's own attributes
        new.update(values)
        return new
    return type(old)(values)  # type: ignore[call-arg]


def leaves(batch: Batch) -> Iterator[Any]:
    """Every leaf of `batch`, in order."""
    if isinstance(batch, Tensor | str | bytes):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from leaves(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for item in dataclasses.fields(batch):
            yield from leaves(getattr(batch, item.name))
    else:
        yield batch


def tensors(batch: Batch) -> Iterator[Tensor]:
    """Every tensor of `batch`, in order."""
    return (leaf for leaf in leaves(batch) if isinstance(leaf, Tensor))


def rows(batch: Batch) -> int:
    """The length of the first dimension of the first tensor that has one; 0 where there is none."""
    return next((len(tensor) for tensor in tensors(batch) if tensor.dim()), 0)


def shapes(batch: Batch) -> tuple[torch.Size, ...]:
    """The shapes of the tensors of `batch`, in order."""
    return tuple(tensor.shape for tensor in tensors(batch))
