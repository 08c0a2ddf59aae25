"""The classifiers of torchvision: names, the stem for small images, weights. No test uses the network."""

import re
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models

from models.classifier import torchvision_classifier

LITTLE = "shufflenet_v2_x0_5"
LITTLE_FILE = "shufflenetv2_x0.5-f707e7126e.pth"


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which torchvision looks for weights, empty, with the network cut off."""

    def no_network(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.urlopen", no_network)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet18", 64), ("resnet50", 64), ("mobilenet_v3_small", 64), ("vit_b_32", 224), ("googlenet", 64)],
)
def test_logits_in_training(name: str, size: int) -> None:
    with torch.device("meta"):
        model = torchvision_classifier(name, num_classes=7)
        logits = model.train()(torch.empty(2, 3, size, size))
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 7)


def test_inception_gives_one_head_in_training() -> None:
    with torch.device("meta"):
        model = torchvision_classifier("inception_v3", num_classes=7)
        logits = model.train()(torch.empty(2, 3, 299, 299))
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 7)


def test_every_parameter_of_a_small_image_resnet_learns() -> None:
    torch.manual_seed(0)
    model = torchvision_classifier("resnet18", num_classes=4, small_images=True)
    logits = model(torch.randn(4, 3, 8, 8))
    assert logits.shape == (4, 4)
    F.cross_entropy(logits, torch.arange(4)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_small_images_keep_their_size_through_the_stem() -> None:
    small = torchvision_classifier("resnet18", num_classes=10, small_images=True)
    conv = small.conv1
    assert isinstance(conv, nn.Conv2d)
    assert (conv.kernel_size, conv.stride, conv.padding, conv.bias) == ((3, 3), (1, 1), (1, 1), None)
    assert isinstance(small.maxpool, nn.Identity)
    expected = (2 / (9 * 64)) ** 0.5  # He initialisation over the fan out
    assert conv.weight.std().item() == pytest.approx(expected, rel=0.1)
    assert sum(parameter.numel() for parameter in small.parameters()) == 11_173_962


def test_standard_stem_is_left_alone() -> None:
    with torch.device("meta"):
        model = torchvision_classifier("resnet18", num_classes=10)
    assert model.conv1.kernel_size == (7, 7)
    assert isinstance(model.maxpool, nn.MaxPool2d)


def test_small_images_need_a_resnet() -> None:
    sentence = r"^small_images=true changes the first layers of a ResNet and shufflenet_v2_x0_5 is not one\.$"
    with torch.device("meta"), pytest.raises(ValueError, match=sentence):
        torchvision_classifier(LITTLE, num_classes=10, small_images=True)


@pytest.mark.parametrize(("name", "nearest"), [("resnet81", "resnet18"), ("ResNet50", "resnet50")])
def test_unknown_name_shows_the_nearest(name: str, nearest: str) -> None:
    sentence = rf"^torchvision has no image classifier named '{name}': the nearest names are .*\b{nearest}\b.*\.$"
    with pytest.raises(ValueError, match=sentence):
        torchvision_classifier(name, num_classes=10)


def test_unknown_name_with_nothing_near() -> None:
    sentence = r"^torchvision has no image classifier named '%%': see torchvision\.models\.list_models\(\)\.$"
    with pytest.raises(ValueError, match=sentence):
        torchvision_classifier("%%", num_classes=10)


@pytest.mark.parametrize(
    "name", ["fcn_resnet50", "fasterrcnn_resnet50_fpn", "r3d_18", "raft_small", "quantized_resnet18"]
)
def test_other_kinds_of_model_are_refused(name: str) -> None:
    assert name in models.list_models()
    with pytest.raises(ValueError, match=rf"^The torchvision model '{name}' is not a plain image classifier: .*\.$"):
        torchvision_classifier(name, num_classes=10)


@pytest.mark.parametrize("weights", ["DEFAULT", "IMAGENET1K_V1", "ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1"])
def test_weights_are_loaded(checkpoints: Path, weights: str) -> None:
    trained = models.get_model(LITTLE)
    torch.save(trained.state_dict(), checkpoints / LITTLE_FILE)
    loaded = torchvision_classifier(LITTLE, num_classes=1000, weights=weights).state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in trained.state_dict().items())


def test_weights_with_other_classes(checkpoints: Path) -> None:
    sentence = (
        r"^The weights 'DEFAULT' of shufflenet_v2_x0_5 have 1000 classes and the data 10: "
        r"use data with as many classes, or no weights\.$"
    )
    with pytest.raises(ValueError, match=sentence):
        torchvision_classifier(LITTLE, num_classes=10, weights="DEFAULT")
    assert not list(checkpoints.iterdir())


def test_unknown_weights() -> None:
    sentence = r"^resnet50 has no classifier weights named 'V3': it has IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT\.$"
    with pytest.raises(ValueError, match=sentence):
        torchvision_classifier("resnet50", num_classes=1000, weights="V3")


def test_weights_without_a_trained_head_are_not_offered() -> None:
    sentence = r"^vgg16 has no classifier weights named 'IMAGENET1K_FEATURES': it has IMAGENET1K_V1, DEFAULT\.$"
    with pytest.raises(ValueError, match=sentence):
        torchvision_classifier("vgg16", num_classes=1000, weights="IMAGENET1K_FEATURES")


def test_failed_download_says_which_file_goes_where(checkpoints: Path) -> None:
    sentence = (
        r"^The weights 'DEFAULT' of shufflenet_v2_x0_5 could not be loaded \(<urlopen error no route to host>\): "
        rf"download https://\S+/{re.escape(LITTLE_FILE)} by other means "
        rf"and save the file as {re.escape(str(checkpoints / LITTLE_FILE))}\.$"
    )
    with pytest.raises(ValueError, match=sentence):
        torchvision_classifier(LITTLE, num_classes=1000, weights="DEFAULT")


@pytest.mark.parametrize("content", [b"", b"<html>not weights</html>"])
def test_broken_weights_file_says_the_same(checkpoints: Path, content: bytes) -> None:
    (checkpoints / LITTLE_FILE).write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"could not be loaded \(.+\): .* save the file as .*{re.escape(LITTLE_FILE)}"
    ):
        torchvision_classifier(LITTLE, num_classes=1000, weights="DEFAULT")
