"""Classes named in a config: found, checked, called; nothing of the config library goes along."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn
from torch.utils.data import DataLoader

from framework import build, config, rules
from framework.components import factory, make
from framework.data import loader as loading
from framework.engine import Run
from framework.environment import Machine
from framework.mistakes import ConfigError

CONFIGS = str(Path(__file__).parents[1] / "configs")

SOURCE = '''
import torch
from torch.utils.data import Dataset

class Net(torch.nn.Linear):
    """Knows what it was given."""
    def __init__(self, width, sizes=(), options=None, part=None):
        super().__init__(3, width)
        self.given = [sizes, options, part]

class Rows(Dataset):
    def __init__(self, rows=6, transform=None, options=None):
        self.rows, self.transform, self.options = rows, transform, options
    def __len__(self):
        return self.rows
    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 2

class Scale:
    def __init__(self, by):
        self.by = by

def loss(output, target, weight=1.0):
    return torch.nn.functional.cross_entropy(output, target) * weight

def join(samples, how=()):
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])

def refuses(width):
    raise ValueError(f"width {width} is odd")

def crashes():
    raise KeyError("of my own")

number = 3
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own.py").write_text(SOURCE)
    (tmp_path / "unclosed.py").write_text("f(")
    (tmp_path / "raising.py").write_text("import os\nx = nope\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("own", "unclosed", "raising"):
        sys.modules.pop(name, None)


def told(component: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        make(component, "model")
    return str(raised.value)


def test_a_component_is_called_with_its_arguments() -> None:
    made = make({"_target_": "own.Net", "width": 2, "sizes": [1, 2]}, "model")
    assert isinstance(made, nn.Linear)
    assert (made.out_features, made.given) == (2, [[1, 2], None, None])


def test_a_factory_is_not_called_yet() -> None:
    made = factory({"_target_": "torch.optim.SGD", "lr": 0.5}, "optim.optimizer")
    assert type(made) is functools.partial
    assert made.func is torch.optim.SGD
    assert made([nn.Parameter(torch.ones(1))]).defaults["lr"] == 0.5


def test_components_inside_are_made_however_deep_they_lie() -> None:
    inner = {"_target_": "own.Scale", "by": 2}
    made = make(
        {"_target_": "own.Net", "width": 2, "sizes": [[inner]], "options": {"a": inner}, "part": inner}, "model"
    )
    assert [made.given[0][0][0].by, made.given[1]["a"].by, made.given[2].by] == [2, 2, 2]


def test_a_partial_inside_is_the_plain_function() -> None:
    inner = {"_target_": "own.loss", "_partial_": True}
    made = make({"_target_": "own.Net", "width": 2, "sizes": [inner], "part": {**inner, "weight": 2.0}}, "model")
    plain, bound = made.given[0][0], made.given[2]
    assert plain is sys.modules["own"].loss
    assert type(bound) is functools.partial
    assert (bound.func, bound.keywords) == (plain, {"weight": 2.0})


def test_positional_arguments_and_untouched_insides_are_taken() -> None:
    raw = {"_target_": "own.Scale", "by": 1}
    made = make({"_target_": "own.Net", "_args_": [2], "part": raw, "_recursive_": False, "_convert_": "all"}, "model")
    assert (made.out_features, made.given[2]) == (2, raw)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.Net", "ModuleNotFoundError: No module named 'nowhere'"),
        ("own.Nett", "AttributeError: module 'own' has no attribute 'Nett'"),
        ("own.number", "Expected a callable target"),
        ("unclosed.Net", "SyntaxError: '(' was never closed (unclosed.py, line 1)"),
        ("raising.Net", "NameError: name 'nope' is not defined (at raising.py:2)"),
        ("os.system", "blocklisted"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_told_with_the_reason(target: str, words: str) -> None:
    sentence = told({"_target_": target})
    assert sentence.startswith(f"model._target_={target} cannot be loaded: ")
    assert words in sentence


def test_an_argument_that_is_not_taken_is_told_with_the_nearest_name() -> None:
    assert told({"_target_": "own.Net", "widht": 2}) == "model.widht is not an argument of own.Net: did you mean width?"
    inside = {"_target_": "own.Net", "width": 2, "sizes": [{"_target_": "own.Scale", "bye": 1}]}
    assert told(inside) == "model.sizes.0.bye is not an argument of own.Scale: did you mean by?"


def test_a_refusal_is_told_in_the_words_and_at_the_place_of_the_class() -> None:
    line = 1 + SOURCE.splitlines().index('    raise ValueError(f"width {width} is odd")')
    assert told({"_target_": "own.refuses", "width": 3}) == f"model: width 3 is odd (own.refuses, at own.py:{line})"
    assert "missing 1 required positional argument: 'width'" in told({"_target_": "own.refuses"})


def test_a_crash_of_a_users_class_stays_a_crash() -> None:
    with pytest.raises(KeyError, match="of my own"):
        make({"_target_": "own.crashes"}, "model")
    with pytest.raises(KeyError, match="of my own"):
        make({"_target_": "own.Net", "width": 2, "part": {"_target_": "own.crashes"}}, "model")


# A whole run

OWN = ["device=cpu", "model=custom", "model._target_=own.Net", "+model.width=2", "+model.sizes=[1,[2]]"]
OWN += ["+model.options={a:{b:[1]}}", "data=custom", "data.train._target_=own.Rows", "data.batch_size=2"]
OWN += ["+data.train.options={a:[1,2]}", "+data.train.transform={_target_:own.Scale,by:[3],_partial_:true}"]
OWN += ["data.collate={_target_:own.join,how:[1]}", "+optim.optimizer.betas=[0.9,0.95]", "train.max_steps=2"]


def composed(*overrides: str) -> rules.Settled:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        return rules.settle(compose("config", [*OWN, *overrides]), Machine((2, 14), False, 0))


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What torch's DataLoader is given."""
    seen: list[dict[str, Any]] = []

    class Spy(DataLoader[Any]):
        def __init__(self, dataset: Any, **options: Any) -> None:
            seen.append({"dataset": dataset, **options})
            super().__init__(dataset, **options)

    monkeypatch.setattr(loading, "DataLoader", Spy)
    return seen


def made(folder: Path, *overrides: str) -> Run:
    return build.build(composed(*overrides), folder)


def classes(value: Any, seen: set[int] | None = None) -> Iterator[type]:
    """The classes of a value and of all that it holds."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type | torch.Tensor):
        return
    seen.add(id(value))
    yield type(value)
    inside = list(vars(value).values()) if hasattr(value, "__dict__") else []
    if isinstance(value, functools.partial):
        inside += [value.func, value.args, value.keywords]
    if isinstance(value, dict):
        inside += [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        inside += list(value)
    for one in inside:
        if type(one).__module__.split(".")[0] in ("builtins", "framework", "own", "functools", "hydra", "omegaconf"):
            yield from classes(one, seen)


def of_the_config_library(value: Any) -> set[type]:
    return {kind for kind in classes(value) if kind.__module__.split(".")[0] in ("hydra", "omegaconf", "antlr4")}


def test_the_walk_finds_what_it_should() -> None:
    import omegaconf

    assert of_the_config_library({"a": [(omegaconf.OmegaConf.create([1]),)]})
    assert of_the_config_library(functools.partial(len, omegaconf.OmegaConf.create({})))


def test_A09_nothing_of_the_config_library_reaches_torch_or_a_worker(
    tmp_path: Path, handed: list[dict[str, Any]]
) -> None:
    run = made(tmp_path, "data.eval={_target_:own.Rows,rows:3}")
    for batch in run.windows():
        run.update(batch, run.memory.step(1))
    (betas,) = {tuple(group["betas"]) for group in run.state.optimizer.param_groups}
    assert betas == (0.9, 0.95)
    assert type(run.state.optimizer.param_groups[0]["betas"]) in (list, tuple)
    assert len(handed) == 2
    for value in (run.state.optimizer.state_dict(), run.state.model, run.state.scheduler, run.report.summary, handed):
        assert of_the_config_library(value) == set()
    assert vars(run.state.model)["given"] == [[1, [2]], {"a": {"b": [1]}}, None]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("seeded", [True, False])
def test_A11_all_that_the_loader_is_given_can_be_pickled(
    tmp_path: Path, handed: list[dict[str, Any]], workers: int, seeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading.Loader, "start", lambda self: None)
    made(tmp_path, f"perf.workers={workers}", f"data.seed_samples={str(seeded).lower()}", "data.start_method=spawn")
    (options,) = handed
    assert {"dataset", "collate_fn"} <= set(options)
    for name, value in options.items():
        if name not in ("generator", "sampler", "batch_sampler"):  # these stay in the main process
            assert pickle.loads(pickle.dumps(value)) is not None or value is None
    assert options.get("multiprocessing_context") == ("spawn" if workers else None)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "default"])
def test_A11_the_start_method_is_a_setting(
    tmp_path: Path, handed: list[dict[str, Any]], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading.Loader, "start", lambda self: None)
    made(tmp_path, "perf.workers=1", f"data.start_method={method}")
    assert handed[0]["multiprocessing_context"] == (None if method == "default" else method)
