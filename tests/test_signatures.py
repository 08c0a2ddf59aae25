"""Arguments read from source, without importing it."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest

from framework.signatures import parameters

SOURCE = """
from dataclasses import dataclass
from other import Renamed as Mine
from . import nothing

class Plain:
    def __init__(self, a, /, b: int, *rest, c: "str | None" = None): ...

class Open:
    def __init__(self, a, **more): ...

class Inherits(Plain): ...

class Made:
    def __new__(cls, a): ...
    def __init__(self, a): ...

class Meta(metaclass=type):
    def __init__(self, a): ...

@dataclass(frozen=True)
class Data:
    a: int
    b: "str | None" = None
    shared: ClassVar[int] = 3
    derived: int = field(init=False)
    plain = 4

@dataclass
class Child(Data):
    c: int

class Twice:
    def __init__(self, old): ...

class Twice:
    def __init__(self, new): ...

def function(x: float, y=1): ...

@print
def decorated(x): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text("class Renamed:\n    def __init__(self, deep): ...\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("from .inner import Thing\nfrom .inner.thing import Thing as Second\n1 / 0\n")
    (package / "inner" / "__init__.py").write_text("from .thing import Thing\nfrom ..side import Side\n")
    (package / "inner" / "thing.py").write_text("class Thing:\n    def __init__(self, size: int): ...\n")
    (package / "side.py").write_text("from package import Round\ndef Side(left): ...\n")
    (tmp_path / "round.py").write_text("from round import Trip\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("target", "known"),
    [
        ("mine.Plain", {"a": "", "b": "int", "c": "'str | None'"}),
        ("mine.function", {"x": "float", "y": ""}),
        ("mine.Mine", {"deep": ""}),
        ("mine.Twice", {"new": ""}),
        ("mine.Data", {"a": "int", "b": "'str | None'"}),
        ("package.Thing", {"size": "int"}),
        ("package.Second", {"size": "int"}),
        ("package.inner.Side", {"left": ""}),
        ("package.inner.thing.Thing", {"size": "int"}),
        *((f"mine.{name}", None) for name in ("Open", "Inherits", "Made", "Meta", "Child", "decorated", "Absent")),
        *(
            (name, None)
            for name in ("broken.f", "round.Trip", "no_such_module.X", "X", "", "math.sin", ".x", "__main__.x")
        ),
    ],
)
def test_parameters_are_read_where_the_source_settles_them(target: str, known: dict[str, str] | None) -> None:
    before = set(sys.modules)
    assert parameters(target) == known
    assert not {name for name in set(sys.modules) - before if name in ("mine", "other", "package")}


@pytest.mark.parametrize(
    "target",
    [
        "torch.optim.AdamW",
        "torch.optim.SGD",
        "torch.optim.RMSprop",
        "models.convnet.ConvNet",
        "models.gpt.GPT",
        "models.vit.ViT",
        "models.classifier.torchvision_classifier",
        "framework.data.digits.Digits",
        "framework.data.imagefolder.ImageFolder",
        "framework.data.photos.Photos",
        "framework.data.photos.Stored",
        "framework.objective.Classification",
        "framework.objective.Supervised",
        "framework.data.stdlib_text.StdlibText",
        "framework.data.synthetic.SyntheticImages",
        "framework.data.synthetic.SyntheticTokens",
        "framework.data.torchvision_set.torchvision_set",
    ],
)
def test_what_is_read_equals_what_the_imported_class_says(target: str) -> None:
    module, _, name = target.rpartition(".")
    signature = inspect.signature(getattr(importlib.import_module(module), name))
    assert list(parameters(target) or {}) == list(signature.parameters)
