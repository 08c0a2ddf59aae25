"""Every file of configs/model composes, builds its model and gives logits for the data that it was told of."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import OmegaConf

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGES = {"channels": 1, "image_size": 8, "classes": 10}
PHOTOS = {"channels": 3, "image_size": 64, "classes": 10}
TEXT = {"vocab": 50304, "context": 1024}


def model_config(name: str, data: dict[str, int], *overrides: str) -> Any:
    """The model node as plain containers, as a run composes it."""
    node = [f"+data.{key}={value}" for key, value in data.items()]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose(overrides=[*node, f"+model={name}", *overrides])
    return OmegaConf.to_container(config.model, resolve=True)


@pytest.mark.parametrize(
    ("name", "data", "parameters"),
    [
        ("convnet", IMAGES, 53_098),
        ("resnet18", PHOTOS, 11_181_642),
        ("resnet50", PHOTOS, 23_528_522),
        ("vit", IMAGES, 2_675_530),
        ("gpt", TEXT, 7_363_328),
        ("gpt_tiny", TEXT, 7_363_328),
        ("gpt2", TEXT, 124_475_904),
    ],
)
def test_config_builds_its_model(name: str, data: dict[str, int], parameters: int) -> None:
    with torch.device("meta"):
        model = instantiate(model_config(name, data))
        if "vocab" in data:
            logits = model(torch.empty(1, 16, dtype=torch.int64))
        else:
            logits = model(torch.empty(2, data["channels"], data["image_size"], data["image_size"]))
    assert logits.shape[-1] == data.get("classes", data.get("vocab"))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_torchvision_takes_any_name() -> None:
    with torch.device("meta"):
        model = instantiate(model_config("torchvision", PHOTOS, "model.name=mobilenet_v3_small"))
    assert type(model).__name__ == "MobileNetV3"


def test_custom_takes_any_class() -> None:
    model = instantiate(
        model_config(
            "custom", IMAGES, "model._target_=torch.nn.Linear", "+model.in_features=3", "+model.out_features=2"
        )
    )
    assert model.weight.shape == (2, 3)


@pytest.mark.parametrize(("name", "key"), [("torchvision", "name"), ("custom", "_target_")])
def test_what_the_user_must_say_is_marked_missing(name: str, key: str) -> None:
    assert model_config(name, IMAGES)[key] == "???"


@pytest.mark.parametrize("path", sorted((CONFIGS / "model").glob("*.yaml")), ids=lambda path: path.stem)
def test_file_has_a_header_and_a_target(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert yaml.safe_load(text).keys() & {"_target_", "defaults"}
