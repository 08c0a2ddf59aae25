"""Batches on their way to the device: what is moved, how, and what is left alone. The meta device plays the GPU."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from framework.data.collate import Envelope
from framework.techniques import pinned
from framework.transfer import Transfer, brought

META = torch.device("meta")
FRAMEWORK = Path(__file__).parents[1] / "framework"


@dataclasses.dataclass
class Graph:
    """A batch that moves itself; `log` tells what it was asked for."""

    nodes: Tensor
    names: list[str]
    log: list[Any] = dataclasses.field(default_factory=list)

    def to(self, device: torch.device, non_blocking: bool = False) -> "Graph":
        return Graph(self.nodes.to(device), self.names, [*self.log, ("to", non_blocking)])

    def pin_memory(self) -> "Graph":
        return Graph(self.nodes.pin_memory(), self.names, [*self.log, "pin_memory"])


class Plain(dict[str, Tensor]):
    """A batch with a `to()` that knows no `non_blocking`."""

    def to(self, device: torch.device) -> "Plain":
        return Plain({key: value.to(device) for key, value in self.items()})


class Opaque:
    """A batch of the user's own that neither pins nor moves itself."""

    def __init__(self) -> None:
        self.image, self.names = torch.ones(2), ["a", "b"]


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The storages that count as page-locked: those that `pin_memory()` returned."""
    pages: set[int] = set()
    kept = []

    def pin_memory(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        pages.add(copy.data_ptr())
        kept.append(copy)  # so that no address comes again
        return copy

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: tensor.device.type == "cpu" and tensor.data_ptr() in pages)
    yield pages
    kept.clear()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """For each `Tensor.to`: whether its source was page-locked, and whether it was asked not to wait."""
    seen: list[tuple[bool, bool]] = []
    original = Tensor.to

    def to(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        seen.append((tensor.is_pinned(), options.get("non_blocking", False)))
        return original(tensor, *arguments, **options)

    monkeypatch.setattr(Tensor, "to", to)
    return seen


def through(batch: Any, pin: bool) -> Any:
    """From collate to the device."""
    envelope = Envelope(batch, 0)
    return Transfer(META, asynchronous=pin)(envelope.pin_memory().batch if pin else envelope.batch)


@pytest.mark.parametrize("pin", [False, True])
def test_C01_all_but_the_tensors_device_stays(pin: bool, locked: set[int]) -> None:
    moved = through({"x": torch.ones(2), "meta": ["a", "b"], "mask": None, "pair": (torch.ones(3), 3)}, pin)
    assert moved["x"].device == moved["pair"][0].device == META
    assert moved["pair"][0].shape == (3,)
    del moved["x"]
    assert moved == {"meta": ["a", "b"], "mask": None, "pair": (moved["pair"][0], 3)}


def test_C06_a_copy_does_not_wait_only_where_its_source_is_pinned(
    locked: set[int], copies: list[tuple[bool, bool]]
) -> None:
    batch = {"x": torch.ones(2).pin_memory(), "y": torch.ones(2), "g": Graph(torch.ones(2).pin_memory(), [])}
    batch["pageable"] = Graph(torch.ones(2), [])
    transfer = Transfer(META, asynchronous=True)
    moved = transfer(batch)
    assert copies == [(True, True), (False, False), (True, False), (False, False)]  # the last two are Graph's own
    assert moved["g"].log == [("to", True)]
    assert moved["pageable"].log == [("to", False)]
    assert (transfer.pinned, transfer.pageable) == (2, 2)
    copies.clear()
    transfer = Transfer(META, asynchronous=False)
    transfer(batch)
    assert not any(asked for _, asked in copies)
    assert (transfer.pinned, transfer.pageable) == (0, 4)


def test_C06_a_batch_that_shows_no_tensor_is_waited_for() -> None:
    """Nothing is known of the memory that it holds."""

    class Hidden:
        def to(self, device: torch.device, non_blocking: bool = False) -> tuple[torch.device, bool]:
            return device, non_blocking

    assert Transfer(META, asynchronous=True)(Hidden()) == (META, False)


def test_pinned_is_active_only_where_a_copy_came_from_pinned_memory() -> None:
    assert pinned.evidence(0, 0).active is None
    assert pinned.evidence(0, 3).active is False
    assert pinned.evidence(3, 1).active is True


@pytest.mark.parametrize("pin", [False, True])
def test_B02_a_batch_with_its_own_methods_is_respected(pin: bool, locked: set[int]) -> None:
    moved = through([Graph(torch.ones(2), ["a", "b"])], pin)[0]
    assert type(moved) is Graph
    assert moved.nodes.device == META
    assert moved.names == ["a", "b"]
    assert moved.log == (["pin_memory", ("to", True)] if pin else [("to", False)])


@pytest.mark.parametrize("pin", [False, True])
def test_B02_a_dict_subclass_is_not_turned_into_a_dict(pin: bool, locked: set[int]) -> None:
    moved = through({"inner": Plain(x=torch.ones(2))}, pin)["inner"]
    assert type(moved) is Plain
    assert moved["x"].device == META


def test_B02_an_unknown_batch_passes_and_is_noted_once(locked: set[int], caplog: pytest.LogCaptureFixture) -> None:
    class Unknown(Opaque):
        """A type that no other test has shown."""

    batch = Unknown()
    assert through(batch, False) is batch
    assert not caplog.messages
    for _ in range(3):
        assert through(batch, True) is batch
    assert caplog.messages == ["batches hold Unknown, which has no pin_memory(): it is passed on unpinned."]


def test_strings_numbers_and_none_are_no_reason_for_a_note(locked: set[int], caplog: pytest.LogCaptureFixture) -> None:
    through([None, "text", b"raw", 1, 1.5, True, 1j], True)
    assert not caplog.messages


@pytest.mark.parametrize("pin", [False, True])
def test_a_packed_sequence_keeps_its_lengths_on_the_host(pin: bool, locked: set[int]) -> None:
    moved = through({"x": pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])}, pin)["x"]
    assert type(moved) is PackedSequence
    assert moved.data.device == META
    assert moved.batch_sizes.device.type == "cpu"


def test_the_order_of_an_epoch_is_brought_through_page_locked_memory_where_the_target_is_a_gpu(
    locked: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[tuple[bool, dict[str, Any]]] = []

    def to(tensor: Tensor, device: torch.device, **how: Any) -> Tensor:
        copies.append((tensor.data_ptr() in locked, how))
        return tensor

    monkeypatch.setattr(Tensor, "to", to)
    for device in ("cuda:0", "cpu"):
        brought(torch.arange(3), torch.device(device))
    assert copies == [(True, {"non_blocking": True}), (False, {})]


def test_C05_nothing_but_the_transfer_copies_without_waiting() -> None:
    """Copies to the host block: `non_blocking` is written in one file, where the target is the device."""
    files = [
        file.relative_to(FRAMEWORK).as_posix()
        for file in FRAMEWORK.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and any(word.arg == "non_blocking" for word in node.keywords)
    ]
    assert set(files) == {"transfer.py"}
