"""Batches of any nesting: dict, list, tuple, namedtuple and dataclass around tensors, None, strings and numbers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

Batch = Any  # tensors and plain values in any nesting of containers
_WHOLE = Tensor | str | bytes | torch.Size  # never entered, though some are sequences


def tree_map(change: Callable[[Any], Any], batch: Batch, own: str = "") -> Batch:
    """`batch` with `change` applied to every leaf; containers keep their type and their attributes.

    A container is a mapping, list, tuple, namedtuple or dataclass. One that has a method called `own` counts as a leaf,
    since it knows best what that means for it (a PackedSequence keeps a part of itself on the CPU).
    """
    if isinstance(batch, _WHOLE) or (own and callable(getattr(batch, own, None))):
        return change(batch)
    if isinstance(batch, Mapping):
        return rebuilt(batch, {key: tree_map(change, value, own) for key, value in batch.items()})
    if isinstance(batch, list | tuple):
        return rebuilt(batch, [tree_map(change, value, own) for value in batch])
    if is_record(batch):
        return rebuilt(batch, {name: tree_map(change, getattr(batch, name), own) for name in field_names(batch)})
    return change(batch)


def rebuilt(old: Any, values: Any) -> Any:
    """A container of the type and with the attributes of `old` that holds `values`: a list, or a dict by key or field.

    Constructors are not called where that can be helped: they may ask for more arguments, or change the values again.
    """
    kind: Any = type(old)
    if kind in (dict, list):
        return values
    if isinstance(old, torch.Size):
        return tuple(values)  # it can hold nothing but integers
    if isinstance(old, tuple):
        return kind._make(values) if hasattr(old, "_fields") else kind(values)
    if isinstance(old, Mapping) and not isinstance(old, MutableMapping):
        return kind(values)
    new = copy.copy(old)
    if isinstance(new, list):
        new[:] = values
    elif isinstance(new, MutableMapping):
        for key, value in values.items():
            new[key] = value
    else:
        for name, value in values.items():
            object.__setattr__(new, name, value)  # a frozen dataclass too
    return new


def is_record(batch: Batch) -> bool:
    """Whether `batch` is an instance of a dataclass."""
    return dataclasses.is_dataclass(batch) and not isinstance(batch, type)


def field_names(record: Any) -> list[str]:
    """The names of a dataclass's fields, those that its constructor does not take included."""
    return [item.name for item in dataclasses.fields(record)]


def leaves(batch: Batch) -> Iterator[Any]:
    """Every leaf of `batch`, in order."""
    if isinstance(batch, _WHOLE):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from leaves(value)
    elif is_record(batch):
        for name in field_names(batch):
            yield from leaves(getattr(batch, name))
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
