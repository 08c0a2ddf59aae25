"""A set that lives on the device: the batches of a Loader, taken there by the rows' numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from framework.data.collate import collate
from framework.data.loader import Loader, LoaderSettings
from framework.data.seeding import drawing, permutation
from framework.data.whole import UnfitError, WholeBatches, offers_batch, refuse_stream
from framework.tree import Batch, tree_map


class Resident:
    """What a Loader with the same settings gives, batch for batch and bit for bit, on `device`.

    `nbytes` is what the set will need there; `start` copies it, in batches, so that the host never holds it twice.
    `bring` takes the order of an epoch to the device.
    Errors: UnfitError for a stream, for samples that draw random numbers, and for batches that hold more than plain
    tensors and None; ValueError as the Loader's.
    """

    def __init__(
        self, dataset: Any, settings: LoaderSettings, device: torch.device, bring: Callable[[Tensor], Tensor]
    ) -> None:
        refuse_stream(dataset, settings.name)
        settings = replace(settings, options={})
        self.settings, self.device, self._bring = settings, device, bring
        self.processes: set[int] = set()
        self._plan = Loader(dataset, settings)  # its sizes and its words; never read
        self._reader = Loader(
            WholeBatches(dataset, settings.name) if offers_batch(dataset) else dataset,
            replace(settings, shuffle=False, drop_last=False, drop_single=False),
        )
        assert self._plan.length is not None, "no stream"
        self.length: int = self._plan.length
        self._row, drew = drawing(lambda: collate([dataset[0]]))
        if drew:
            raise UnfitError(
                f"needs samples that are always the same, and those of {settings.name} draw random numbers"
            )
        self.nbytes = self.length * sum(tensor.nbytes for tensor in self._columns(self._row))
        self.tensors: list[Tensor] = []  # of all rows, in the order of the leaves of a batch
        self._in_order: Tensor | None = None

    @property
    def batches(self) -> int | None:
        """Batches in an epoch."""
        return self._plan.batches

    def start(self) -> None:
        """Reads the set and copies it to the device. Errors: UnfitError where its rows differ in kind."""
        self.tensors = [
            torch.empty((self.length, *column.shape[1:]), dtype=column.dtype, device=self.device)
            for column in self._columns(self._row)
        ]
        first = 0
        for batch in self._reader.epoch(0):
            if _kind(batch) != _kind(self._row):
                raise UnfitError(f"needs rows of one kind, and those of {self.settings.name} differ")
            columns = self._columns(batch)
            for stored, column in zip(self.tensors, columns, strict=True):
                stored[first : first + len(column)].copy_(column)
            first += len(columns[0]) if columns else 0

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`. Made without waiting for the device."""
        assert self.tensors, "start comes first"
        self.processes.add(os.getpid())
        order = self._order(number)
        for batch in range(self.batches or 0):
            first = batch * self.settings.batch_size
            yield self._taken(order[first : first + self.settings.batch_size])

    def _order(self, number: int) -> Tensor:
        """The rows of an epoch, int64 [length] on the device."""
        if self.settings.shuffle:
            return self._bring(permutation(self.length, self.settings.seed, number))
        if self._in_order is None:
            self._in_order = torch.arange(self.length, device=self.device)
        return self._in_order

    def _taken(self, rows: Tensor) -> Batch:
        stored = iter(self.tensors)
        return tree_map(lambda leaf: None if leaf is None else next(stored).index_select(0, rows), self._row, own="to")

    def _columns(self, batch: Batch) -> list[Tensor]:
        """The tensors of a batch. Errors: UnfitError where it holds something else, or an unusual kind of tensor."""
        found: list[Any] = []
        tree_map(found.append, batch, own="to")
        for leaf in found:
            if leaf is not None and not _is_plain(leaf):
                kind, name = type(leaf).__name__, self.settings.name
                raise UnfitError(f"needs batches of plain tensors, and those of {name} hold something else ({kind})")
        columns = [leaf for leaf in found if leaf is not None]
        if not columns:
            raise UnfitError(f"needs batches of plain tensors, and those of {self.settings.name} hold none")
        return columns


def _is_plain(leaf: Any) -> bool:
    return (
        type(leaf) is Tensor
        and leaf.layout == torch.strided
        and leaf.dim() > 0
        and not leaf.requires_grad
        and not leaf.is_quantized
    )


def _kind(batch: Batch) -> str:
    """The structure of a batch with the shape and dtype of each row, as text."""
    return str(tree_map(lambda leaf: (leaf.dtype, leaf.shape[1:]) if isinstance(leaf, Tensor) else leaf, batch, "to"))
