"""Paths of a job file: variables and `~`, relative paths, hub ids, and conflicts with the output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchgen.errors import SpecError
from batchgen.spec.job_spec import JobSpec
from batchgen.spec.paths import absolute_path, input_path, model_path, output_conflicts


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOPE_X", raising=False)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("in.parquet", "/jobs/day/in.parquet"),
        ("./in/", "/jobs/day/in"),
        ("../../in", "/in"),
        ("a/../b", "/jobs/day/a/../b"),  # `a` may be a link, so `a/..` is not always `.`
        ("/abs/in", "/abs/in"),
        ("~/in", "/home/me/in"),
        ("${DATA}/in", "/data/in"),
        ("x${DATA}", "/jobs/day/x/data"),
        ("s3://bucket/in", "s3://bucket/in"),
        ("file:///data/in", "/data/in"),
        ("s3://${DATA}/in", "s3:///data/in"),
    ],
)
def test_path_becomes_absolute(text: str, path: str) -> None:
    assert absolute_path(text, Path("/jobs/day")) == path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NOPE_X}/o", "the environment variable NOPE_X is not set"),
        ("${EMPTY}/o", "the environment variable EMPTY is empty"),
        ("$HOME/o", r"\$ without a variable"),
        ("${HOME/o", r"\$ without a variable"),
        ("~no-such-user/o", "no home folder for ~no-such-user"),
        ("a\0b", r"U\+0000"),
    ],
)
def test_path_that_would_be_taken_literally_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        absolute_path(text, Path("/jobs"))


@pytest.mark.parametrize("text", ["gpt2", "HuggingFaceTB/SmolLM2-135M", "hf://owner/name"])
def test_model_that_is_not_a_path_is_a_hub_id(tmp_path: Path, text: str) -> None:
    assert model_path(text, tmp_path) == text


@pytest.mark.parametrize("text", ["./m", "m.gguf", "a/m.gguf", "here", "here/in"])
def test_model_that_looks_like_a_path_or_exists_is_local(tmp_path: Path, text: str) -> None:
    (tmp_path / "here" / "in").mkdir(parents=True)
    assert model_path(text, tmp_path) == str(tmp_path / text)


def test_pattern_finds_its_files_in_a_folder_named_like_a_pattern(tmp_path: Path) -> None:
    import glob

    folder = tmp_path / "run[1]"
    folder.mkdir()
    (folder / "a.jsonl").touch()
    assert glob.glob(input_path("*.jsonl", folder)) == [str(folder / "a.jsonl")]
    assert input_path("a.jsonl", folder) == str(folder / "a.jsonl")


def conflicts(output: str, *inputs: str, model: str = "gpt2") -> list[str]:
    spec = JobSpec.model_validate(
        {"model": {"path": model}, "input": {"path": list(inputs), "text": "t"}, "output": {"path": output}}
    )
    return list(output_conflicts(spec, Path("/jobs/job.yaml")))


@pytest.mark.parametrize(
    ("output", "source"),
    [
        *[("/d/in", "/d/in"), ("/d", "/d/in"), ("/d/in/out", "/d/in"), ("/d/x/../in", "/d/in"), ("/d", "/d/*.jsonl")],
        *[("s3://b/in", "s3://b/in/"), ("s3://b", "s3://b/in"), ("s3://b/in/out", "s3://b/in")],
    ],
)
def test_output_and_input_may_not_contain_each_other(output: str, source: str) -> None:
    assert conflicts(output, "/other", source) == [f"would mix with the input {source}; choose another folder"]


@pytest.mark.parametrize("source", ["/d/in", "/d/outside", "/d/*.jsonl", "s3://d/out"])
def test_output_beside_the_input_is_fine(source: str) -> None:
    assert conflicts("/d/out", source) == []


@pytest.mark.parametrize("source", ["s3://b/output", "s3://other/out", "gs://b/out", "/b/out"])
def test_output_in_a_store_beside_the_input_is_fine(source: str) -> None:
    assert conflicts("s3://b/out", source) == []


def test_output_may_contain_neither_the_model_nor_the_job_file() -> None:
    assert conflicts("/m", "/d", model="/m/a.gguf") == ["would contain the model /m/a.gguf; choose another folder"]
    assert conflicts("/jobs", "/d") == ["would contain the job file /jobs/job.yaml; choose another folder"]


def test_output_is_compared_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert os.path.lexists(tmp_path / "link")
    assert len(conflicts(str(tmp_path / "link"), str(tmp_path / "real" / "in.parquet"))) == 1
