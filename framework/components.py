"""Classes and functions that a config names by `_target_`: found, checked against their signature, and called."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from framework.config import Component
from framework.mistakes import ConfigError, nearest


def factory(component: Component, key: str) -> functools.partial[Any]:
    """The target of `component` with its arguments bound, not yet called. `key` is its place in the config.

    Nested components are made; no config container reaches the target.
    Errors: ConfigError where the target is not found or has no such argument.
    """
    target = component["_target_"]
    try:
        made = instantiate({**component, "_partial_": True}, _convert_="all")
    except InstantiationException as error:
        root: BaseException = error
        while (cause := root.__cause__ or root.__context__) is not None:
            root = cause
        words = _first_line(root)
        raise ConfigError(f"{key}._target_={target} was not found: {words}") from error
    assert isinstance(made, functools.partial)
    known = _parameters(made.func)
    for name in made.keywords:
        if known and name not in known:
            raise ConfigError(f"{key}.{name} is not an argument of {target}: {nearest(name, known)}")
    return made


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names that `function` takes; none where it takes any, or does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return []
    return [p.name for p in parameters]


def make(component: Component, key: str, *arguments: Any) -> Any:
    """Calls the target of `component`, after `arguments`.

    Errors: ConfigError with the target's own words, and where in the user's code they were raised, for the errors that
    wrong arguments cause (TypeError, ValueError, OSError).
    """
    build = factory(component, key)
    try:
        return build(*arguments)
    except (TypeError, ValueError, OSError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        raise ConfigError(f"{key}: {_first_line(error)} ({component['_target_']}, at {place})") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = lines[0] if lines else ""
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"
