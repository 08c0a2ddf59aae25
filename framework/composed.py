"""What can be wrong with a composed config before it is typed: keys that do not exist, values that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from framework.components import RESERVED
from framework.config import Config
from framework.mistakes import nearest, unknown_argument
from framework.signatures import parameters

COMPONENTS = ("model", "data.train", "data.eval", "data.collate", "optim.optimizer", "objective")


def faults(raw: DictConfig) -> Iterator[str]:
    """Sentences about what is wrong, in the order in which a user would mend it."""
    as_written = OmegaConf.to_container(raw, resolve=False)
    assert isinstance(as_written, dict)
    yield from _strangers(as_written, Config)
    yield from _gaps(as_written)
    for key in COMPONENTS:
        component = OmegaConf.select(raw, key)
        if isinstance(component, DictConfig):
            yield from _nulls(component, key, raw)
            yield from _unknown_arguments(OmegaConf.to_container(component, resolve=True), key)


def _strangers(node: dict[Any, Any], schema: type, prefix: str = "") -> Iterator[str]:
    """Keys that the schema lacks: Hydra lets `+key=value` add what it would otherwise refuse."""
    known = {f.name: f.default_factory for f in fields(schema)}
    for key, value in node.items():
        if key not in known:
            yield f"{prefix}{key} is not a key: {nearest(str(key), known, _paths(Config))}"
        elif isinstance(known[key], type) and is_dataclass(known[key]):
            yield from _strangers(value, known[key], f"{prefix}{key}.")  # type: ignore[arg-type]


def _paths(schema: type, prefix: str = "") -> Iterator[str]:
    """All keys of the schema, with their sections."""
    for f in fields(schema):
        yield prefix + f.name
        if isinstance(f.default_factory, type) and is_dataclass(f.default_factory):
            yield from _paths(f.default_factory, f"{prefix}{f.name}.")


def _gaps(node: dict[Any, Any], prefix: str = "") -> Iterator[str]:
    """Values that are still to be given."""
    for key, value in node.items():
        if value == "???":
            yield f"{prefix}{key} has no value: set it with {prefix}{key}=..."
        elif isinstance(value, dict):
            yield from _gaps(value, f"{prefix}{key}.")


def _nulls(component: DictConfig, key: str, raw: DictConfig) -> Iterator[str]:
    """Arguments taken from another key that is null, where the class needs a value. A model needs all it asks for."""
    known = parameters(str(component.get("_target_"))) or {}
    as_written = OmegaConf.to_container(component, resolve=False)
    assert isinstance(as_written, dict)
    for name in map(str, as_written):
        if not OmegaConf.is_interpolation(component, name) or component[name] is not None:
            continue
        source = str(as_written[name]).strip("${}")
        if key == "model":
            yield (
                f"model.{name} takes {source}, which data={raw.data.name} leaves null: set {source}=..., or choose a "
                "model for this kind of data."
            )
        elif not _may_be_null(known.get(name, "")):
            yield f"{source} has no value, and {component._target_} needs one: set it with {source}=..."


def _may_be_null(annotation: str) -> bool:
    return not annotation or any(word in annotation for word in ("None", "Optional", "Any", "object"))


def _unknown_arguments(component: Any, key: str) -> Iterator[str]:
    """Arguments that a class does not take, as far as its source tells; the rest is found when it is called."""
    known = parameters(str(component["_target_"])) if isinstance(component.get("_target_"), str) else None
    for name, value in component.items():
        if known is not None and name not in known and name not in RESERVED:
            yield unknown_argument(f"{key}.{name}", component["_target_"], known)
        if isinstance(value, dict):
            yield from _unknown_arguments(value, f"{key}.{name}")
