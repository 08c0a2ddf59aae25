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
from framework.mistakes import ConfigError, unknown_argument

RESERVED = ("_target_", "_args_", "_convert_", "_recursive_", "_partial_")  # Hydra's own words in a component


def factory(component: Component, key: str) -> functools.partial[Any]:
    """The target of `component` with its arguments bound, not yet called. `key` is its place in the config.

    Nested components are made, or bound where they say `_partial_: true`. Hydra only finds the targets: the partials
    that it makes itself check every call, which would cost time in each step and reach the workers.
    Errors: ConfigError where a target is not found or has no such argument.
    """
    target = component["_target_"]
    try:
        found = instantiate({"_target_": target, "_partial_": True})
    except InstantiationException as error:
        raise ConfigError(f"{key}._target_={target} cannot be loaded: {_root(error)}") from error
    assert isinstance(found, functools.partial)
    known = _parameters(found.func)
    named = {str(name): value for name, value in component.items() if name not in RESERVED}
    for name in named:
        if known and name not in known:
            raise ConfigError(unknown_argument(f"{key}.{name}", target, known))
    positional = list(component.get("_args_", []))
    if component.get("_recursive_", True):
        positional = _made(positional, f"{key}._args_")
        named = {name: _made(value, f"{key}.{name}") for name, value in named.items()}
    return functools.partial(found.func, *positional, **named)


def _made(value: Any, key: str) -> Any:
    """`value` with the components in it made, however deep they lie."""
    if isinstance(value, list):
        return [_made(one, f"{key}.{number}") for number, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "_target_" not in value:
        return {name: _made(one, f"{key}.{name}") for name, one in value.items()}
    if not value.get("_partial_"):
        return make(value, key)
    bound = factory(value, key)
    return bound if bound.args or bound.keywords else bound.func


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
    """Calls the target of `component`, after `arguments`. Errors: as `factory` and `call`."""
    return call(factory(component, key), key, *arguments)


def call(target: functools.partial[Any], key: str, *arguments: Any, **named: Any) -> Any:
    """Calls what `factory` made.

    Errors: ConfigError with the target's own words, and where in the user's code they were raised, for the errors that
    wrong arguments cause (TypeError, ValueError, OSError).
    """
    try:
        return target(*arguments, **named)
    except (TypeError, ValueError, OSError) as error:
        name = f"{target.func.__module__}.{getattr(target.func, '__qualname__', target.func)}"
        raise ConfigError(f"{key}: {_first_line(error)} ({name}, at {_place(error)})") from error


def _root(error: BaseException) -> str:
    """The words of the error that `error` was raised from, and the place where a user's own module raised it."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    file = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = file.suffix == ".py" and "hydra" not in file.parts
    return f"{_first_line(error)} (at {_place(error)})" if ours else _first_line(error)


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = lines[0] if lines else ""
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"
