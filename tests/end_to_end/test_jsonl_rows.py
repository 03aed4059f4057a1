"""JSON lines through a run: what lines may look like, and that a bad one fails alone, by file, line and key."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from transformers import PreTrainedTokenizerFast

from tests.end_to_end.harness import ADDED, TinyRunner, json_lines, prompts
from tests.tiny_models import byte_tokenizer, uniform_model

DAMAGED: list[dict[str, Any]] = [
    {"prompt": ""},
    {"prompt": None},
    {"other": 1},
    {"prompt": "   "},
    {"prompt": 123},
    {"prompt": ["note a"]},
    {"prompt": "note a"},
]


def byte_tokenizer_with_bos() -> PreTrainedTokenizerFast:
    return byte_tokenizer(add_bos=True)


def test_repeated_ids_and_prompts_keep_every_row(run_tiny: TinyRunner) -> None:
    rows = [("k", "note a"), ("k", "note b"), ("m", "note c"), ("m", "note c")]
    result = run_tiny([{"id": id, "prompt": prompt} for id, prompt in rows], input={"id": "id"})
    assert result.exit_code == 0
    assert result.completions == ["A", "B", "C", "C"]
    assert result.column("id") == ["k", "k", "m", "m"]


@pytest.mark.parametrize("id", [None, "k"], ids=["no-id", "same-id"])
def test_equal_prompts_are_sampled_apart(run_tiny: TinyRunner, id: str | None) -> None:
    result = run_tiny(
        [{"id": id, "prompt": "note c"}] * 2,
        model=uniform_model,
        input={"id": "id"},
        sampling={"temperature": 1, "seed": 3},
    )
    first, second = result.completions
    assert first != second


def test_ids_come_out_as_they_went_in(run_tiny: TinyRunner) -> None:
    """Neither a date nor a number beyond the whole ones of a float is made of them."""
    ids = ["2024-01-01", "2024-01-01T10:00:00Z", "007", "1e5"]
    assert run_tiny([{"id": id, "prompt": "a"} for id in ids], input={"id": "id"}).column("id") == ids
    numbers = [2**53 + 1, 2**63 - 1, -(2**63)]
    assert run_tiny([{"id": id, "prompt": "a"} for id in numbers], input={"id": "id"}).column("id") == numbers


def test_values_that_utf8_or_json_cannot_hold_fail_alone(run_tiny: TinyRunner) -> None:
    lines = [
        rb'{"id":"1","prompt":"note a"}',
        rb'{"id":"2","prompt":"half \ud83d a"}',
        rb'{"id":"3","prompt":"nul \u0000 a"}',
        rb'{"id":"4","prompt":"note d","score":NaN}',
        rb'{"id":"5","prompt":"note e","prompt":"note f"}',
    ]
    result = run_tiny(b"\n".join(lines) + b"\n")
    assert result.exit_code == 3
    assert result.completions == ["A", None, "A", "D", None]
    assert result.column("id")[:4] == ["1", "2", "3", "4"]
    half, doubled = result.rows[1]["error"], result.rows[4]["error"]
    assert "line 2" in half
    assert '"prompt"' in half
    assert "line 5" in doubled
    assert '"prompt"' in doubled
    assert result.rows[2]["prompt"] == "nul \0 a"
    assert result.rows[3]["score"] != result.rows[3]["score"]  # NaN


def test_type_and_key_first_seen_late_are_carried(run_tiny: TinyRunner) -> None:
    num_early = 2500  # more than are read at once
    early: list[dict[str, Any]] = [{"id": 1, "prompt": "note a"}] * num_early
    late: list[dict[str, Any]] = [{"id": "x9", "prompt": "note b", "note": "n"}, {"id": None, "prompt": "note c"}]
    result = run_tiny(json_lines([*early, *late]), engine={"max_num_seqs": 512})
    assert result.exit_code == 0
    table = result.table
    assert table.num_rows == num_early + 2
    assert result.completions[:num_early] == ["A"] * num_early
    assert result.completions[-2:] == ["B", "C"]
    assert table["id"].slice(num_early - 1).to_pylist() == ["1", "x9", None]
    assert table["note"].drop_null().to_pylist() == ["n"]


def test_empty_null_and_blank_prompts_in_a_chat(run_tiny: TinyRunner) -> None:
    result = run_tiny(DAMAGED)
    assert result.exit_code == 3
    assert [reason == "error" for reason in result.column("finish_reason")] == [0, 1, 1, 0, 1, 1, 0]
    assert result.completions[-1] == "A"
    assert result.column("prompt_tokens") == [6, None, None, 9, None, None, 12]
    for line in (2, 3, 5, 6):
        error = result.rows[line - 1]["error"]
        assert f"line {line}" in error
        assert "'prompt'" in error


@pytest.mark.parametrize("with_bos", [False, True], ids=["no-bos", "bos"])
def test_empty_null_and_blank_prompts_in_raw_text(run_tiny: TinyRunner, with_bos: bool) -> None:
    tokenizer = byte_tokenizer_with_bos if with_bos else byte_tokenizer
    result = run_tiny(DAMAGED, tokenizer=tokenizer, input={"text": "prompt"})
    assert result.exit_code == 3
    assert [reason == "error" for reason in result.column("finish_reason")] == [not with_bos, 1, 1, 0, 1, 1, 0]
    assert result.completions[-1] == "A"
    assert result.column("prompt_tokens")[3:] == [3 + with_bos, None, None, 6 + with_bos]
    if not with_bos:
        error = result.rows[0]["error"]
        assert "line 1" in error
        assert "'prompt'" in error
        assert "no tokens" in error


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"prompt":"note a"}\r\n{"prompt":"note b"}\r\n',
        b'\n{"prompt":"note a"}\n\n   \t\n{"prompt":"note b"}\n\n  \n',
        b'{"prompt":"note a"}\n{"prompt":"note b"}',
    ],
    ids=["bom-crlf", "blank-lines", "no-last-newline"],
)
def test_windows_and_blank_lines_are_read(run_tiny: TinyRunner, content: bytes) -> None:
    result = run_tiny(content)
    assert (result.exit_code, result.completions) == (0, ["A", "B"])
    assert result.table.column_names[0] == "prompt"


@pytest.mark.parametrize(
    ("content", "line", "position"),
    [
        (b'{"id":"1","prompt":"note a"}\n\n{"id":"3","prompt":"secret', 3, "column 20"),
        (b'{"id":"1","prompt":"note a"}\n{"id":"2","prompt":"secret",}\n', 2, "column 2"),  # 28 or 29, as Python has it
        (b'{"id":"1","prompt":"note a"}\n{"id":"2","prompt":"secret\xe9"}\n', 2, "byte 27"),
    ],
    ids=["cut-off", "trailing-comma", "latin-1"],
)
def test_broken_line_is_named_and_not_shown(run_tiny: TinyRunner, content: bytes, line: int, position: str) -> None:
    result = run_tiny(content)
    assert result.exit_code == 3
    assert result.completions == ["A", None]
    error = result.rows[1]["error"]
    assert f"job-1-in.jsonl line {line}: " in error
    assert position in error
    assert "secret" not in error


def test_file_of_broken_lines_has_our_columns(run_tiny: TinyRunner) -> None:
    result = run_tiny(b'{"prompt":"note a"\n[1]\n')
    assert result.exit_code == 3
    assert [(field.name, field.type) for field in result.table.schema] == ADDED
    assert ["line 1" in result.rows[0]["error"], "line 2" in result.rows[1]["error"]] == [True, True]


def test_json_array_is_no_lines_file(run_tiny: TinyRunner) -> None:
    result = run_tiny(json.dumps(prompts("note a", "note b"), indent=1).encode())
    assert result.exit_code == 2
    assert "array, not lines" in result.error
    assert not result.folder.exists()


def test_line_of_3_mb_fails_with_its_token_count(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("note a", "x" * 3_000_000, "note c"))
    assert result.exit_code == 3
    assert result.completions == ["A", None, "C"]
    assert result.column("prompt_tokens") == [12, 3_000_006, 12]
    assert "3000006 tokens" in result.rows[1]["error"]
    assert len(result.rows[1]["error"]) < 300
    assert result.table.schema.field("prompt").type == pa.string()


def test_a_prompt_column_that_no_row_has_is_refused_with_the_nearest_name(run_tiny: TinyRunner) -> None:
    result = run_tiny([{"id": "1", "prompt": "note a"}], input={"prompt": "promt"})
    assert result.exit_code == 2
    assert "no column 'promt' (input.prompt); did you mean 'prompt'?" in str(result.error)


def test_an_optional_column_that_no_row_has_is_warned_of(
    run_tiny: TinyRunner, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_tiny([{"id": "1", "prompt": "note a"}], input={"system": "sistem"}).exit_code == 0
    assert "no column 'sistem' (input.system)" in caplog.text
