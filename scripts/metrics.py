"""Figures of the source tree, by which its layout is judged: python -m scripts.metrics [FOLDER]

Prints modules (with `__init__`) and lines of each room; lengths of functions, and the share that is typed; small
modules; import cycles; functions that take a job and also the configuration resolved from it; names that had several
meanings. The last line is JSON. Reads batchgen, batchgen_kernels and scripts as text and imports nothing of them.
"""

from __future__ import annotations

import argparse
import ast
import graphlib
import json
import statistics
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"batchgen": "batchgen", "batchgen_kernels": "kernels/batchgen_kernels", "scripts": "scripts"}
SMALL_LINES, LONG_LINES = 60, 50
NAMES = ("place", "places", "origin")
Definition = ast.FunctionDef | ast.AsyncFunctionDef
JOB, CONFIG = ({"Job"}, {"job"}), ({"Target", "RunConfig"}, {"target", "config"})  # types, names of parameters


@dataclass(frozen=True, slots=True)
class Module:
    """A file of a package."""

    name: str  # dotted, as it is imported
    package: str
    path: str  # below the root of the tree
    text: str

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def room(self) -> str:
        """The folder that the file is in."""
        return str(Path(self.path).parent)

    @property
    def is_init(self) -> bool:
        return Path(self.path).name == "__init__.py"

    @property
    def is_small(self) -> bool:
        return self.num_lines <= SMALL_LINES and Path(self.path).name not in ("__init__.py", "__main__.py")


class Function(NamedTuple):
    """A function or method, nested ones included."""

    name: str  # path:class.function
    package: str
    num_lines: int  # from `def` to its end, with docstring
    is_typed: bool  # every parameter and the result, but for `self` and `cls`
    takes_both: bool  # a job and the configuration resolved from it


def read_modules(root: Path) -> list[Module]:
    """Read every module of the packages."""
    modules = []
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = (package, *path.relative_to(root / folder).with_suffix("").parts)
            name = ".".join(parts).removesuffix(".__init__")
            modules.append(Module(name, package, str(path.relative_to(root)), path.read_text(encoding="utf-8")))
    return modules


def find_functions(module: Module) -> list[Function]:
    """Return all functions of a module."""
    return [_function(module, names, node) for names, node in _definitions(ast.parse(module.text), ())]


def _definitions(parent: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Definition]]:
    """Yield functions below a node, with the names of the classes and functions that they are in and their own."""
    for node in ast.iter_child_nodes(parent):
        inner = (*names, node.name) if isinstance(node, ast.ClassDef | Definition) else names
        if isinstance(node, Definition):
            yield inner, node
        yield from _definitions(node, inner)


def _function(module: Module, names: tuple[str, ...], node: Definition) -> Function:
    every = node.args
    parameters = [*every.posonlyargs, *every.args, every.vararg, *every.kwonlyargs, every.kwarg]
    given = [each for each in parameters if each is not None and each.arg not in ("self", "cls")]
    return Function(
        name=f"{module.path}:{'.'.join(names)}",
        package=module.package,
        num_lines=(node.end_lineno or node.lineno) - node.lineno + 1,
        is_typed=node.returns is not None and all(each.annotation for each in given),
        takes_both=all(any(_is_one_of(each, *kind) for each in given) for kind in (JOB, CONFIG)),
    )


def _is_one_of(parameter: ast.arg, types: set[str], names: set[str]) -> bool:
    """Return whether a parameter has one of the names, or an annotation that contains one of the types."""
    annotation = parameter.annotation
    if isinstance(annotation, ast.Constant):
        annotation = ast.parse(str(annotation.value), mode="eval").body
    used = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else set()
    return parameter.arg in names or bool(used & types)


def find_cycles(modules: Sequence[Module]) -> list[list[str]]:
    """Return cycles among the imports of modules, also those inside functions but not those for type checkers.

    Each cycle is cut at one import before the next is looked for, so that overlapping cycles are not all listed.
    """
    known = {module.name for module in modules}
    imports = {module.name: set(_imports(module, known)) - {module.name} for module in modules}
    cycles: list[list[str]] = []
    while True:
        try:
            graphlib.TopologicalSorter(imports).prepare()
        except graphlib.CycleError as error:
            cycle = error.args[1]
            cycles.append(cycle[::-1])  # each imports the next
            imports[cycle[1]].discard(cycle[0])
        else:
            return cycles


def _imports(module: Module, known: set[str]) -> Iterator[str]:
    """Yield the known modules that a module imports."""
    package = module.name if module.is_init else module.name.rpartition(".")[0]
    for node in _run_time_nodes(ast.parse(module.text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                yield from [name for name in (f"{source}.{alias.name}", source) if name in known][:1]


def _run_time_nodes(parent: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module but for what is under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield from (other, *_run_time_nodes(other))
        else:
            yield from (node, *_run_time_nodes(node))


def count_names(module: Module) -> Counter[str]:
    """Count the identifiers of a module that are in NAMES."""
    lines = iter(module.text.splitlines(keepends=True))
    tokens = tokenize.generate_tokens(lambda: next(lines, ""))
    return Counter(token.string for token in tokens if token.type == tokenize.NAME and token.string in NAMES)


def summarise(modules: Sequence[Module]) -> dict[str, Any]:
    """Return all figures."""
    functions = [function for module in modules for function in find_functions(module)]
    groups = {
        "batchgen and scripts": [function for function in functions if function.package != "batchgen_kernels"],
        "kernels": [function for function in functions if function.package == "batchgen_kernels"],
    }
    return {
        "rooms": _sizes(modules, lambda module: module.room),
        "packages": _sizes(modules, lambda module: module.package),
        "functions": {group: _lengths(members) for group, members in groups.items()},
        "small_modules": [module.path for module in modules if module.is_small and module.package != "scripts"],
        "small_scripts": [module.path for module in modules if module.is_small and module.package == "scripts"],
        "cycles": find_cycles(modules),
        "job_and_config": [function.name for function in functions if function.takes_both],
        "names": {
            name: {module.path: count for module in modules if (count := count_names(module)[name])} for name in NAMES
        },
    }


def _sizes(modules: Sequence[Module], key: Callable[[Module], str]) -> dict[str, dict[str, int]]:
    sizes: dict[str, dict[str, int]] = {}
    for module in modules:
        size = sizes.setdefault(key(module), {"modules": 0, "lines": 0})
        size["modules"] += 1
        size["lines"] += module.num_lines
    return dict(sorted(sizes.items()))


def _lengths(functions: Sequence[Function]) -> dict[str, Any]:
    lengths = [function.num_lines for function in functions]
    return {
        "functions": len(functions),
        "median": statistics.median(lengths),
        "p90": statistics.quantiles(lengths, n=10, method="inclusive")[-1],
        "max": max(lengths),
        "long": {function.name: function.num_lines for function in functions if function.num_lines > LONG_LINES},
        "typed": sum(function.is_typed for function in functions) / len(functions),
    }


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the figures as text, with a heading for each kind."""
    for kind in ("rooms", "packages"):
        yield f"{kind:44} modules   lines"
        for name, size in figures[kind].items():
            yield f"  {name:42} {size['modules']:7} {size['lines']:7,}"
    yield f"{'functions':44}  number  median   p90   max   typed"
    for group, lengths in figures["functions"].items():
        median, p90, longest = lengths["median"], lengths["p90"], lengths["max"]
        yield f"  {group:42} {lengths['functions']:7} {median:7.0f} {p90:5.0f} {longest:5} {lengths['typed']:7.1%}"
        yield from (f"    over {LONG_LINES} lines: {name} {count}" for name, count in lengths["long"].items())
    small = f"modules of at most {SMALL_LINES} lines in"
    yield from _listed(f"{small} batchgen and kernels", figures["small_modules"])
    yield from _listed(f"{small} scripts", figures["small_scripts"])
    yield from _listed("import cycles", [" -> ".join(cycle) for cycle in figures["cycles"]])
    yield from _listed("functions that take a job and its configuration", figures["job_and_config"])
    for name, files in figures["names"].items():
        yield from _listed(f"files with the name `{name}`", [f"{path} {count}" for path, count in files.items()])


def _listed(heading: str, items: Sequence[str]) -> Iterator[str]:
    yield f"{heading}: {len(items)}"
    yield from (f"  {item}" for item in items)


def main() -> None:
    """Print the figures of a tree, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT, help="root of the tree; default: this checkout")
    figures = summarise(read_modules(parser.parse_args().folder))
    for line in lines(figures):
        print(line)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
