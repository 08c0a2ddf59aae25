"""Every image classifier of torchvision, by name."""

import difflib
from pathlib import Path
from pickle import UnpicklingError
from urllib.parse import urlsplit

import torch
from torch import nn
from torchvision import models

# These two return a tuple of three heads in training; without their auxiliary heads they return logits like the rest.
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def torchvision_classifier(
    name: str, num_classes: int, small_images: bool = False, weights: str | None = None
) -> nn.Module:
    """Builds an image classifier of torchvision.

    Shapes: images [batch, 3, height, width] -> logits [batch, num_classes], in training too: the auxiliary heads of
    googlenet and inception_v3 are left out.

    Args:
        name: name in torchvision.models, such as "resnet50" or "convnext_tiny".
        num_classes: number of logits.
        small_images: for ResNets only, a first convolution 3x3 with stride 1 and no max-pool, which suits images of
            about 32 pixels. That convolution starts untrained even if weights are given.
        weights: name of trained weights, such as "DEFAULT" or "IMAGENET1K_V1"; None for random ones.

    Raises:
        ValueError: when the name is not an image classifier of torchvision, when the weights are unknown, cannot be
            fetched or have another number of classes, and when small_images is asked of a model that is no ResNet.

    Source: https://docs.pytorch.org/vision/stable/models.html; the stem for small images is that of He et al. 2015,
    section 4.2, https://arxiv.org/abs/1512.03385.
    """
    _check_name(name)
    model = _random(name, num_classes) if weights is None else _trained(name, num_classes, weights)
    if small_images:
        _use_small_stem(model, name)
    return model


def _check_name(name: str) -> None:
    classifiers = models.list_models(module=models)
    if name in classifiers:
        return
    nearest = difflib.get_close_matches(name.lower(), classifiers, n=3)
    hint = f"the nearest names are {', '.join(nearest)}" if nearest else "see torchvision.models.list_models()"
    if name in models.list_models():
        raise ValueError(f"The torchvision model {name!r} is not a plain image classifier: {hint}.")
    raise ValueError(f"torchvision has no image classifier named {name!r}: {hint}.")


def _random(name: str, num_classes: int) -> nn.Module:
    options = {"aux_logits": False, "init_weights": True} if name in _WITH_AUXILIARY_HEADS else {}
    model: nn.Module = models.get_model(name, num_classes=num_classes, **options)
    return model


def _trained(name: str, num_classes: int, weights: str) -> nn.Module:
    entry = _find_weights(name, weights)
    trained_classes = len(entry.meta["categories"])
    if trained_classes != num_classes:
        raise ValueError(
            f"The weights {weights!r} of {name} have {trained_classes} classes and the data {num_classes}: "
            "use data with as many classes, or no weights."
        )
    options = {"aux_logits": False} if name in _WITH_AUXILIARY_HEADS else {}
    try:
        model: nn.Module = models.get_model(name, weights=entry, **options)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        # No network, a broken download, or a broken file from an earlier one: the remedy is the same file each time.
        target = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(entry.url).path).name
        cause = str(error).partition("\n")[0]
        raise ValueError(
            f"The weights {weights!r} of {name} could not be loaded ({cause}): "
            f"download {entry.url} by other means and save the file as {target}."
        ) from error
    return model


def _find_weights(name: str, weights: str) -> models.WeightsEnum:
    every = models.get_model_weights(name)
    # One set for vgg16 has no classes: its head is untrained.
    known = {key: entry for key, entry in every.__members__.items() if entry.meta["categories"] is not None}
    entry = known.get(weights.removeprefix(f"{every.__name__}."))
    if entry is None:
        raise ValueError(f"{name} has no classifier weights named {weights!r}: it has {', '.join(known)}.")
    return entry


def _use_small_stem(model: nn.Module, name: str) -> None:
    if not isinstance(model, models.ResNet):
        raise ValueError(f"small_images=true changes the first layers of a ResNet and {name} is not one.")
    old = model.conv1
    model.conv1 = nn.Conv2d(old.in_channels, old.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision does
    model.maxpool = nn.Identity()
