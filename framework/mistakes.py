"""Mistakes in the configuration: one sentence each, with the key, the nearest name and the fix."""

from __future__ import annotations

import difflib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]


class ConfigError(ValueError):
    """A mistake in the configuration: one sentence that names the key and the fix."""

    exit_code = 2


class LackError(ConfigError):
    """A switch that this machine or run lacks. A study skips its arm."""

    exit_code = 3


_TOLD = (ConfigError, HydraException, OmegaConfBaseException, YAMLError)


def nearest(name: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """'did you mean X?' where a known name is close, or one that stands `elsewhere`; else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not close:
        leaves: dict[str, str] = {}
        for path in elsewhere:
            leaves.setdefault(path.rpartition(".")[2], path)
        close = [leaves[leaf] for leaf in difflib.get_close_matches(name, leaves, n=1, cutoff=0.8)]
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}."


def unknown_argument(key: str, target: str, known: Iterable[str]) -> str:
    """A sentence for an argument, at `key` in the config, that `target` does not take."""
    return f"{key} is not an argument of {target}: {nearest(key.rpartition('.')[2], known)}"


def told_while_composing(error: Exception, job: Callable[..., Any]) -> bool:
    """Whether `error` is a mistake in the config that was found before Hydra called `job`; any other is a crash."""
    entry = inspect.unwrap(job).__code__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(frame.f_code is entry for frame in frames):
        return False
    ours = any(str(frame.f_globals.get("__name__")).startswith("framework.") for frame in frames)
    hydras_own = isinstance(error, ValueError | OSError) and not ours  # it raises plain ones for some mistakes
    return isinstance(error, _TOLD) or hydras_own


def explain(error: Exception) -> str:
    """One sentence for an error met while the config was composed, with the key and the fix."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, MissingConfigException):
        return _unknown_option(error)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        return _bad_key(cause, str(error))
    if "Config group override must be" in str(error):
        return "a group cannot be null: leave its override out, or name an option (the options are in configs/GROUP)."
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
    if missing := re.search(r"Missing mandatory value: (\S+)", message):
        return f"{missing.group(1)} has no value: set it with {missing.group(1)}=..."
    if isinstance(cause, KeyError | AttributeError) and isinstance(parent, DictConfig):
        return _not_a_key(key, str(cause.key), parent)
    if isinstance(cause, KeyError | AttributeError):
        named = re.search(r"'([^']+)'", outer)
        return f"{named.group(1) if named else key} is not a key: {message}"
    if re.search("Cannot assign|Cannot merge|is not a subclass|Invalid type assigned", message):
        return f"{key} is a section, not a value: set its keys, such as {key}.NAME=..."
    if "is not Optional" in message:
        return f"{key} cannot be null: leave its override out."
    return f"{key}: {message}"


def _not_a_key(key: str, name: str, parent: DictConfig) -> str:
    known = [str(one) for one in parent]
    if "_target_" in known and not difflib.get_close_matches(name, known, n=1):
        return f"{key} is not set so far: to pass it to {parent._get_node('_target_')}, write +{key}=..."
    if not known:
        return f"{key} is not a key: to add it, write +{key}=..."
    root = parent._get_root()
    assert isinstance(root, DictConfig)
    return f"{key} is not a key: {nearest(name, known, _paths(root))}"


def _paths(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """The full names of all keys below `node`, those of Hydra left out."""
    plain = OmegaConf.to_container(node, resolve=False)
    stack = [(prefix + str(key), value) for key, value in plain.items() if key != "hydra"]  # type: ignore[union-attr]
    while stack:
        path, value = stack.pop(0)
        yield path
        if isinstance(value, dict):
            stack += [(f"{path}.{key}", one) for key, one in value.items()]
