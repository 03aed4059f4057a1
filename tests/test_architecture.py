"""docs/architecture.md agrees with the packages: its tree, its picture, and the arrows between the rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "batchgen", ROOT / "kernels/batchgen_kernels")
DOCUMENT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
(PICTURE,) = re.findall(r"^```mermaid\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
NODE = r"\w+(?:\[\(?\"[^\"()\[\]{}|<>]+\"\)?\])?"  # an id, perhaps with a label in quotes
# The forms of a line that the renderers of GitHub, GitLab and Gitea all know.
LINE = re.compile(
    r"flowchart (TB|LR)|direction (TB|LR)|end|subgraph \w+ \[\"[^\"<>]+\"\]|"
    + rf"{NODE} -->(\|\"[^\"|<>]+\"\|)? {NODE}"
)


def modules_in_tree() -> set[str]:
    """Return the paths of the modules in the tree, from its indentation."""
    block = DOCUMENT.split("## The tree")[1].split("```")[1]
    found, folders = set(), [""] * 8
    for indent, name in re.findall(r"^( *)([\w./]+)", block, re.MULTILINE):
        depth = len(indent) // 2
        if name.endswith("/"):
            folders[depth] = name
        elif name.endswith(".py"):
            found.add("".join(folders[:depth]) + name)
    return found


def test_the_tree_names_every_module_and_nothing_else() -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in package.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert modules_in_tree() == modules


def test_the_picture_uses_only_what_every_renderer_knows() -> None:
    lines = [line.strip() for line in PICTURE.splitlines()]
    assert lines[0].startswith("flowchart ")
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert sum(line.startswith("subgraph ") for line in lines) == lines.count("end")


def test_the_forms_of_a_row_are_in_the_picture_and_in_the_table() -> None:
    forms = re.findall(r"^\| `([A-Z]\w+)` \| `([\w/.]+)` \|", DOCUMENT, re.MULTILINE)
    assert len(forms) == 5
    for name, path in forms:
        assert re.search(rf"\b{name}\b", PICTURE)
        assert f"class {name}" in (ROOT / "batchgen" / path).read_text(encoding="utf-8")


def test_the_hops_of_a_row_are_the_calls_that_exist() -> None:
    hops = re.findall(r"^\| \d \| `([\w.]+)` \(`([\w/.]+)`\) \|", DOCUMENT, re.MULTILINE)
    assert len(hops) == 9
    for call, path in hops:
        owner, _, function = call.rpartition(".")
        source = (ROOT / "batchgen" / path).read_text(encoding="utf-8")
        assert f"def {function}(" in source, call
        assert f"class {owner}" in source, call


def test_the_arrows_of_the_picture_are_the_imports_between_the_rooms() -> None:
    drawn = set(re.findall(r"^\s*([a-z]+) --> ([a-z]+)$", PICTURE.split("subgraph rooms")[1], re.MULTILINE))
    assert drawn == imports_between_rooms()


def imports_between_rooms() -> set[tuple[str, str]]:
    """Return (room, imported room) without imports for type checkers; `kernels` is the package batchgen_kernels."""
    package = ROOT / "batchgen"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} | {"cli"}
    found = set()
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for module in runtime_imports(ast.parse(path.read_text(encoding="utf-8"))):
            top, _, rest = module.partition(".")
            target = "kernels" if top == "batchgen_kernels" else rest.split(".")[0] if top == "batchgen" else ""
            if room in rooms and target in {*rooms, "kernels"} and target != room:
                found.add((room, target))
    return found


def runtime_imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports when it runs, also inside its functions."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from runtime_imports(child)
