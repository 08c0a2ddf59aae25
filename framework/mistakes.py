"""Mistakes in the configuration: one sentence each, with the key, the nearest name and the fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


class ConfigError(ValueError):
    """A mistake in the configuration: one sentence that names the key and the fix."""


COMPOSING = (HydraException, OmegaConfBaseException)  # what a mistake in an override or a YAML file raises


def nearest(name: str, known: Iterable[str]) -> str:
    """': did you mean X?' where a known name is close, else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}."


def explain(error: Exception) -> str:
    """One sentence for an error met while the config was composed, with the key and the fix."""
    if isinstance(error, MissingConfigException):
        return _unknown_option(error)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        return _bad_key(cause, str(error))
    return " ".join(str(error).split())


def _unknown_option(error: MissingConfigException) -> str:
    wanted, options = str(error.missing_cfg_file or ""), error.options or []
    group, _, option = wanted.rpartition("/")
    if not group or not options:
        return " ".join(str(error).split())
    close = difflib.get_close_matches(option, options, n=1)
    hint = f"did you mean {close[0]}? The" if close else "the"
    return f"{group}={option} is not an option: {hint} options are {', '.join(sorted(options))}."


def _bad_key(cause: OmegaConfBaseException, outer: str) -> str:
    message = " ".join(str(cause.msg or cause).split(" full_key:")[0].split())
    key = str(cause.full_key or cause.key or "")
    parent = cause.parent_node
    if isinstance(cause, KeyError | AttributeError) and isinstance(parent, DictConfig):
        return f"{key} is not a key: {nearest(str(cause.key), _keys(parent))}"
    if isinstance(cause, KeyError | AttributeError):
        named = re.search(r"'([^']+)'", outer)
        return f"{named.group(1) if named else key} is not a key: {message}"
    if "Cannot assign" in message or "is not a subclass" in message or "Invalid type assigned" in message:
        return f"{key} is a section, not a value: set its keys, such as {key}.NAME=..."
    return f"{key}: {message}"


def _keys(node: DictConfig) -> list[str]:
    return [str(key) for key in OmegaConf.to_container(node, resolve=False)]  # type: ignore[union-attr]
