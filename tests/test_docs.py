"""The README says what is true: its commands, its job file, its keys and its tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchgen.cli import main
from batchgen.spec.job_spec import JobSpec
from batchgen.spec.load import load_job

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_has_help_and_is_in_the_readme() -> None:
    for name, command in main.commands.items():
        assert command.help, name
        assert "Example:" in command.help, name
        assert f"batchgen {name}" in README


def test_the_two_commands_are_what_ci_runs() -> None:
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for command in ("bash scripts/quickstart.sh", "bash scripts/test.sh"):
        assert command in README
        assert command in ci


def test_the_job_file_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "job.yaml").write_text(block, encoding="utf-8")
    assert load_job(tmp_path / "job.yaml").spec.sampling.max_tokens == 64


@pytest.mark.parametrize("section", [*JobSpec.model_fields])
def test_every_key_is_in_the_table(section: str) -> None:
    annotation = JobSpec.model_fields[section].annotation
    keys = getattr(annotation, "model_fields", None)
    (row,) = re.findall(rf"^\| `?{section if keys else 'top level'}`? \|(.*)\|$", README, re.MULTILINE)
    assert set(keys or [section]) <= set(re.findall(r"`(\w+)`", row))


def test_the_tree_names_every_file_of_the_packages_but_those_of_described_rooms() -> None:
    tree = README[README.index("```\nbatchgen/") :]
    described = ("io", "input", "output", "prompts", "plan", "models", "stats")  # in words, a line each
    files = [
        path
        for package in (ROOT / "batchgen", ROOT / "kernels/batchgen_kernels")
        for path in package.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py") and path.parent.name not in described
    ]
    assert not [str(path) for path in files if path.name not in tree]
    assert not [room for room in described if f"  {room}/" not in tree]


def test_the_tree_names_nothing_that_is_not_there() -> None:
    tree = README[README.index("```\nbatchgen/") : README.index("## Limits")]
    names = re.findall(r"[\w]+\.(?:py|sh)", tree)
    there = {path.name for folder in ("batchgen", "kernels", "scripts") for path in (ROOT / folder).rglob("*")}
    assert len(names) > 20
    assert set(names) <= there
