"""Which room may import which at run time; and no modules import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [ROOT / "batchgen", ROOT / "kernels" / "batchgen_kernels"]
MODULES = {
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in package.rglob("*.py")
}
# What the modules of a room may import of other rooms. The modules beside the rooms are free to all of them.
ARROWS: dict[str, set[str]] = {
    "cli": {"job", "io", "stats", "spec"},
    "job": {"spec", "io", "prompts", "plan", "engine", "models", "stats"},
    "prompts": {"spec", "io", "plan"},
    "engine": {"models", "plan", "stats"},
    "stats": {"io", "plan"},
    "io": {"spec"},
    "models": {"spec", "batchgen_kernels"},
    "spec": set(),
    "plan": set(),
    "batchgen_kernels": set(),
}
BESIDE = {"__init__", "__main__", "console", "errors", "log", "request_output", "sampling_params", "units"}


def imports(module: str) -> Iterator[str]:
    """The modules of ours that one imports when it runs, also inside functions."""
    for node in run_time_nodes(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            submodules = [name for alias in node.names if (name := f"{node.module}.{alias.name}") in MODULES]
            yield from submodules or [node.module]


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run_time_nodes(node)


def room_of(module: str) -> str:
    """A folder of batchgen, a module beside the rooms, or the package of the kernels."""
    package, *rest = module.split(".")
    if package != "batchgen":
        return package
    return rest[0] if rest else "__init__"


@pytest.mark.parametrize("room", ARROWS)
def test_a_room_imports_only_rooms_that_it_may(room: str) -> None:
    modules = [module for module in MODULES if room_of(module) == room]
    assert modules
    found = {f"{module} -> {other}" for module in modules for other in imports(module)
             if room_of(other) not in ARROWS[room] | BESIDE | {room}}  # fmt: skip
    assert found == set()


def test_modules_beside_the_rooms_import_no_room() -> None:
    modules = [module for module in MODULES if room_of(module) in BESIDE - {"__main__"}]
    assert {room_of(other) for module in modules for other in imports(module)} <= BESIDE


def test_every_module_belongs_to_a_room() -> None:
    assert {room_of(module) for module in MODULES} == ARROWS.keys() | BESIDE


def test_no_modules_import_each_other() -> None:
    TopologicalSorter({module: {*imports(module)} - {module} for module in MODULES}).prepare()
