"""Whole jobs with `output.format: jsonl`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.end_to_end.harness import ADDED, TinyRunner, prompts

JSONL = {"format": "jsonl"}


def test_lines_hold_what_parquet_holds(run_tiny: TinyRunner) -> None:
    rows = [{"id": n, "prompt": f"note {c}", "tags": [{"k": c}]} for n, c in enumerate("abc")]
    as_parquet, as_lines = run_tiny(rows), run_tiny(rows, output=JSONL)
    assert as_lines.exit_code == 0
    [part] = (as_lines.folder / "completions").iterdir()
    assert part.name == "part-00000.jsonl"
    assert [json.loads(line) for line in part.read_bytes().splitlines()] == as_parquet.rows


def test_failed_row_has_null_for_what_is_not_known(run_tiny: TinyRunner) -> None:
    result = run_tiny(b'{"prompt":"note a"}\n{"prompt":\n', output=JSONL)
    assert result.exit_code == 3
    good, bad = map(json.loads, (result.folder / "completions" / "part-00000.jsonl").read_bytes().splitlines())
    assert list(bad) == list(good) == ["prompt", *(name for name, _ in ADDED)]
    assert (good["completion"], good["error"]) == ("A", None)
    assert (bad["prompt"], bad["completion"], bad["finish_reason"], bad["prompt_tokens"]) == (None, None, "error", None)


def test_lines_are_the_input_of_the_next_job(run_tiny: TinyRunner) -> None:
    first = run_tiny(prompts("note a", "note b"), output=JSONL)
    second = run_tiny(first.folder / "completions", output={"prefix": "again_"})
    assert second.column("again_completion") == second.completions == ["A", "B"]


def test_bytes_are_base64_and_parquet_is_still_to_be_had(run_tiny: TinyRunner, tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["note a"], "image": [b"\xff\xd8"]}), tmp_path / "in.parquet")
    result = run_tiny(tmp_path / "in.parquet", output=JSONL)
    assert json.loads((result.folder / "completions" / "part-00000.jsonl").read_bytes())["image"] == "/9g="
    assert run_tiny(tmp_path / "in.parquet").column("image") == [b"\xff\xd8"]
