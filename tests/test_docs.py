"""The documents agree with the code: their links, commands, paths, job files, keys and columns.

Knows Markdown as far as these documents use it. A change of the code that makes a document wrong fails here.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batchgen import cli
from batchgen.cli import main
from batchgen.io.output.schema import EXPORT_SCHEMA, added_columns
from batchgen.sampling_params import SamplingParams
from batchgen.spec.job_spec import JobSpec
from batchgen.spec.load import load_job

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "kernels/*.md", "jobs/data/*.md", "jobs/bench/*.md")
    for path in ROOT.glob(pattern)
)
BASES = [ROOT / base for base in (".", "batchgen", "kernels", "kernels/batchgen_kernels")]  # what paths may start from
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
REQUIRED_SECTIONS = ("model: {path: some/model}", "input: {path: rows.jsonl, prompt: prompt}", "output: {path: out}")
FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # keys that a model may have a value for


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def prose(name: str) -> str:
    """Return a document without its code blocks."""
    return FENCE.sub("", text_of(name))


@cache
def codes(name: str) -> list[str]:
    """Return every line of the code blocks, and every inline code."""
    lines = [line for _, block in FENCE.findall(text_of(name)) for line in block.splitlines()]
    return [*lines, *re.findall(r"`([^`\n]+)`", prose(name))]


# Links


def anchors(name: str) -> set[str]:
    """Return the anchors that GitHub and GitLab give to the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", prose(name), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(name: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(name)) if "://" not in link]


def target(name: str, link: str) -> Path:
    path = link.partition("#")[0]
    return ((ROOT / name).parent / path if path else ROOT / name).resolve()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_internal_link_resolves(name: str) -> None:
    broken = [link for link in links(name) if not target(name, link).exists()]
    anchored = [(link, str(target(name, link).relative_to(ROOT))) for link in links(name) if "#" in link]
    broken += [link for link, path in anchored if link.partition("#")[2] not in anchors(path)]
    assert broken == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, new = set(), {"README.md"}
    while new:
        reached |= new
        found = {target(name, link) for name in new for link in links(name)}
        new = {str(path.relative_to(ROOT)) for path in found if path.suffix == ".md"} - reached
    assert set(DOCUMENTS) - reached == set()


# Commands and paths


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_script_exists(name: str) -> None:
    code = "\n".join(codes(name))
    modules = [ROOT.joinpath(*name.split(".")) for name in re.findall(r"python3? -m (scripts[\w.]*)", code)]
    files = [ROOT / file for file in re.findall(r"(?:python3?|bash) (scripts/[\w./-]+)", code)]
    missing = [path for path in files if not path.is_file()]
    missing += [path for path in modules if not path.with_suffix(".py").is_file() | (path / "__main__.py").is_file()]
    assert missing == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_batchgen_command_and_its_options_exist(name: str) -> None:
    unknown = []
    for code in codes(name):
        for command, rest in re.findall(r"(?<![\w./'-])batchgen ([a-z]\w*)(.*)", code):
            options = set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest.partition("#")[0]))
            params = main.commands[command].params if command in main.commands else None
            if params is None or not options <= {option for param in params for option in param.opts}:
                unknown.append(code)
    assert unknown == []


def test_every_command_has_help_with_an_example_and_is_in_the_readme() -> None:
    for name, command in main.commands.items():
        assert command.help, name
        assert "Example:" in command.help, name
        assert f"batchgen {name}" in text_of("README.md")


def test_the_two_commands_of_the_readme_are_what_ci_runs() -> None:
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for command in ("bash scripts/quickstart.sh", "bash scripts/test.sh"):
        assert command in text_of("README.md")
        assert command in ci


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_in_code_exists(name: str) -> None:
    """A path such as `io/input/rows.py` starts at the root or at a package; a bare file name may be anywhere."""
    is_path = re.compile(r"[\w/.-]+\.(py|sh|md)|(tests|scripts|docs|kernels|jobs|batchgen)(/[\w.-]+)+/?")
    paths = [code for code in re.findall(r"`([^`\n]+)`", prose(name)) if is_path.fullmatch(code)]
    names = {path.name for folder in ("batchgen", "kernels", "scripts", "tests") for path in (ROOT / folder).rglob("*")}
    missing = [path for path in paths if path not in names and not any((base / path).exists() for base in BASES)]
    assert [path for path in missing if not path.startswith("jobs/models/")] == []  # these are there after a download


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_test_that_is_named_exists(name: str) -> None:
    """`test_x.py::test_y...` is a test of that file whose name begins so; `::test_z...` is one of the same file."""
    missing, file = [], ""
    for code in codes(name):
        match = re.fullmatch(r"(test_\w+\.py)?::(test_\w+)(\.\.\.)?(\[\w+\])?", code)
        file = match[1] or file if match else file
        if match and not any(f"def {match[2]}" in text_of(str(path)) for path in ROOT.glob(f"tests/**/{file}")):
            missing.append(code)
    assert missing == []


# The job file, and the output


YAML_BLOCKS = [block for name in DOCUMENTS for language, block in FENCE.findall(text_of(name)) if language == "yaml"]


@pytest.mark.parametrize("block", YAML_BLOCKS)
def test_every_job_file_loads(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial example gets the required sections that it leaves out."""
    monkeypatch.setenv("DATE", "2026-11-30")
    missing = [section for section in REQUIRED_SECTIONS if section.split()[0] not in block.split()]
    (tmp_path / "job.yaml").write_text("\n".join([block, *missing]), encoding="utf-8")
    assert load_job(tmp_path / "job.yaml").spec.output.path


def type_of(schema: dict[str, Any]) -> str:
    """Return the type of a JSON schema as docs/job_file.md writes it."""
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        *kinds, last = map(type_of, branches)
        return " or ".join(kinds) + (", or " if re.search("[≤≥<>]", kinds[-1]) else " or ") + last
    if "enum" in schema:
        *values, last = (f"`{value}`" for value in schema["enum"])
        return f"{', '.join(values)} or {last}"
    if schema.get("type") == "array":
        return f"list of {type_of(schema['items'])}"
    kind = {"string": "text", "object": "mapping"}.get(schema.get("type", "object"), schema.get("type"))
    return f"{kind} {', '.join(bounds(schema))}".strip()


def bounds(schema: dict[str, Any]) -> Iterator[str]:
    for key, sign in {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}.items():
        if key in schema:
            yield f"{sign} {schema[key]}"
    if "exclusiveMaximum" in schema:
        yield f"< 2^{schema['exclusiveMaximum'].bit_length() - 1}"


def default_of(section: str, key: str, schema: dict[str, Any]) -> str:
    """Return the default as docs/job_file.md writes it; a key that a model may give has its built-in value too."""
    if "default" not in schema:
        return "required"
    default = schema["default"]
    shown = f"`{default if isinstance(default, str) and default else json.dumps(default)}`"
    built_in = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    return f"{shown}: the model's, else `{built_in[key]}`" if section == "sampling" and key in FROM_MODEL else shown


def keys_of_the_schema() -> Iterator[tuple[str, str, str, str]]:
    """Yield section, key, type and default of every key."""
    schema = JobSpec.model_json_schema()
    references = {name: value.get("$ref", "").split("/")[-1] for name, value in schema["properties"].items()}
    for section, reference in {**references, "sampling.structured": "StructuredSpec"}.items():
        keys = schema["$defs"][reference]["properties"] if reference else {section: schema["properties"][section]}
        for key, value in keys.items():
            yield section if reference else "Top level", key, type_of(value), default_of(section, key, value)


def keys_of_the_document() -> Iterator[tuple[str, str, str, str]]:
    """Yield the same from the tables of docs/job_file.md, whose headings are the sections."""
    for part in re.split(r"^##+ ", text_of("docs/job_file.md"), flags=re.MULTILINE):
        section, _, content = part.partition("\n")
        for line in re.findall(r"^\| `\w+` \|.*$", content, re.MULTILINE):
            key, kind, default, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            assert meaning.endswith("."), f"{key}: the meaning is not a sentence"
            yield section, key.strip("`"), kind, default


def test_the_tables_of_the_job_file_are_those_of_the_schema() -> None:
    assert sorted(keys_of_the_document()) == sorted(keys_of_the_schema())


def test_the_columns_of_the_output_are_documented() -> None:
    lines = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", text_of("docs/output.md"), re.MULTILINE)
    assert [name for name, _, _ in lines] == EXPORT_SCHEMA.names[1:]
    assert {name for name, _, present in lines if present == "always"} == set(added_columns())
    types = {name: kind.strip("`") for name, kind, _ in lines if kind.startswith("`")}
    assert types == {name: str(EXPORT_SCHEMA.field(name).type) for name in types}


def test_the_exit_codes_are_those_that_the_command_line_lists() -> None:
    table = text_of("docs/output.md").split("| exit code |")[1].split("\n\n")[0]
    documented = {code for cell in re.findall(r"^\| (\d[\d, ]*) \|", table, re.MULTILINE) for code in cell.split(", ")}
    assert documented == set(re.findall(r"(?<=\s\s)\d+(?=\s\s)", cli.__doc__ or ""))
    assert "143" in documented


# Words


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 120


def test_no_text_refers_to_what_is_not_in_the_repository() -> None:
    """Numbered cases and a design paper exist outside of it only: a test states the fault or the definition itself."""
    outside = re.compile(r"\bC[0-9]{2}\b|" + "DES" + "IGN")
    folders = [ROOT / name for name in ("tests", "batchgen", "kernels", "docs", "scripts", "jobs")]
    kinds = ("*.py", "*.md", "*.sh", "*.yaml", "*.slurm", "*.jinja")
    files = [*ROOT.glob("*.md"), *(path for folder in folders for kind in kinds for path in folder.rglob(kind))]
    texts = {path: path.read_text(encoding="utf-8") for path in files if "jobs/models" not in path.as_posix()}
    assert len(texts) > 200
    assert [(str(path), found[0]) for path, text in texts.items() for found in outside.finditer(text)] == []
