"""Batches in shared memory that is used again: right contents, and never changed before they were copied."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from framework.data import collate as collate_module
from framework.data.buffers import LEAST_BYTES, MOST_BUFFERS, Borrowed, Buffers
from framework.data.collate import Collate, Envelope
from framework.data.loader import Loader, LoaderSettings
from framework.techniques import pinned, workers

SIDE = 512  # float32 [SIDE, SIDE] is as large as the smallest batch that is lent


class Numbered(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((SIDE, SIDE), float(index)), "mask": torch.full((SIDE, SIDE), index), "at": index}


def test_a_buffer_is_filled_again_only_after_its_reader_gave_it_back() -> None:
    buffers, borrowed = Buffers(), Borrowed()
    first: list[Tensor] = []
    second: list[Tensor] = []
    one = buffers.stack([torch.ones(SIDE, SIDE)] * 2, first)
    two = buffers.stack([torch.zeros(SIDE, SIDE)] * 2, second)
    assert one is not None
    assert two is not None
    assert one.data_ptr() != two.data_ptr()
    assert one.is_shared()
    borrowed.give_back(first, worker=1)
    third = buffers.stack([torch.full((SIDE, SIDE), 3.0)] * 2, [])
    assert third is not None
    assert third.data_ptr() == one.data_ptr()
    assert torch.equal(third, torch.full((2, SIDE, SIDE), 3.0))
    assert not two.any()


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.complex64, torch.bool]
)
def test_a_stack_in_a_buffer_is_what_torch_stacks(dtype: torch.dtype) -> None:
    samples = [torch.arange(LEAST_BYTES).add(number).to(dtype).view(-1, 4).t() for number in range(3)]
    stacked = Buffers().stack(samples, [])
    assert stacked is not None
    assert torch.equal(stacked, torch.stack(samples))
    assert stacked.stride() == torch.stack(samples).stride()


class Kind(Tensor):
    pass


LARGE = torch.ones(LEAST_BYTES // 4)


@pytest.mark.parametrize(
    "samples",
    [
        [LARGE[1:]],  # too small
        [LARGE, LARGE[1:]],
        [LARGE, LARGE.double()],
        [LARGE.clone().requires_grad_()],
        [LARGE.as_subclass(Kind)],
        [LARGE.to_sparse()],
        [LARGE.to("meta")],
    ],
)
def test_what_torch_must_stack_itself_is_left_to_it(samples: list[Tensor]) -> None:
    lent: list[Tensor] = []
    assert Buffers().stack(samples, lent) is None
    assert not lent


def test_a_worker_has_a_limited_number_of_buffers() -> None:
    buffers = Buffers()
    stacked = [buffers.stack([LARGE], []) for _ in range(MOST_BUFFERS + 2)]
    assert [batch is None for batch in stacked] == [False] * MOST_BUFFERS + [True] * 2


def test_buffers_of_a_size_that_is_no_longer_needed_give_way() -> None:
    buffers, borrowed = Buffers(), Borrowed()
    for number in range(3 * MOST_BUFFERS):
        lent: list[Tensor] = []
        sample = torch.ones(LEAST_BYTES + 64 * number, dtype=torch.uint8)
        assert buffers.stack([sample], lent) is not None
        borrowed.give_back(lent, worker=1)
    assert len(buffers._all) == MOST_BUFFERS
    assert [len(one) for one in borrowed._kept[1].values()] == [len(one) for one in buffers._all]


@dataclass
class PinsHalf:
    """Like a user's own batch that keeps one part pageable on purpose."""

    image: Tensor
    mask: Tensor

    def pin_memory(self) -> PinsHalf:
        return self


class Halves(Numbered):
    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return {"own": PinsHalf(sample["image"], sample["mask"]), "image": sample["image"]}


def test_what_pins_itself_lies_in_no_borrowed_memory() -> None:
    """It may keep what it did not copy, which the worker would then overwrite."""
    envelope = next(iter(in_a_process(dataset=Halves())))
    (buffer,) = envelope.lent
    assert envelope.batch["image"].untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    for tensor in (envelope.batch["own"].image, envelope.batch["own"].mask):
        assert tensor.untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr()


def in_a_process(dataset: Any = None, pinned: bool = True, function: Any = None) -> DataLoader[Any]:
    collating = Collate("data.train", True, function, pinned)
    return DataLoader(dataset or Numbered(), batch_size=2, num_workers=1, collate_fn=collating, persistent_workers=True)


def test_batches_hold_their_own_contents_however_late_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a real worker. Without a GPU nothing can be pinned: a plain copy stands in for it."""
    monkeypatch.setattr(collate_module, "_pinned", lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    late: deque[Envelope] = deque()
    places: list[int] = []
    seen: list[int] = []
    batches = in_a_process()
    for _ in range(3):
        for number, envelope in enumerate(batches):
            late.append(envelope)
            if len(late) > number % 5:
                seen += _checked(late.popleft(), places)
    while late:
        seen += _checked(late.popleft(), places)
    assert seen == list(range(30)) * 3
    assert len(places) > 3 * len(set(places))  # most batches lay in a buffer that was used before


def _checked(envelope: Envelope, places: list[int]) -> list[int]:
    places += [buffer.data_ptr() for buffer in envelope.lent]
    copied = envelope.pin_memory().batch
    for image, mask, at in zip(copied["image"], copied["mask"], copied["at"], strict=True):
        assert (image == at).all()
        assert (mask == at).all()
    return copied["at"].tolist()


def test_nothing_is_lent_where_nobody_copies() -> None:
    assert not next(iter(in_a_process(pinned=False))).lent
    assert not next(iter(in_a_process(function=torch.utils.data.default_collate))).lent
    assert not Collate("data.train", True, None, True)([Numbered()[0]] * 2).lent  # no worker, no copy between processes


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3])
def test_pinned_batches_of_workers_hold_their_own_contents(count: int) -> None:
    options = pinned.options() | workers.options(count, 2, None)
    source = Loader(Numbered(), LoaderSettings("data.train", 2, options=options))
    for number in range(3):
        kept = list(source.epoch(number))
        assert all(batch["image"].is_pinned() for batch in kept)
        assert [int(at) for batch in kept for at in batch["at"]] == list(range(30))
        assert all((image == at).all() for batch in kept for image, at in zip(batch["image"], batch["at"], strict=True))
