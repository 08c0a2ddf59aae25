"""Batches of any nesting keep their types, their attributes and all that is not a tensor."""

import dataclasses
import types
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from framework.data.collate import collate
from framework.tree import leaves, rows, shapes, tensors, tree_map

Pair = namedtuple("Pair", "left right")


class Scaled(NamedTuple):
    value: Tensor
    scale: float


class Sorted(namedtuple("Sorted", "low high")):
    """A namedtuple with a constructor of its own: its values must not go through it again."""

    def __new__(cls, low: Any) -> "Sorted":
        return super().__new__(cls, low, low)


class Named(dict[str, Any]):
    """A dict subclass: an attribute of its own, and a constructor that asks for it."""

    def __init__(self, origin: str, **values: Any) -> None:
        super().__init__(values)
        self.origin = origin


class Encoding(UserDict[str, Any]):
    """A mapping that is no dict, with an attribute, as tokenizers return it."""

    def __init__(self, data: dict[str, Any], source: str = "") -> None:
        super().__init__(data)
        self.source = source


class Tagged(list[Any]):
    """A list subclass with an attribute."""

    tag = "none"


@dataclasses.dataclass
class Scene:
    """Its constructor changes a value, and one field is not its argument."""

    image: Tensor
    path: str
    mask: Tensor | None = None
    origin: Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.origin = self.image.clone()
        self.image = self.image * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    image: Tensor
    path: str


def tagged() -> Tagged:
    made = Tagged([torch.ones(2), "a"])
    made.tag = "mine"
    return made


BATCHES: dict[str, Callable[[], Any]] = {
    "issue": lambda: {"x": torch.ones(2), "meta": ["a", "b"], "mask": None, "pair": (torch.ones(3), 3)},
    "list": lambda: [torch.ones(2), [torch.zeros(1), b"raw"], 1.5, True],
    "tuple": lambda: (torch.ones(2), (), None),
    "namedtuple": lambda: Pair(torch.ones(2), Scaled(torch.ones(1), 0.5)),
    "namedtuple with a constructor": lambda: Sorted(torch.ones(2)),
    "ordered": lambda: OrderedDict(b=torch.ones(2), a=2),
    "defaultdict": lambda: defaultdict(list, {"x": torch.ones(2)}),
    "dict subclass": lambda: Named("here", x=torch.ones(2), y="why"),
    "mapping": lambda: Encoding({"ids": torch.ones(2)}, source="text"),
    "read-only mapping": lambda: types.MappingProxyType({"x": torch.ones(2)}),
    "list subclass": tagged,
    "dataclass": lambda: Scene(torch.ones(2), "a.jpg"),
    "frozen dataclass": lambda: Sealed(torch.ones(2), "a.jpg"),
    "result of torch": lambda: torch.ones(2, 3).max(0),
    "shape": lambda: [torch.ones(2), torch.Size([4, 5])],
    "numpy": lambda: {"x": torch.ones(2), "ids": np.arange(3), "one": np.float32(2)},
    "tensor": lambda: torch.ones(2),
    "nothing": lambda: None,
}


def same(one: Any, other: Any, plus: float) -> None:
    """`other` is `one` with `plus` added to its tensors, down to types and attributes."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one + plus, other)
    elif isinstance(one, np.ndarray):
        assert one is other or np.array_equal(one, other)
    elif isinstance(one, dict | UserDict | types.MappingProxyType):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key], plus)
    elif isinstance(one, list | tuple) and not isinstance(one, torch.Size):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            same(left, right, plus)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            same(getattr(one, field.name), getattr(other, field.name), plus)
    else:
        assert one == other
    for name in ("origin", "source", "tag", "default_factory"):
        if isinstance(one, dict | UserDict | Tagged) and hasattr(one, name):
            assert getattr(one, name) == getattr(other, name)


def added(leaf: Any) -> Any:
    return leaf + 1 if isinstance(leaf, Tensor) else leaf


@pytest.mark.parametrize("name", BATCHES)
def test_C01_any_nesting_goes_through_unchanged_but_for_its_tensors(name: str) -> None:
    batch, untouched = BATCHES[name](), BATCHES[name]()
    mapped = tree_map(added, batch)
    same(untouched, mapped, 1)
    same(untouched, batch, 0)  # the source is left alone


def test_a_container_that_knows_what_to_do_is_a_leaf() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    seen = []
    tree_map(seen.append, {"x": packed, "y": torch.ones(1)}, own="to")
    assert [type(leaf) for leaf in seen] == [PackedSequence, Tensor]
    seen.clear()
    tree_map(seen.append, {"x": Named("here", to=torch.ones(1))}, own="to")  # a key of that name is no method
    assert len(seen) == 1


def test_leaves_come_in_order_and_whole() -> None:
    batch = {"a": [torch.zeros(0), "text"], "b": Scene(torch.ones(2), "a.jpg"), "c": (None, 3)}
    assert [type(leaf).__name__ for leaf in leaves(batch)] == (
        ["Tensor", "str", "Tensor", "str", "NoneType", "Tensor", "NoneType", "int"]
    )
    assert shapes(batch) == (torch.Size([0]), torch.Size([2]), torch.Size([2]))
    assert len(list(tensors(batch))) == 3


def test_rows_are_those_of_the_first_tensor_that_has_a_dimension() -> None:
    assert rows({"weight": torch.tensor(1.0), "x": torch.zeros(5, 2), "y": torch.zeros(7)}) == 5
    assert rows(["text", None]) == 0


def test_collate_stacks_and_keeps_the_structure() -> None:
    samples = [
        {"x": torch.full((2,), float(n)), "n": n, "name": f"s{n}", "mask": None, "pair": Pair(np.float32(n), [n, 1.5])}
        for n in range(3)
    ]
    batch = collate(samples)
    assert torch.equal(batch["x"], torch.tensor([[0.0, 0], [1, 1], [2, 2]]))
    assert torch.equal(batch["n"], torch.arange(3))
    assert batch["name"] == ["s0", "s1", "s2"]
    assert batch["mask"] is None
    assert type(batch["pair"]) is Pair
    assert torch.equal(batch["pair"].left, torch.tensor([0.0, 1, 2]))
    assert torch.equal(batch["pair"].right[1], torch.full((3,), 1.5, dtype=torch.float64))


def test_B02_collate_keeps_types_and_calls_no_constructor() -> None:
    named = collate([Named("here", x=torch.ones(2)), Named("there", x=torch.ones(2))])
    assert type(named) is Named
    assert named.origin == "here"
    scene = collate([Scene(torch.ones(2), "a"), Scene(torch.ones(2), "b")])
    assert torch.equal(scene.image, torch.full((2, 2), 2.0))  # doubled once, by each sample's own constructor
    assert torch.equal(scene.origin, torch.ones(2, 2))
    assert scene.path == ["a", "b"]
    assert torch.equal(collate([torch.Size([4, 5])] * 2)[1], torch.tensor([5, 5]))


@pytest.mark.parametrize("samples", [[None, 1], [1, None], [(1, None), (1, torch.ones(2))]])
def test_collate_drops_no_sample_where_others_are_none(samples: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"None in some samples.*data\.collate"):
        collate(samples)


def test_collate_names_the_key_for_samples_of_different_lengths() -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\] items: set data\.collate"):
        collate([[1, 2], [1]])


@dataclasses.dataclass
class Point:
    """A record."""

    x: Tensor


@dataclasses.dataclass
class Place(Point):
    """Another one."""

    name: str = "here"


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{"x": 1}, {"x": 2, "y": 3}], "holds 'y' in some samples and not in others"),
        ([{"x": 1, "y": 2, 3: 4}, {"x": 2}], "holds 'y', 3 in some samples and not in others"),
        ([{"x": 1}, (1,)], "holds dict and tuple side by side"),
        ([Point(torch.ones(1)), Place(torch.ones(1))], "holds Place and Point side by side"),
        ([Point(torch.ones(1)), {"x": 1}], "holds Point and dict side by side"),
    ],
)
def test_samples_of_different_keys_or_kinds_are_refused(samples: list[Any], words: str) -> None:
    for order in (samples, samples[::-1]):
        with pytest.raises(ValueError, match=rf"^a batch {words}.*: set data\.collate"):
            collate(order)


def test_mappings_of_different_types_are_one_kind() -> None:
    assert collate([OrderedDict(x=1), {"x": 2}])["x"].tolist() == [1, 2]
