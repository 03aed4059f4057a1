"""What is installed, what may import what, and that our folder `kernels/` does no harm to transformers."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"batchgen": ROOT / "batchgen", "batchgen_kernels": ROOT / "kernels" / "batchgen_kernels"}

# What imports neither torch nor transformers, as patterns below batchgen/.
TORCH_FREE = [
    *("__init__.py", "[!_]*.py"),
    *("spec/*.py", "io/**/*.py", "prompts/*.py", "plan/*.py", "stats/*.py", "job/*.py"),
    *("engine/block_pool.py", "engine/prefix_cache.py", "engine/request.py", "engine/request_blocks.py"),
    *("engine/step.py", "engine/admission.py", "engine/scheduler.py", "engine/engine.py", "engine/observer.py"),
]
NEED_TORCH = {
    f"job/{name}.py"
    for name in ("run", "session", "run_config", "reasoning", "generate", "conditions", "pool", "plan_job", "verify")
}  # they join rooms to the model


def python(code: str, **environment: str) -> str:
    """Output of `code` in a fresh interpreter whose path begins with the repository root, as under `python -m`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "kernels"), **environment}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def imports(path: Path) -> Iterator[str]:
    """Names of the packages that a file imports anywhere, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def files_that_import(package: str, folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.py")) if package in imports(path)]


def torch_free_modules() -> list[str]:
    package = PACKAGES["batchgen"]
    found = {pattern: sorted(package.glob(pattern)) for pattern in TORCH_FREE}
    assert all(found.values()), f"no file matches {[pattern for pattern in found if not found[pattern]]}"
    paths = [path for paths in found.values() for path in paths if str(path.relative_to(package)) not in NEED_TORCH]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in the wheel. It is built from a copy: a build in place leaves folders that the next one would take up."""
    source, wheels = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("batchgen", "kernels", "scripts", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(wheels)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.slow
def test_wheel_top_level_is_our_two_packages(wheel_files: set[str]) -> None:
    top = {name.split("/")[0] for name in wheel_files}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_packages(wheel_files: set[str]) -> None:
    files = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel_files if ".dist-info/" not in name} == files


@pytest.mark.slow
def test_wheel_holds_the_licence(wheel_files: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_files)


def test_kernels_folder_is_no_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_kernels_is_not_importable_from_the_repository() -> None:
    origin = python("""
        from importlib.util import find_spec
        spec = find_spec("kernels")
        print(spec.origin if spec and spec.origin else "")  # a folder without __init__.py has no origin
    """)
    assert not origin or ROOT not in Path(origin).parents


def test_kernels_of_hugging_face_wins_over_our_folder(tmp_path: Path) -> None:
    theirs = tmp_path / "kernels" / "__init__.py"
    theirs.parent.mkdir()
    theirs.touch()
    assert python("import kernels; print(kernels.__file__)", PYTHONPATH=str(tmp_path)) == str(theirs)


def test_transformers_does_not_take_our_folder_for_the_package() -> None:
    seen, installed = python("""
        from importlib.metadata import packages_distributions
        from transformers.utils.import_utils import is_kernels_available
        print(is_kernels_available(), "kernels" in packages_distributions())
    """).split()
    assert seen == "False" or installed == "True"


def test_core_rooms_import_neither_torch_nor_transformers() -> None:
    python(f"""
        import importlib, sys
        sys.modules["torch"] = sys.modules["transformers"] = None  # importing either now raises
        for name in {torch_free_modules()}:
            importlib.import_module(name)
    """)


def test_help_needs_neither_torch_nor_transformers() -> None:
    shown = python("""
        import sys
        sys.modules["torch"] = sys.modules["transformers"] = None
        sys.argv = ["batchgen", "--help"]
        from batchgen.cli import main
        main()
    """)
    assert "Usage: batchgen" in shown


def test_batchgen_kernels_imports_nothing_of_batchgen() -> None:
    assert files_that_import("batchgen", PACKAGES["batchgen_kernels"]) == []


def test_only_the_models_room_imports_batchgen_kernels() -> None:
    users = files_that_import("batchgen_kernels", PACKAGES["batchgen"])
    assert {Path(name).parts[0] for name in users} == {"models"}


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # Nothing needs these before they are asked for: `models/checkpoint.py` for a .gguf, `stats/plots.py` for a plot,
    # `prompts/grammar.py` for a form.
    extras = [name for extra in ("gguf", "report", "structured") for name in project["optional-dependencies"][extra]]
    needed = project["dependencies"] + extras
    declared = {re.split(r"\W", name)[0] for name in needed}
    imported = {name for folder in PACKAGES.values() for path in folder.rglob("*.py") for name in imports(path)}
    assert imported - set(sys.stdlib_module_names) - set(PACKAGES) <= declared
