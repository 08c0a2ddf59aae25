"""What a class or function takes, read from its source: importing it may import torch, and that takes seconds."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

HOPS = 4  # how many `from x import y` are followed to a definition

Definition = ast.ClassDef | ast.FunctionDef


def parameters(target: str) -> dict[str, str] | None:
    """Names that `target` (such as 'torch.optim.AdamW') can be given, each with its annotation as written, '' for none.

    None where its source does not settle it: it is not found or not Python, is made or decorated at run time, inherits
    its constructor, or takes any name.
    """
    module, _, name = target.rpartition(".")
    definition = _find(module, name, HOPS) if module else None
    if isinstance(definition, ast.ClassDef):
        return _of_class(definition)
    return _named(definition, bound=0) if definition else None


def _of_class(definition: ast.ClassDef) -> dict[str, str] | None:
    methods = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    if definition.keywords or "__new__" in methods:
        return None
    decorators = [ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in definition.decorator_list]
    if decorators == ["dataclass"] and not definition.bases and "__init__" not in methods:
        return {
            node.target.id: ast.unparse(node.annotation)
            for node in definition.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_argument(node)
        }
    return None if decorators or "__init__" not in methods else _named(methods["__init__"], bound=1)


def _is_argument(node: ast.AnnAssign) -> bool:
    return "ClassVar" not in ast.unparse(node.annotation) and "init=False" not in ast.unparse(node)


def _named(function: ast.FunctionDef, bound: int) -> dict[str, str] | None:
    arguments = function.args
    if function.decorator_list or arguments.kwarg:
        return None
    named = [*[*arguments.posonlyargs, *arguments.args][bound:], *arguments.kwonlyargs]
    return {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in named}


def _find(module: str, name: str, hops: int) -> Definition | None:
    file = _file(module)
    if file is None or not hops:
        return None
    try:
        statements = ast.parse(file.read_bytes()).body
    except SyntaxError:  # told where it is imported
        return None
    for node in reversed(statements):
        if isinstance(node, Definition) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            original = next((one.name for one in node.names if (one.asname or one.name) == name), None)
            if original is not None:
                return _find(_absolute(node, module, file), original, hops - 1)
    return None


def _absolute(node: ast.ImportFrom, module: str, file: Path) -> str:
    """The full name of the module that `node`, standing in `module`, imports from."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    above = node.level - (file.name == "__init__.py")
    return ".".join([*parts[: len(parts) - above], *([node.module] if node.module else [])])


def _file(module: str) -> Path | None:
    """The file of a module, without importing the packages above it."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module that is running but tells nothing of itself, or an empty name
        return None
    if spec is None:
        return None
    roots = [Path(folder) for folder in spec.submodule_search_locations or []]
    files = [root.joinpath(*rest, "__init__.py") for root in roots]
    files += [root.joinpath(*rest).with_suffix(".py") for root in roots if rest]
    if not rest and not roots and spec.origin:
        files = [Path(spec.origin)]
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)
