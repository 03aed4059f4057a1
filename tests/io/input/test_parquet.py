"""Parquet input: text of every type, one schema for many files, and what is refused before anything runs."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from batchgen.errors import InputError
from batchgen.io.input.readers import Input, open_input
from batchgen.spec.job_spec import InputSpec

NOTES = pa.array(["note a", "note b"])
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def open_table(folder: Path, columns: dict[str, Any], **settings: Any) -> Input:
    pq.write_table(pa.table(columns), folder / "data.parquet")
    return open_folder(folder / "data.parquet", **settings)


def open_folder(path: Path, **settings: Any) -> Input:
    ways = {} if {"messages", "token_ids", "template"} & settings.keys() else {"prompt": "prompt"}
    return open_input(InputSpec(path=str(path), **{**ways, **settings}))


def carried(input: Input) -> pa.Table:
    return pa.Table.from_batches(input.read_batches(), input.schema)


@pytest.mark.parametrize(
    "type",
    [
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
        *(DICTIONARY, pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.binary())),
    ],
    ids=str,
)
def test_every_text_type_is_text_and_is_carried_unchanged(tmp_path: Path, type: pa.DataType) -> None:
    values = pa.array([b"note a", b"note b"]) if pa.types.is_binary_view(type) else NOTES
    input = open_table(tmp_path, {"prompt": values.cast(type)})
    assert [row.values for row in input.read_rows()] == [{"prompt": "note a"}, {"prompt": "note b"}]
    assert carried(input).schema.field("prompt").type == type


def test_null_column_is_none(tmp_path: Path) -> None:
    input = open_table(tmp_path, {"prompt": NOTES, "system": pa.nulls(2)}, system="system")
    assert [row.values["system"] for row in input.read_rows()] == [None, None]


@pytest.mark.parametrize(
    ("setting", "values", "type"),
    [
        ("prompt", [[["note a"]]], "list<"),
        ("prompt", [[1]], "int64"),
        ("system", [[1.5]], "double"),
        ("messages", [[1]], "int64"),
        ("messages", [[["a"]]], "list<"),
        ("token_ids", [[[1.5]]], "list<"),
        ("token_ids", [["1 2"]], "string"),
    ],
)
def test_type_that_does_not_fit_is_refused(tmp_path: Path, setting: str, values: list[Any], type: str) -> None:
    with pytest.raises(InputError) as error:
        open_table(tmp_path, {"col": pa.array(values[0]), "prompt": pa.array(["a"])}, **{setting: "col"})
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/data.parquet: column 'col' is {type}")
    assert f"input.{setting}" in message


def test_missing_column_names_file_and_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.parquet: no column 'promt' .*did you mean 'prompt'\?"):
        open_table(tmp_path, {"prompt": NOTES}, prompt="promt")


@pytest.mark.parametrize("type", [pa.binary(), pa.string()])
def test_row_that_is_not_utf8_fails_alone(tmp_path: Path, type: pa.DataType) -> None:
    values = pa.array([b"note a", b"caf\xe9", b"note c"])
    values = pa.Array.from_buffers(type, len(values), values.buffers())  # Arrow does not validate it
    input = open_table(tmp_path, {"prompt": values})
    good, bad, after = input.read_rows()
    assert (good.values, after.values) == ({"prompt": "note a"}, {"prompt": "note c"})
    assert bad.error == 'data.parquet row 2: column "prompt": not valid UTF-8 at byte 4'
    assert carried(input).num_rows == 3


def test_messages_become_plain_lists(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": "note a"}],
        [{"role": "user", "content": "note b", "name": "kim"}],
        [{"role": "user", "content": None}],
        [],
        None,
    ]
    input = open_table(tmp_path, {"chat": pa.array(chats)}, messages="chat")
    assert [row.values["chat"] for row in input.read_rows()] == chats


@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list, pa.list_view], ids=lambda make: make.__name__)
def test_token_ids_of_every_list_type(tmp_path: Path, list_type: Any) -> None:
    input = open_table(tmp_path, {"ids": pa.array([[1, 2], None], list_type(pa.int32()))}, token_ids="ids")
    assert [row.values["ids"] for row in input.read_rows()] == [[1, 2], None]


def test_template_gets_its_columns_of_any_type(tmp_path: Path) -> None:
    columns = {
        "n": pa.array([3]),
        "choices": pa.array([["x", "y"]]),
        "blob": pa.array([b"\xff"]),
        "other": pa.array([1]),
    }
    input = open_table(tmp_path, columns, template="{{ n }} of {{ choices }}")
    assert [row.values for row in input.read_rows()] == [{"n": 3, "choices": ["x", "y"]}]


def test_files_of_a_folder_are_one_table(tmp_path: Path) -> None:
    for number, columns in {
        0: {"prompt": ["p0"], "meta": pa.nulls(1), "score": pa.array([1])},
        1: {"prompt": pa.array(["p1"]).cast(DICTIONARY), "meta": pa.array(["m1"]), "score": pa.array([0.5])},
        2: {"extra": pa.array([[2]], pa.list_view(pa.int64())), "prompt": ["p2"]},
        10: {"prompt": ["p10"], "meta": pa.array(["m10"]).cast(pa.string_view())},
    }.items():
        pq.write_table(pa.table(columns), tmp_path / f"part-{number}.parquet")
    input = open_folder(tmp_path)
    assert [row.location for row in input.read_rows()] == [f"part-{number}.parquet row 1" for number in (0, 1, 2, 10)]
    assert [row.index for row in input.read_rows()] == [0, 1, 2, 3]
    assert carried(input).to_pydict() == {
        "prompt": ["p0", "p1", "p2", "p10"],
        "meta": [None, "m1", None, "m10"],
        "score": [1.0, 0.5, None, None],
        "extra": [None, None, [2], None],
    }


def test_types_that_cannot_be_unified_are_refused_with_both_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a"], "id": [None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"prompt": ["a"], "id": [1]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"prompt": ["a"], "id": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError) as error:
        open_folder(tmp_path)
    assert str(error.value) == (
        f"column 'id' is int64 in {tmp_path}/b.parquet and string in {tmp_path}/c.parquet; convert one of them"
    )


def test_value_that_the_common_type_cannot_hold_is_found_in_the_first_pass(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a"], "id": [2**53 + 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"prompt": ["a"], "id": [0.5]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: a value does not fit"):
        list(open_folder(tmp_path).read_rows())


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([NOTES, NOTES], names=["prompt", "prompt"])
    pq.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(InputError, match=r"data\.parquet: more than one column is named 'prompt'"):
        open_folder(tmp_path)


@pytest.mark.parametrize("limit", [0, 1, 299, 300, 301, 600, 700])
def test_limit_counts_over_files_and_batches(tmp_path: Path, limit: int) -> None:
    for name, first in (("a", 0), ("b", 300)):
        pq.write_table(pa.table({"prompt": [str(first + i) for i in range(300)]}), tmp_path / f"{name}.parquet")
    input = open_folder(tmp_path, limit=limit)
    expected = [str(i) for i in range(min(limit, 600))]
    assert [row.values["prompt"] for row in input.read_rows()] == expected
    assert carried(input)["prompt"].to_pylist() == expected


def test_location_counts_rows_within_the_file(tmp_path: Path) -> None:
    input = open_table(tmp_path, {"prompt": ["x"] * 300})
    assert [row.location for row in input.read_rows()][299] == "data.parquet row 300"


def test_large_rows_make_small_batches(tmp_path: Path) -> None:
    input = open_table(tmp_path, {"prompt": [letter * (3 << 20) for letter in "abcd"]})
    pq.write_table(input_table := carried(input), tmp_path / "data.parquet", use_dictionary=False, compression="none")
    assert input_table.num_rows == 4
    assert [batch.num_rows for batch in open_folder(tmp_path / "data.parquet").read_batches()] == [2, 2]


def test_damage_in_a_carried_column_is_found_in_the_first_pass(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    columns = {"prompt": ["a"] * 100, "other": [f"other {i}" for i in range(100)]}
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
    data[start + 30 : start + 60] = b"\xff" * 30
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"data\.parquet: cannot be read as Parquet"):
        list(open_folder(path).read_rows())


def test_no_rows(tmp_path: Path) -> None:
    input = open_table(tmp_path, {"prompt": pa.array([], pa.string())})
    assert list(input.read_rows()) == []
    assert carried(input).schema.names == ["prompt"]


def test_batches_hold_the_same_rows(tmp_path: Path) -> None:
    input = open_table(tmp_path, {"id": [*range(600)], "prompt": ["note a"] * 600}, id="id")
    batches = list(input.read_row_batches())
    assert [len(batch) for batch in batches] == [256, 256, 88]
    assert [row for batch in batches for row in batch.rows()] == list(input.read_rows())


def test_batch_can_leave_out_a_column_that_arrow_reads(tmp_path: Path) -> None:
    input = open_table(tmp_path, {"id": [7], "ids": pa.array([[1, 2]])}, id="id", token_ids="ids")
    [batch] = input.read_row_batches()
    assert [row.values for row in batch.rows(without="ids")] == [{"id": 7}]
    column = batch.column("ids")
    assert column is not None
    assert column.to_pylist() == [[1, 2]]


BODY = pa.array(
    [{"id": 1, "messages": [{"role": "user", "content": "a"}]}, {"id": 2, "messages": None}, None],
    pa.struct(
        [("id", pa.int8()), ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))]
    ),
)


def test_names_with_dots_lead_into_structs(tmp_path: Path) -> None:
    input = open_table(tmp_path, {"body": BODY}, messages="body.messages", id="body.id")
    assert [row.values for row in input.read_rows()] == [
        {"body.messages": [{"role": "user", "content": "a"}], "body.id": 1},
        {"body.messages": None, "body.id": 2},
        {"body.messages": None, "body.id": None},
    ]
    assert carried(input)["body"].to_pylist() == BODY.to_pylist()


def test_token_ids_inside_a_struct_are_read_at_once(tmp_path: Path) -> None:
    column = pa.array([{"ids": [1, 2]}, None], pa.struct([("ids", pa.list_(pa.int32()))]))
    [batch] = open_table(tmp_path, {"x": column}, token_ids="x.ids").read_row_batches()
    assert batch.column("x.ids") == pa.array([[1, 2], None], pa.list_(pa.int32()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("body.mesages", r"no column 'body.mesages' \(input.messages\); did you mean 'body.messages'\? 'body' has"),
        ("body.id", "column 'body.id' is int8; input.messages needs a list of"),
        ("body.id.x", "'body.id' is int8, which has no fields"),
    ],
)
def test_name_with_dots_that_leads_nowhere_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        open_table(tmp_path, {"body": BODY}, messages=name)


def test_name_that_is_a_column_in_one_file_and_a_field_in_another_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": ["x"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [{"b": "x"}]}), tmp_path / "2.parquet")
    with pytest.raises(InputError, match=r"2\.parquet: 'a\.b' is a field of 'a', and in another file a column"):
        open_folder(tmp_path, prompt="a.b")


def test_struct_with_two_fields_of_one_name_is_carried_but_makes_no_prompt(tmp_path: Path) -> None:
    twice = pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a", "a"])
    input = open_table(tmp_path, {"prompt": ["p"], "s": twice})
    assert len(list(input.read_rows())) == 1
    assert carried(input)["s"].chunk(0).equals(twice)
    for settings in ({"id": "s"}, {"template": "{{ s.a }}"}, {"prompt": "s.a"}):
        with pytest.raises(InputError, match="column 's' has more than one field named 'a'; rename one"):
            open_table(tmp_path, {"prompt": ["p"], "s": twice}, **settings)


def test_bad_value_fails_its_row_alone(tmp_path: Path) -> None:
    texts = pa.array(['[{"role": "user", "content": "a"}]', "[", None])
    for column in (texts, texts.cast(pa.binary()), pa.ExtensionArray.from_storage(pa.json_(), texts)):
        good, bad, null = open_table(tmp_path, {"chat": column}, messages="chat").read_rows()
        assert good.values == {"chat": [{"role": "user", "content": "a"}]}
        assert str(bad.error).startswith('data.parquet row 2: column "chat": not valid JSON at column 2')
        assert null.values == {"chat": None}


class _Keys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow carries no types
    """Wraps keys by showing them."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_columns_are_named_as_the_cause(tmp_path: Path, plaintext_footer: bool) -> None:
    keys = encryption.EncryptionConfiguration("f", column_keys={"k": ["secret"]}, plaintext_footer=plaintext_footer)
    factory = encryption.CryptoFactory(_Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), keys)
    table, path = pa.table({"prompt": ["a"], "secret": ["b"]}), tmp_path / "data.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match=f"^{path}: the Parquet file is encrypted, as a whole or in some columns"):
        list(open_folder(path).read_rows())


@pytest.mark.slow
def test_footer_larger_than_arrows_limit_is_read(tmp_path: Path) -> None:
    table, path = pa.table({"prompt": ["a"]}), tmp_path / "x.parquet"
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"notes": "x" * (101 << 20)})
    with pytest.raises(OSError, match="size limit"):
        pq.ParquetFile(path)
    assert [row.values for row in open_folder(path).read_rows()] == [{"prompt": "a"}]


def test_limit_holds_over_files_and_batches(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"prompt": ["note a"] * 300}), tmp_path / f"{number}.parquet")
    input = open_folder(tmp_path, limit=556)
    assert [len(batch) for batch in input.read_row_batches()] == [256, 44, 256]
    assert [row.location for row in input.read_rows()][-1] == "1.parquet row 256"


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    schema = pa.schema({"prompt": pa.string(), "noise": pa.binary()})
    with pq.ParquetWriter(tmp_path / "data.parquet", schema, use_dictionary=False, compression="none") as writer:
        for _ in range(40):  # row groups of 1 MiB
            writer.write_table(pa.table([["note a"], [os.urandom(1 << 20)]], schema))
    input, before = open_folder(tmp_path), pa.total_allocated_bytes()
    assert max(pa.total_allocated_bytes() - before for _ in input.read_row_batches()) < 20 << 20
