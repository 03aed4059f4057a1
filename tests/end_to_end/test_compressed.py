"""Whole jobs on compressed JSON lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from tests.end_to_end.harness import TinyRunner, json_lines, prompts


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.ndjson.zst"])
def test_answers_are_those_of_the_plain_file(run_tiny: TinyRunner, tmp_path: Path, name: str) -> None:
    pack = gzip.compress if name.endswith(".gz") else zstd
    plain = json_lines(prompts("note a", "note b", "note c"))
    packed = pack(plain[:30]) + pack(plain[30:])
    assert run_tiny(written(tmp_path / name, packed)).table == run_tiny(plain).table


def test_bad_line_is_named_as_in_a_plain_file(run_tiny: TinyRunner, tmp_path: Path) -> None:
    data = gzip.compress(b'{"prompt":"note a"}\n\n{"prompt":\n{"prompt":"note d"}\n')
    result = run_tiny(written(tmp_path / "x.jsonl.gz", data))
    assert (result.exit_code, result.completions) == (3, ["A", None, "D"])
    assert "x.jsonl.gz line 3: " in result.rows[1]["error"]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
def test_cut_off_file_is_refused_before_anything_is_generated(run_tiny: TinyRunner, tmp_path: Path, name: str) -> None:
    pack = gzip.compress if name.endswith(".gz") else zstd
    rows = json_lines(prompts(*(f"note {letter}" for letter in "abcdefgh")))
    result = run_tiny(written(tmp_path / name, pack(rows) + pack(rows)[:-3]))
    assert result.exit_code == 2
    assert f"{name}: the " in result.error
    assert "data is cut off" in result.error
    assert not (result.folder / "completions").exists()


def test_file_that_is_not_what_its_name_says_is_refused(run_tiny: TinyRunner, tmp_path: Path) -> None:
    result = run_tiny(written(tmp_path / "x.jsonl.gz", json_lines(prompts("note a"))))
    assert result.exit_code == 2
    assert "x.jsonl.gz: not gzip data, although the name says so" in result.error


def test_format_jsonl_reads_a_bare_compressed_name(run_tiny: TinyRunner, tmp_path: Path) -> None:
    path = written(tmp_path / "x.zst", zstd(json_lines(prompts("note a"))))
    assert run_tiny(path).exit_code == 2
    assert run_tiny(path, input={"format": "jsonl"}).completions == ["A"]


def test_compressed_parquet_is_refused(run_tiny: TinyRunner, tmp_path: Path) -> None:
    result = run_tiny(written(tmp_path / "x.parquet.gz", gzip.compress(b"PAR1....PAR1")))
    assert result.exit_code == 2
    assert "x.parquet.gz: Parquet in .gz is not supported; decompress it" in result.error
