"""Input as other tools leave it: times of every kind, columns in folder names, tables, columns inside structs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.harness import TinyRunner, prompts
from tests.tiny_models import uniform_model

NANOSECONDS = [0, 1, 1_700_000_000_123_456_789, 1_700_000_000_123_456_790]
TIMES = {
    "plain": pa.timestamp("ns"),
    "utc": pa.timestamp("ns", "UTC"),
    "z": pa.timestamp("ns", "Z"),
    "offset": pa.timestamp("ns", "+01:00"),
    "paris": pa.timestamp("ns", "Europe/Paris"),
    "time": pa.time64("ns"),
    "gap": pa.duration("ns"),
    "seconds": pa.timestamp("ms", "UTC"),
    "day": pa.date32(),
}
SAMPLED = {"temperature": 1, "seed": 7, "max_tokens": 12, "ignore_eos": True}
CHAT = [{"role": "user", "content": "note a"}]


def times() -> pa.Table:
    """Return a row for each of NANOSECONDS; times of day and days have a smaller range."""
    counts = {"time": [n % 10**9 for n in NANOSECONDS], "day": [n % 10**8 for n in NANOSECONDS]}
    counts["seconds"] = [0, 1, 3_093_496_444_800_000, 2]
    return pa.table({name: pa.array(counts.get(name, NANOSECONDS), type) for name, type in TIMES.items()})


@pytest.mark.parametrize("name", ["paris", "z", "seconds", "day"])
def test_times_are_ids_and_texts_and_come_out_unchanged(run_tiny: TinyRunner, name: str) -> None:
    table = times()
    source = {"id": name, "template": f"{{{{ {name} }}}}"}
    result = run_tiny(table, model=uniform_model, input=source, sampling=SAMPLED)
    assert (result.error, result.exit_code) == ("", 0)
    for column in TIMES:
        assert result.table[column].equals(table[column])
    assert len(set(result.completions)) == len(table)  # a nanosecond makes another row


def test_times_are_printed_with_the_digits_that_count(run_tiny: TinyRunner) -> None:
    template = "{{ paris }} {{ time }} {{ gap }} {{ seconds }}"
    result = run_tiny(times(), input={"template": template})
    texts = [
        "1970-01-01T00:00:00Z 00:00:00 PT0S 1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00.000000001Z 00:00:00.000000001 PT0.000000001S 1970-01-01T00:00:00.001000Z",
        "2023-11-14T22:13:20.123456789Z 00:00:00.123456789 P19675DT22H13M20.123456789S 99999-01-01T00:00:00Z",
        "2023-11-14T22:13:20.123456790Z 00:00:00.123456790 P19675DT22H13M20.123456790S 1970-01-01T00:00:00.002000Z",
    ]
    assert result.column("prompt_tokens") == [len(text) + 6 for text in texts]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_folder_names_are_columns_of_prompts_and_output(run_tiny: TinyRunner, tmp_path: Path, format: str) -> None:
    for lang, letter in (("en", "a"), ("de", "b"), ("__HIVE_DEFAULT_PARTITION__", "c")):
        folder = tmp_path / "d" / f"lang={lang}"
        folder.mkdir(parents=True)
        rows = prompts(f"note {letter}")
        if format == "jsonl":
            (folder / "x.jsonl").write_text(json.dumps(rows[0]))
        else:
            pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    template = "{% if lang is none %}??{% else %}{{ lang }}{% endif %}: {{ prompt }}"
    result = run_tiny(tmp_path / "d", input={"template": template})
    assert result.completions == ["C", "B", "A"]
    assert result.table.column_names[:3] == ["prompt", "lang", "completion"]
    assert result.column("lang") == [None, "de", "en"]
    assert result.column("prompt_tokens") == [16, 16, 16]


def test_delta_table_is_refused_and_its_files_run_when_they_are_listed(run_tiny: TinyRunner, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log/00000000000000000001.json").write_text('{"remove": {"path": "part-0.parquet"}}\n')
    for number, letters in enumerate(["abc", "ac"]):
        pq.write_table(pa.Table.from_pylist(prompts(*letters)), folder / f"part-{number}.parquet")
    for path in (folder, folder / "*.parquet"):
        result = run_tiny(path)
        assert result.exit_code == 2
        assert f"{folder} is a Delta table" in result.error
    listed = run_tiny(folder, input={"path": [str(folder / "part-1.parquet")], "prompt": "prompt"})
    assert listed.completions == ["A", "C"]


def messages_of(kind: str) -> pa.Array:
    """Return the chat as the type of column that `kind` names."""
    if kind == "dictionary":
        roles, contents = (pa.array([CHAT[0][key]]).dictionary_encode() for key in ("role", "content"))
        return pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([roles, contents], ["role", "content"]))
    if kind == "maps":
        return pa.array([[list(CHAT[0].items())]], pa.list_(pa.map_(pa.string(), pa.string())))
    if kind == "json":
        return pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps(CHAT)]))
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps(CHAT[0]["content"])]))
    turns = pa.StructArray.from_arrays([pa.array(["user"]), texts], ["role", "content"])
    return pa.ListArray.from_arrays([0, 1], turns)


@pytest.mark.parametrize("kind", ["dictionary", "maps", "json", "content of json"])
def test_messages_of_any_type_are_what_they_say(run_tiny: TinyRunner, kind: str) -> None:
    result = run_tiny(pa.table({"chat": messages_of(kind)}), input={"messages": "chat"})
    assert (result.error, result.completions, result.column("prompt_tokens")) == ("", ["A"], [12])


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_columns_inside_structs(run_tiny: TinyRunner, format: str) -> None:
    rows = [{"body": {"messages": CHAT, "own": {"max_tokens": 1}}, "meta": {"id": n}} for n in range(2)]
    columns = {"messages": "body.messages", "id": "meta.id", "sampling": "body.own"}
    source: Any = rows if format == "jsonl" else pa.Table.from_pylist(rows)
    result = run_tiny(source, input=columns)
    assert (result.completions, result.column("completion_tokens")) == (["A", "A"], [1, 1])
    assert result.column("meta") == [{"id": 0}, {"id": 1}]
    wrong = run_tiny(source, input={"messages": "body.message"})
    assert wrong.exit_code == 2
    assert "no column 'body.message' (input.messages); did you mean 'body.messages'?" in wrong.error
