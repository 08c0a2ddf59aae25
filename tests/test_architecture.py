"""Who may import whom, and how long things may grow. The sources are parsed, nothing is imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from framework.config import TECHNIQUES

PROJECT = Path(__file__).parents[1]
FILES = sorted([*PROJECT.glob("framework/**/*.py"), *PROJECT.glob("models/*.py"), *PROJECT.glob("hydra_plugins/*.py")])
FILES += [PROJECT / "train.py"]
OURS = ("framework", "models", "hydra_plugins", "train")


def module(file: Path) -> str:
    parts = file.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(file): file for file in FILES}


def imports(file: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file.name}: relative imports hide who imports whom"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base


GRAPH = {name: set(imports(file)) for name, file in MODULES.items()}


def importing(pattern: str) -> set[str]:
    """The modules that import what `pattern` names."""
    return {name for name, seen in GRAPH.items() if any(fnmatch(one, pattern) for one in seen)}


def named(*patterns: str) -> list[str]:
    return [name for name in MODULES if any(fnmatch(name, pattern) for pattern in patterns)]


def test_the_parser_sees_what_is_there() -> None:
    assert "framework.techniques.amp" in GRAPH["framework.build"]
    assert "framework.build" in GRAPH["train"]  # inside a function
    assert len(MODULES) > 40


def test_hydra_and_omegaconf_stay_at_the_door() -> None:
    allowed = {f"framework.{name}" for name in ("config", "composed", "rules", "mistakes", "components", "build")}
    allowed |= {"train", *named("framework.study*", "hydra_plugins*")}
    for library in ("hydra", "omegaconf"):
        assert importing(library) | importing(f"{library}.*") <= allowed


MEASURING = {
    "framework.meter": {"framework.budget", "framework.clock"},
    "framework.budget": {"framework.clock"},
    "framework.clock": set(),
}


@pytest.mark.parametrize("name", named("framework.techniques.*", "models.*", *MEASURING))
def test_a_leaf_imports_none_of_us(name: str) -> None:
    ours = {one for one in GRAPH[name] if one.split(".")[0] in OURS}
    technique = {"framework.techniques"} if name.startswith("framework.techniques.") else set()
    assert ours <= MEASURING.get(name, technique)


@pytest.mark.parametrize("name", named("framework.data.*"))
def test_a_source_of_data_knows_neither_config_nor_engine(name: str) -> None:
    ours = {one for one in GRAPH[name] if one.split(".")[0] in OURS}
    assert all(fnmatch(one, "framework.data.*") or one == "framework.tree" for one in ours)


def test_the_engine_knows_no_technique_and_no_config() -> None:
    ours = {one for one in GRAPH["framework.engine"] if one.split(".")[0] in OURS}
    assert ours <= {f"framework.{name}" for name in ("losses", "memory", "meter", "report", "tree", "update")}


def test_techniques_are_put_together_in_one_place() -> None:
    recipe = {"framework.build", *named("framework.stages.*")}
    assert importing("framework.techniques.*") <= recipe | {"framework.records"}
    assert importing("framework.stages.*") <= recipe
    assert importing("framework.build") - set(named("framework.study*")) == {"train"}


def test_the_order_of_layers_has_no_circle() -> None:
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above, name])
        if name in done or name not in GRAPH:
            return
        for below in sorted(GRAPH[name]):
            visit(below, (*above, name))
        done.add(name)

    for name in MODULES:
        visit(name, ())


EARLY = [
    f"framework.{name}" for name in ("config", "composed", "rules", "environment", "mistakes", "components", "folder")
]


def test_what_runs_before_torch_does_not_import_it() -> None:
    program = (
        f"import sys; import train, {', '.join(EARLY)}; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Sizes


def functions(file: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert isinstance(node, ast.FunctionDef)
            yield node


def length(node: ast.FunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("name", MODULES)
def test_files_and_functions_stay_short(name: str) -> None:
    file = MODULES[name]
    assert len(file.read_text().splitlines()) <= (60 if name == "train" else 220)
    assert {node.name: length(node) for node in functions(file) if length(node) > 40} == {}


def test_the_loop_fits_on_one_screen_and_names_no_technique() -> None:
    (loop,) = (node for node in functions(MODULES["framework.engine"]) if node.name == "train")
    assert length(loop) <= 40
    words = set(re.findall(r"\w+", ast.unparse(loop)))
    assert words & set(TECHNIQUES) == set()
    assert not [node for node in ast.walk(loop) if isinstance(node, ast.Try)]
