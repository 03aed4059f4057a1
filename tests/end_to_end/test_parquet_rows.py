"""Parquet through a run: every text-like column type, messages as Arrow stores them, folders, clashing names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.harness import TinyRunner

TEXTS = ["note a", "note b"]
PLAIN = pa.array(TEXTS)
MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "note a"}],
    [{"role": "user", "content": "note b", "name": "kim"}],
    [{"role": "user", "content": None}],
    [],
]


@pytest.mark.parametrize(
    "type",
    [
        pa.string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
    ],
    ids=str,
)
def test_every_text_like_type_is_text(run_tiny: TinyRunner, type: pa.DataType) -> None:
    column = PLAIN.dictionary_encode() if pa.types.is_dictionary(type) else PLAIN.cast(type)
    result = run_tiny(pa.table({"prompt": column}))
    assert result.exit_code == 0
    assert result.completions == ["A", "B"]
    assert result.column("prompt_tokens") == [12, 12]
    assert result.table.schema.field("prompt").type == type


def test_null_typed_system_is_no_system(run_tiny: TinyRunner) -> None:
    result = run_tiny(pa.table({"prompt": PLAIN, "system": pa.nulls(2)}), input={"system": "system"})
    assert result.exit_code == 0
    assert result.completions == ["A", "B"]
    assert result.column("prompt_tokens") == [12, 12]


@pytest.mark.parametrize(
    ("column", "type"), [(pa.array([TEXTS, TEXTS]), "list<"), (pa.array([1, 2]), "int64")], ids=["list", "int64"]
)
def test_prompt_column_of_another_type_is_refused(run_tiny: TinyRunner, column: pa.Array, type: str) -> None:
    result = run_tiny(pa.table({"prompt": column}))
    assert result.exit_code == 2
    assert "'prompt'" in result.error
    assert type in result.error


def test_messages_with_arrows_nulls(run_tiny: TinyRunner) -> None:
    result = run_tiny(pa.table({"chat": MESSAGES}), input={"messages": "chat"})
    assert result.exit_code == 3
    assert result.completions == ["A", "B", None, None]
    assert "row 3" in result.rows[2]["error"]
    assert "messages[0].content" in result.rows[2]["error"]
    assert "row 4" in result.rows[3]["error"]
    assert "no messages" in result.rows[3]["error"]
    lines = run_tiny([{"chat": MESSAGES[0]}], input={"messages": "chat"})
    assert result.column("prompt_tokens")[0] == lines.column("prompt_tokens")[0] == 12


def test_messages_with_parts_of_text(run_tiny: TinyRunner) -> None:
    parts = [{"type": "text", "text": "note "}, {"type": "text", "text": "d"}]
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    chats = [[{"role": "user", "content": content}] for content in (parts, image)]
    result = run_tiny([{"chat": chat} for chat in chats], input={"messages": "chat"})
    assert result.completions == ["D", None]
    assert result.column("prompt_tokens") == [12, None]
    assert "messages[0].content[0]" in result.rows[1]["error"]
    assert "image_url" in result.rows[1]["error"]


def test_columns_of_an_earlier_run_are_refused(run_tiny: TinyRunner) -> None:
    rows = pa.table({"prompt": PLAIN, "completion": ["x", "y"], "error": [None, "z"]})
    refused = run_tiny(rows)
    assert refused.exit_code == 2
    for name in ("completion", "error", "output.prefix"):
        assert name in refused.error
    assert not any(refused.folder.glob("*"))
    renamed = run_tiny(rows, output={"prefix": "gen_"})
    assert renamed.exit_code == 0
    assert renamed.column("gen_completion") == ["A", "B"]
    assert (renamed.column("completion"), renamed.column("error")) == (["x", "y"], [None, "z"])


def test_column_that_differs_in_case_keeps_its_own_name(run_tiny: TinyRunner) -> None:
    result = run_tiny(pa.table({"prompt": PLAIN, "Completion": ["x", "y"]}))
    assert result.exit_code == 0
    assert (result.column("Completion"), result.column("completion")) == (["x", "y"], ["A", "B"])
    names = result.table.column_names
    assert len(set(names)) == len(names)


def test_two_columns_of_one_name_are_refused(run_tiny: TinyRunner) -> None:
    result = run_tiny(pa.Table.from_arrays([PLAIN, PLAIN], names=["prompt", "prompt"]))
    assert result.exit_code == 2
    assert "'prompt'" in result.error


def test_folder_is_read_in_natural_order_with_all_columns(run_tiny: TinyRunner, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    parts = {
        0: {"prompt": ["note a"], "meta": pa.nulls(1)},
        1: {"prompt": ["note b"], "meta": ["m1"]},
        2: {"prompt": ["note c"], "meta": ["m2"], "extra": [2.5]},
        10: {"prompt": ["note d"], "meta": ["m10"]},
    }
    for number, columns in parts.items():
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").write_bytes(b"crc")
    result = run_tiny(folder)
    assert result.exit_code == 0
    assert result.completions == ["A", "B", "C", "D"]
    assert result.column("meta") == [None, "m1", "m2", "m10"]
    assert result.column("extra") == [None, None, 2.5, None]


def test_folder_without_data_is_refused(run_tiny: TinyRunner, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    result = run_tiny(folder)
    assert result.exit_code == 2
    assert str(folder) in result.error


def test_folder_with_two_formats_is_refused(run_tiny: TinyRunner, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"prompt": PLAIN}), folder / "a.parquet")
    (folder / "b.jsonl").write_text('{"prompt": "note c"}\n')
    result = run_tiny(folder)
    assert result.exit_code == 2
    assert str(folder) in result.error


def test_bad_row_in_a_folder_is_named_by_file_and_row(run_tiny: TinyRunner, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"prompt": PLAIN}), folder / "a.parquet")
    pq.write_table(pa.table({"prompt": ["note c", None]}), folder / "b.parquet")
    result = run_tiny(folder)
    assert result.completions == ["A", "B", "C", None]
    assert "b.parquet row 2: " in result.rows[3]["error"]
    assert "'prompt'" in result.rows[3]["error"]
