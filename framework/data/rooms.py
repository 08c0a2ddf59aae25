"""Memory for batches that a set makes at once: whoever asks for a batch may say where it shall lie."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor

Give = Callable[[Sequence[int], torch.dtype], Tensor | None]

_give: ContextVar[Give] = ContextVar("_give", default=lambda shape, dtype: None)


@contextlib.contextmanager
def rooms(give: Give) -> Iterator[None]:
    """Within, `room` takes what `give` gives, where that is not None."""
    token = _give.set(give)
    try:
        yield
    finally:
        _give.reset(token)


def room(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised contiguous tensor for a part of a batch; never to be kept beyond that batch.

    In a worker it lies where the batch has to go anyway, which saves a copy. Not for what has a `pin_memory()` of its
    own.
    """
    given = _give.get()(shape, dtype)
    return torch.empty(shape, dtype=dtype) if given is None else given


def gathered(source: Tensor, indices: Tensor) -> Tensor:
    """The rows `indices` (int64 [batch]) of `source` [rows, ...] as [batch, ...] in a `room`."""
    return torch.index_select(source, 0, indices, out=room((len(indices), *source.shape[1:]), source.dtype))


def shared(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """New shared memory, which torch passes on from a worker without a copy."""
    made = torch.empty(0, dtype=dtype)
    return made.set_(torch.UntypedStorage._new_shared(torch.Size(shape).numel() * dtype.itemsize)).view(*shape)
