"""The figures of a made-up tree, each counted from its text."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scripts.metrics import PACKAGES, find_cycles, lines, read_modules, summarise

STEP = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from batchgen import rooms
if TYPE_CHECKING:
    from batchgen.engine.engine import Engine
def step(engine: Engine) -> int:
    """Say place in a docstring."""
    return 1
def untyped(self, count):
    place = "origin"  # a string and a comment: origin
    return place
'''.lstrip()
ENGINE = """
class Engine:
    def run(self, job: Job | None, *, config: int) -> None: ...
    async def wait(self, target: "list[RunConfig]", x: Job) -> None:
        def inner() -> None:
            import batchgen.engine.step
    def alone(self, job: Job, **targets: int) -> None: ...
""".lstrip()
LONG = "def long() -> None:\n" + "    long()\n" * 60
FILES = {
    "batchgen/__init__.py": "",
    "batchgen/rooms/__init__.py": "",
    "batchgen/rooms/large.py": "import json\n" * 61,
    "batchgen/engine/step.py": STEP,
    "batchgen/engine/engine.py": ENGINE,
    "kernels/batchgen_kernels/triton/store.py": LONG + "def kernel(pointer, SIZE: int) -> None: ...\n",
    "scripts/bench/__main__.py": "from batchgen.engine.step import step\n",
    "scripts/check.py": "origin = 1\n",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def figures(tmp_path: Path) -> dict[str, Any]:
    return summarise(read_modules(write(tmp_path, FILES)))


def test_rooms_are_folders_and_count_every_file(figures: dict[str, Any]) -> None:
    assert figures["rooms"] == {
        "batchgen": {"modules": 1, "lines": 0},
        "batchgen/engine": {"modules": 2, "lines": 17},
        "batchgen/rooms": {"modules": 2, "lines": 61},
        "kernels/batchgen_kernels/triton": {"modules": 1, "lines": 62},
        "scripts": {"modules": 1, "lines": 1},
        "scripts/bench": {"modules": 1, "lines": 1},
    }
    assert {name: size["modules"] for name, size in figures["packages"].items()} == dict.fromkeys(PACKAGES, 0) | {
        "batchgen": 5,
        "batchgen_kernels": 1,
        "scripts": 2,
    }


def test_functions_are_counted_from_def_to_end_and_kernels_apart(figures: dict[str, Any]) -> None:
    ours, kernels = figures["functions"]["batchgen and scripts"], figures["functions"]["kernels"]
    assert (ours["functions"], ours["median"], ours["max"], ours["long"]) == (6, 2.5, 3, {})
    assert ours["typed"] == 5 / 6  # `self` needs no type, `count` does
    assert kernels["long"] == {"kernels/batchgen_kernels/triton/store.py:long": 61}
    assert (kernels["p90"], kernels["typed"]) == (55.0, 0.5)


def test_small_modules_are_those_of_at_most_60_lines_but_for_init_and_main(figures: dict[str, Any]) -> None:
    assert figures["small_modules"] == ["batchgen/engine/engine.py", "batchgen/engine/step.py"]
    assert figures["small_scripts"] == ["scripts/check.py"]


def test_a_job_and_its_configuration_are_found_by_name_and_by_type(figures: dict[str, Any]) -> None:
    assert figures["job_and_config"] == [
        "batchgen/engine/engine.py:Engine.run",
        "batchgen/engine/engine.py:Engine.wait",
    ]


def test_names_are_identifiers_and_not_words_of_strings_or_comments(figures: dict[str, Any]) -> None:
    assert figures["names"] == {
        "place": {"batchgen/engine/step.py": 2},
        "places": {},
        "origin": {"scripts/check.py": 1},
    }


def test_an_import_for_type_checkers_closes_no_cycle(figures: dict[str, Any]) -> None:
    assert figures["cycles"] == []  # step -> engine only for types, engine -> step in a function


def test_a_cycle_is_named_in_the_order_of_its_imports(tmp_path: Path) -> None:
    files = {
        "batchgen/a.py": "from batchgen import b\n",
        "batchgen/b.py": "from batchgen.c import x\n",
        "batchgen/c.py": "def late() -> None:\n    from . import a\n",
        "batchgen/d.py": "import batchgen.a\n",
    }
    (cycle,) = find_cycles(read_modules(write(tmp_path, files)))
    following = dict(pairwise(cycle))
    assert following == {"batchgen.a": "batchgen.b", "batchgen.b": "batchgen.c", "batchgen.c": "batchgen.a"}


def test_two_cycles_are_two(tmp_path: Path) -> None:
    imports = {"a": "b", "b": "a", "c": "d", "d": "c"}
    files = {f"batchgen/{name}.py": f"import batchgen.{imported}\n" for name, imported in imports.items()}
    assert len(find_cycles(read_modules(write(tmp_path, files)))) == 2


def test_the_command_prints_the_lists_and_then_json(tmp_path: Path, figures: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "scripts.metrics", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    *text, last = done.stdout.splitlines()
    assert json.loads(last) == figures
    assert text == list(lines(figures))
    assert "files with the name `origin`: 1" in text
