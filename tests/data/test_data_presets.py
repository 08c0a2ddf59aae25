"""The presets in configs/data name what exists and state no argument that the source does not take."""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from framework.config import Data

FOLDER = Path(__file__).parents[2] / "configs" / "data"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def components(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for value in node.values():
            yield from components(value)


def test_the_presets_are_all_there() -> None:
    expected = "custom digits imagefolder photos stdlib_text synthetic synthetic_text torchvision"
    assert expected.split() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_fits_the_schema_and_its_source(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    assert text.startswith("# ")
    assert f"python train.py data={name}" in text
    node = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(node, dict)
    assert node["name"] == name
    assert set(node) <= {field.name for field in fields(Data)}
    for component in components(node):
        target = component.pop("_target_")
        if target == "???":
            continue
        module, _, attribute = target.rpartition(".")
        signature = inspect.signature(getattr(importlib.import_module(module), attribute))
        signature.bind(**component)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_states_no_default(name: str) -> None:
    node = OmegaConf.to_container(OmegaConf.create((FOLDER / f"{name}.yaml").read_text()))
    assert isinstance(node, dict)
    defaults = {field.name: field.default for field in fields(Data)}
    assert [key for key, value in node.items() if key != "eval" and value == defaults[key]] == []
