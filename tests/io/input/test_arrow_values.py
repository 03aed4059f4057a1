"""What ids, templates and messages see of a value of each Arrow type."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.errors import RowError
from batchgen.io.input.arrow_values import as_json, as_messages, as_python, as_template_values
from batchgen.prompts.prompt import row_key
from batchgen.spec.user_template import parse_user_template
from tests.examples import examples
from tests.io.input import all_types

MAP = pa.map_(pa.string(), pa.float64())


def test_values_depend_on_no_package_no_zone_and_no_database() -> None:
    pytest.importorskip("pandas")
    elsewhere = {"PYTHONTZPATH": "", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    command = [sys.executable, "-m", "tests.io.input.all_types"]
    done = subprocess.run(command, env=os.environ | elsewhere, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, all_types.digest()), done.stderr


@pytest.mark.parametrize("name", all_types.columns())
def test_no_value_fails_for_its_type_and_null_is_none(name: str) -> None:
    array = all_types.columns()[name]
    shifted = pa.concat_arrays([array, array]).slice(len(array))  # with an offset into the buffers
    for convert in (as_python, as_template_values, as_json, as_messages):
        values = convert(array)
        assert [value is None for value in values] == [not valid for valid in array.is_valid().to_pylist()]
        assert repr(convert(shifted)) == repr(values)


@pytest.mark.parametrize(
    ("array", "python", "json"),
    [
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), Decimal("1.50"), 1.5),
        (pa.array([Decimal("7")], pa.decimal128(5, 0)), Decimal(7), 7),
        (pa.array([Decimal("0.1234567890123456789")], pa.decimal128(30, 19)), Decimal("0.1234567890123456789"),
         "0.1234567890123456789"),
        (pa.array([date(2024, 1, 2)]), date(2024, 1, 2), "2024-01-02"),
        (pa.array([UUID(int=5).bytes], pa.uuid()), UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (pa.array(['{"a": null}'], pa.json_()), '{"a": null}', {"a": None}),
        (pa.array([[("a", 1.5), ("b", None)]], MAP), [("a", 1.5), ("b", None)], {"a": 1.5, "b": None}),
        (pa.array([{"a": 1, "b": None}]), {"a": 1, "b": None}, {"a": 1}),
        (pa.array([[b"a", None]]), [b"a", None], ["a", None]),
        (pa.array(["x"]).dictionary_encode(), "x", "x"),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())), True, True),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_value_of_an_id_and_of_a_message(array: pa.Array, python: Any, json: Any) -> None:
    for (found,), expected in ((as_python(array), python), (as_json(array), json)):
        assert (found, type(found)) == (expected, type(expected))


def test_bytes_are_text_in_templates_at_any_depth() -> None:
    assert as_template_values(pa.array([[b"a"], ["é".encode()]])) == [["a"], ["é"]]
    with pytest.raises(RowError, match="not valid UTF-8 at byte 2"):
        as_template_values(pa.array([[b"a\xff"]]))


def test_message_keeps_its_own_nulls_and_loses_those_of_inner_structs() -> None:
    chat = [{"role": "user", "content": None, "tool": {"a": 1, "b": None}}]
    assert as_messages(pa.array([chat])) == [[{"role": "user", "content": None, "tool": {"a": 1}}]]


def test_messages_of_maps_and_of_json_are_what_they_say() -> None:
    chat = [{"role": "user", "content": "note a"}]
    as_map = pa.array([[list(message.items()) for message in chat]], pa.list_(pa.map_(pa.string(), pa.string())))
    texts = pa.array(['{"role": "user", "content": "note a"}'], pa.json_())
    as_json_column = pa.ListArray.from_arrays([0, 1], texts)
    assert as_messages(as_map) == as_messages(as_json_column) == [chat]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (pa.array(["{"], pa.json_()), "not valid JSON"),
        (pa.array(['{"a": "\\ud83d"}'], pa.json_()), "half a surrogate pair"),
        (pa.array([[("a", 1.0), ("a", 2.0)]], MAP), 'a map has the key "a" twice'),
    ],
    ids=["broken", "surrogate", "repeated"],
)
def test_value_that_json_cannot_hold_is_a_bad_row(array: pa.Array, words: str) -> None:
    with pytest.raises(RowError, match=words):
        as_json(array)


def test_template_prints_text_calculates_and_reads_parts() -> None:
    source = "{{ when }} {{ n + 1 }} {{ when.year }} {{ (when - start).days }} {{ late > when }}"
    at = [0, 86_400 * 10**9, 86_400 * 10**9 + 1]
    start, when, late = as_template_values(pa.array(at, pa.timestamp("ns")))
    values = {"start": start, "when": when, "late": late, "n": 2}
    assert parse_user_template(source).template.render(values) == "1970-01-02T00:00:00 3 1970 1 True"


@pytest.mark.parametrize(
    ("array", "key"),
    [
        (pa.array([7]), "c7da072f9eb32388d8b5d9f0fc9e8687"),
        (pa.array(["é"]), "828dcfe9b70622182334cf6dac2d28c4"),
        (pa.array([b"\xff"]), "927676e8d1498038a9e48a83b5aee9c4"),
        (pa.array([0.5], pa.float16()), "0a8c12817912de5fc5d6fa336575dcd5"),
        (pa.array([True]), "455a093a155790148d4213838dcbfa7d"),
        (pa.array([Decimal("1.50")], pa.decimal256(50, 2)), "4ba5dfeb91bf6df08a5d38d9b6470dfd"),
        (pa.array([date(2024, 2, 29)], pa.date64()), "7d521af36f3a38dbb183e13174844036"),
        (pa.array([1500], pa.time32("ms")), "805c12d390b9056145b8cd2dcb6e87e2"),
        (pa.array([1_700_000_000_123_456], pa.timestamp("us")), "d64d293f6c4cd4a8068082335cf6e6a0"),
        (pa.array([-1], pa.duration("us")), "39ed2fbd66bf8c74c18a7c8940b2540c"),
        (pa.array([{"a": 1, "b": datetime(2024, 1, 1)}]), "94d870b2e4aed57a9b63e252723187d4"),
        (pa.array([[("a", time(1))]], pa.map_(pa.string(), pa.time64("us"))), "e139c4ff2d7514029a94019992be3ea6"),
        (pa.array([UUID(int=5).bytes], pa.uuid()), "203f62b4ebaedc32b59767eb760a99d9"),
        (pa.array([pa.MonthDayNano([1, 2, 3])]), "f20a186c88a62e82a801256ab3bae017"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_keys_of_ids_are_those_of_every_version(array: pa.Array, key: str) -> None:
    """The same seed draws the same completions for them, whatever reads the column."""
    assert row_key(0, as_python(array)[0]).hex() == key


@given(count=st.integers(-(2**63), 2**63 - 1), unit=st.sampled_from(["s", "ms", "us", "ns"]))
@examples(200)
def test_equal_times_have_equal_keys_in_every_unit_and_others_do_not(count: int, unit: str) -> None:
    """A column that was written again in a finer unit keeps its draws."""
    (value,) = as_python(pa.array([count], pa.int64()).cast(pa.timestamp(unit)))
    other = as_python(pa.array([count - 1 if count > 0 else count + 1], pa.int64()).cast(pa.timestamp(unit)))[0]
    assert row_key(0, value) != row_key(0, other)
    if unit != "ns" and abs(count) < 2**50:
        finer = as_python(
            pa.array([count * 1000], pa.int64()).cast(pa.timestamp({"s": "ms", "ms": "us"}.get(unit, "ns")))
        )
        assert row_key(0, finer[0]) == row_key(0, value)
    zoned = as_python(pa.array([count], pa.int64()).cast(pa.timestamp(unit, "Europe/Paris")))[0]
    assert row_key(0, zoned) != row_key(0, value)
