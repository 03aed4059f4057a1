"""JSON lines input: which lines are rows, which are errors, and their locations."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.errors import InputError
from batchgen.io.input import jsonl
from batchgen.io.input.readers import Input, open_input
from batchgen.io.input.rows import Row
from batchgen.spec.job_spec import InputSpec


def open_lines(folder: Path, data: bytes, name: str = "data.jsonl", **settings: Any) -> Input:
    (folder / name).write_bytes(data)
    return open_input(InputSpec(path=str(folder / name), **{"prompt": "prompt", **settings}))


def rows_of(folder: Path, data: bytes, **settings: Any) -> list[Row]:
    return list(open_lines(folder, data, **settings).read_rows())


def carried(input: Input) -> pa.Table:
    for _ in input.read_rows():
        pass
    return pa.Table.from_batches(input.read_batches(), input.schema)


TWO = [{"prompt": "note a"}, {"prompt": "note b"}]


@pytest.mark.parametrize(
    "data",
    [
        b'\xef\xbb\xbf{"prompt":"note a"}\r\n{"prompt":"note b"}\r\n',
        b'{"prompt":"note a"}\n\n   \n\t\r\n{"prompt":"note b"}\n\n \n',
        b'{"prompt":"note a"}\n{"prompt":"note b"}',
        b'\n\xef\xbb\xbf{"prompt":"note a"}\n{"prompt":"note b"}'[1:],
    ],
    ids=["BOM and CRLF", "blank lines", "no last newline", "BOM"],
)
def test_two_rows(tmp_path: Path, data: bytes) -> None:
    assert [row.values for row in rows_of(tmp_path, data)] == TWO


def test_unicode_line_separators_do_not_end_a_line(tmp_path: Path) -> None:
    [row] = rows_of(tmp_path, '{"prompt":"a\u2028b\u0085c"}\n'.encode())
    assert row.values == {"prompt": "a\u2028b\u0085c"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"id":"3","prompt":"no', "not valid JSON at column 20: Unterminated string"),
        (b'{"prompt":"secret"},', "not valid JSON at column 20: Extra data"),
        (b'{"prompt":"caf\xe9"}', "not valid UTF-8 at byte 15 of the line"),
        (b'{"prompt":"a","prompt":"b"}', 'the key "prompt" is given twice'),
        (b'{"prompt":"a","x":[{"k":1,"k":1}]}', 'the key "k" is given twice'),
        (b'{"prompt":"half \\ud83d a"}', 'half a surrogate pair in "prompt"'),
        (b'{"prompt":"a","x":{"y":["\\udc00"]}}', 'half a surrogate pair in "x"'),
        (b'{"prompt":"a","\\ud800":1}', 'half a surrogate pair in "\\ud800"'),
        (b'{"prompt":"a"}' + b"\0" * 9, "NUL bytes from column 15 on"),
        (b"\0" * 4096, "NUL bytes from column 1 on"),
        (b'{"prompt":"a\0b"}', "NUL bytes from column 13 on"),
        (b'["note a"]', "the line is JSON, but not an object"),
        (b'{"prompt":' + b"[" * 300 + b"]" * 300 + b"}", "nested deeper than 200"),
        (b'{"prompt":' + b"[" * 99_999, "nested deeper than 200"),
        (b'{"prompt":' + b"9" * 5000 + b"}", "too many digits"),
    ],
)
def test_bad_line_is_an_error_row_with_its_true_line(tmp_path: Path, line: bytes, words: str) -> None:
    good, bad, after = rows_of(tmp_path, b'{"prompt":"note a"}\n\n' + line + b'\n{"prompt":"note d"}\n')
    assert good.error is None
    assert bad.error is not None
    assert bad.error.startswith("data.jsonl line 3: ")
    assert words in bad.error
    assert "secret" not in bad.error
    bad.error.encode()  # an error must be valid UTF-8 for the output
    assert (bad.index, bad.location, bad.values) == (1, "data.jsonl line 3", {})
    assert (after.index, after.location, after.values) == (2, "data.jsonl line 4", {"prompt": "note d"})


def test_unusual_values_are_read(tmp_path: Path) -> None:
    data = b'{"prompt":"nul \\u0000 a","score":NaN}\n{"prompt":"pair \\ud83d\\ude00","score":-Infinity}\n'
    input = open_lines(tmp_path, data)
    assert [row.values["prompt"] for row in input.read_rows()] == ["nul \0 a", "pair 😀"]
    assert str(carried(input)["score"].to_pylist()) == "[nan, -inf]"


def test_prompts_of_any_kind_are_passed_on_unchanged(tmp_path: Path) -> None:
    data = b'{"prompt":""}\n{"prompt":null}\n{}\n{"prompt":"   "}\n{"prompt":123}\n{"prompt":["note a"]}\n'
    values = [row.values for row in rows_of(tmp_path, data)]
    assert values == [
        {"prompt": ""},
        {"prompt": None},
        {},
        {"prompt": "   "},
        {"prompt": 123},
        {"prompt": ["note a"]},
    ]


def test_values_hold_only_what_makes_the_prompt(tmp_path: Path) -> None:
    [row] = rows_of(tmp_path, b'{"prompt":"a","id":7,"target":"b","system":null}\n', id="id", system="system")
    assert row.values == {"prompt": "a", "id": 7, "system": None}


@pytest.mark.parametrize(
    "data", [b'[{"prompt":"a"},{"prompt":"b"}]', b'[\n  {"prompt":"a"},\n  {"prompt":"b"}\n]\n', b" [ ] "]
)
def test_array_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match=r"data\.jsonl: the file is a JSON array, not lines"):
        open_lines(tmp_path, data)


def test_array_inside_gzip_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"[\n") + gzip.compress(b'{"prompt":"a"}\n] \n')
    with pytest.raises(InputError, match=r"data\.jsonl\.gz: the file is a JSON array, not lines"):
        open_lines(tmp_path, packed, name="data.jsonl.gz")


def test_lines_inside_gzip_are_counted_as_in_a_plain_file(tmp_path: Path) -> None:
    members = [b"\xef\xbb\xbf", b'{"prompt":"note a"}\r\n\r\n{"pro', b'mpt":"note b"}\n', b'{"prompt":"no']
    input = open_lines(tmp_path, b"".join(map(gzip.compress, members)), name="data.json.gz")
    first, second, broken = input.read_rows()
    assert [first.values, second.values] == TWO
    assert [row.location for row in (first, second, broken)] == [f"data.json.gz line {n}" for n in (1, 3, 4)]
    assert broken.error is not None
    assert "not valid JSON" in broken.error


def test_truncated_gzip_is_not_a_broken_last_line(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"prompt":"note a"}\n' * 20_000)
    input = open_lines(tmp_path, packed[:-9], name="data.jsonl.gz")  # the end is not yet read
    with pytest.raises(InputError, match=r"data\.jsonl\.gz: the gzip data is cut off"):
        list(input.read_rows())


def test_too_long_line_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_MAX_LINE_BYTES", 20)
    fits, long = b'{"prompt":"note a"}\n', b'{"prompt":"note a" }'
    rows = rows_of(tmp_path, fits + long + b" " * 100 + b"\n" + long + b"\n" + fits + long + b"\n")
    assert [row.location[-1] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [row.error is None for row in rows] == [True, False, False, True, False]
    assert rows[1].error == "data.jsonl line 2: the line is longer than 20 bytes"


def test_lines_that_are_arrays_are_error_rows(tmp_path: Path) -> None:
    assert [row.error is None for row in rows_of(tmp_path, b'[1]\n{"prompt":"a"}\n[2]\n')] == [False, True, False]


def test_json_that_is_lines_is_read_and_other_json_refused(tmp_path: Path) -> None:
    input = open_lines(tmp_path, b'\n{"prompt":"note a"}\n{"prompt":"note b"}\n', name="data.json")
    assert [row.values for row in input.read_rows()] == TWO
    with pytest.raises(InputError, match=r"data\.json: the file is not JSON lines"):
        open_lines(tmp_path, b'{\n "prompt": "note a"\n}\n', name="data.json")


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_empty_file_has_no_rows(tmp_path: Path, data: bytes) -> None:
    assert carried(open_lines(tmp_path, data)).num_rows == 0


def test_line_numbers_restart_in_each_file_and_the_index_does_not(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt":"a"}\n')
    (tmp_path / "b.jsonl").write_bytes(b'\n{"prompt":"b"}\n')
    rows = list(open_input(InputSpec(path=str(tmp_path), prompt="prompt")).read_rows())
    assert [(row.index, row.location) for row in rows] == [(0, "a.jsonl line 1"), (1, "b.jsonl line 2")]


def test_limit_holds_for_rows_batches_and_types(tmp_path: Path) -> None:
    input = open_lines(tmp_path, b'{"x":1}\n{"x":2}\n{"x":"text"}\n', limit=2)
    assert carried(input).to_pydict() == {"x": [1, 2]}
    assert len(list(open_lines(tmp_path, b'{"x":1}\n', limit=0).read_rows())) == 0


def test_a_late_second_kind_makes_the_column_text_and_loses_nothing(tmp_path: Path) -> None:
    late = b'{"id":"x9","prompt":"note b","note":"n"}\n{"id":null,"prompt":"note c"}\n'
    table = carried(open_lines(tmp_path, b'{"id":1,"prompt":"note a"}\n' * 3000 + late))
    assert table.schema == pa.schema([("id", pa.string()), ("prompt", pa.string()), ("note", pa.string())])
    assert table["id"].to_pylist() == ["1"] * 3000 + ["x9", None]
    assert table["note"].to_pylist() == [None] * 3000 + ["n", None]


def test_carried_columns_have_one_record_per_row(tmp_path: Path) -> None:
    table = carried(open_lines(tmp_path, b'{"id":1}\nbroken\n{"id":2,"prompt":"\\ud83d"}\n\n{"id":3}\n'))
    assert table.to_pydict() == {"id": [1, None, 2, 3]}  # the readable fields of the third row are kept


def test_rows_without_any_field_still_count(tmp_path: Path) -> None:
    input = open_lines(tmp_path, b"{}\nbroken\n{}\n")
    assert len(list(input.read_rows())) == 3
    assert sum(batch.num_rows for batch in input.read_batches()) == 3


def test_large_rows_make_small_batches(tmp_path: Path) -> None:
    line = b'{"prompt":"' + b"x" * (3 << 20) + b'"}\n'
    input = open_lines(tmp_path, line * 4)
    assert len(list(input.read_rows())) == 4
    assert [batch.num_rows for batch in input.read_batches()] == [3, 1]


def test_keys_that_are_data_are_refused_before_they_become_columns(tmp_path: Path) -> None:
    lines = b"".join(b'{"key%d":1}\n' % i for i in range(10_001))
    with pytest.raises(InputError, match=r"data\.jsonl line 10001: over 10000 different keys"):
        rows_of(tmp_path, lines)


def test_file_that_changes_during_the_job_is_refused(tmp_path: Path) -> None:
    input = open_lines(tmp_path, b'{"prompt":"a"}\n')
    assert len(list(input.read_rows())) == 1
    (tmp_path / "data.jsonl").write_bytes(b'{"prompt":"a"}\n{"prompt":"b"}\n')
    with pytest.raises(InputError, match="changed while the job ran"):
        list(input.read_batches())


def is_refused_whole(data: bytes) -> bool:
    """What the reader documents: another format by its first bytes, or an array by its first and last."""
    marks = (b"PAR1", b"PARE", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xff\xfe", b"\xfe\xff")
    text = data.removeprefix(b"\xef\xbb\xbf").strip()
    return data.startswith(marks) or (text.startswith(b"[") and text.endswith(b"]"))


garbage = st.lists(
    st.binary(max_size=20) | st.sampled_from([b'{"prompt":', b"[", b"]", b'{"a":{}}', b'{"a":[1,"x"]}', b'{"a":NaN}']),
    max_size=4,
).map(b"\n".join)


@given(before=garbage, after=garbage)
def test_good_line_between_garbage_is_read_and_all_can_be_written(before: bytes, after: bytes) -> None:
    data = before + b'\n{"prompt":"good"}\n' + after
    with tempfile.TemporaryDirectory() as folder:
        try:
            input = open_lines(Path(folder), data)
        except InputError:
            assert is_refused_whole(data)
            return
        rows = list(input.read_rows())
        assert "good" in [row.values.get("prompt") for row in rows]
        batches = list(input.read_batches())
        assert sum(batch.num_rows for batch in batches) == len(rows)
        pq.write_table(pa.Table.from_batches(batches).append_column("n", pa.array(range(len(rows)))), f"{folder}/x")


def test_batches_hold_the_same_rows(tmp_path: Path) -> None:
    input = open_lines(tmp_path, b'{"prompt":"note a"}\n' * 1_500)
    batches = list(input.read_row_batches())
    assert [len(batch) for batch in batches] == [1_024, 476]
    assert [row for batch in batches for row in batch.rows()] == list(input.read_rows())
    assert batches[0].column("prompt") is None


def test_names_with_dots_lead_into_objects(tmp_path: Path) -> None:
    data = (
        b'{"body":{"messages":[1],"id":7}}\n{"body.messages":[2],"body":{"messages":[3]}}\n{"body":null}\n{"body":[]}\n'
    )
    input = open_lines(tmp_path, data, prompt=None, messages="body.messages", id="body.id")
    assert [row.values for row in input.read_rows()] == [
        {"body.messages": [1], "body.id": 7},
        {"body.messages": [2]},
        {},
        {},
    ]
    assert input.missing_columns() == {}


def test_name_that_no_line_has_is_reported_with_what_exists(tmp_path: Path) -> None:
    input = open_lines(tmp_path, b'{"body":{"messages":[1]}}\n', prompt=None, messages="body.mesages", id="key")
    list(input.read_rows())
    errors = input.missing_columns()
    assert errors.keys() == {"messages", "id"}
    assert "data.jsonl: no column 'body.mesages' (input.messages); did you mean 'body.messages'?" in str(
        errors["messages"]
    )


def test_field_of_an_object_that_is_kept_as_text_is_found(tmp_path: Path) -> None:
    """An object with over a hundred different keys becomes JSON text in the output, and rows read it all the same."""
    lines = [json.dumps({"body": {f"k{n}": n, "p": "a"}}) for n in range(101)]
    input = open_lines(tmp_path, "\n".join(lines).encode(), prompt="body.p")
    assert {row.values["body.p"] for row in input.read_rows()} == {"a"}
    assert input.schema.field("body").type == pa.string()
    assert input.missing_columns() == {}
