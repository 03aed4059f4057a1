"""YAML of a job file: every file is read or refused with a problem and its line; no other exception escapes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchgen.errors import SpecError
from batchgen.spec.yaml_tree import find, read_document, set_override, to_plain
from tests.examples import examples


def read(folder: Path, content: str | bytes) -> dict[str, object]:
    path = folder / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return to_plain(read_document(path)).values


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("model:\n\tpath: x\n", ":2", "tab"),
        ("model: {path: x}\t# note\n", ":1", "tab"),
        ("", "", "empty"),
        ("# only a comment\n", "", "empty"),
        ("- model\n- input\n", ":1", "got a list"),
        ("model\n", ":1", "got model"),
        ("a: 1\n---\nb: 2\n", ":2", "holds one document"),
        ("%YAML 1.1\n---\na: no\n", ":1", "YAML 1.2"),
        (b"a: 1\nb: \xe9\n", ":2", "not UTF-8 text (byte 0xe9)"),
        ("a: 1\nb: \x00\n", ":2", "U+0000"),
        ("a: 'b\n", ":2", "while scanning a quoted scalar"),
        ("path: *.parquet\n", ":1", "text that starts with * needs quotes"),
        ("a: b: c\n", ":1", "needs quotes"),
        ("a: @b\n", ":1", "needs quotes"),
        ("[" * 3000, "", "nested too deeply"),
    ],
)
def test_file_that_is_not_a_job_file_is_refused(tmp_path: Path, content: str | bytes, line: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, content)
    [problem] = caught.value.problems
    assert problem.startswith(f"{tmp_path}/job.yaml{line}: ")
    assert words in problem


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nope\.yaml: no such job file"):
        read_document(tmp_path / "nope.yaml")
    with pytest.raises(SpecError, match="is a folder"):
        read_document(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "a: !!python/object:os.system x\n",
            "a: the tag !!python/object:os.system is not allowed; write a plain value",
        ),
        ("a: !!str 5\n", "a: the tag !!str is not allowed; write a plain value"),
        ("a: !mine {b: 1}\n", "a: the tag !mine is not allowed; write a plain value"),
        ("a: &x\n  b: *x\n", "a.b: the anchor &x contains itself; write the value out"),
        ("a: {{ b }}\n", "a: expected a key that is text; text that starts with { or [ needs quotes"),
        ("a: [1, {b: 1, b: 2}]\n", "a[1].b: given twice, on lines 1 and 1; keep one"),
    ],
)
def test_forbidden_yaml_is_a_problem(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(content)
    [found] = to_plain(read_document(path)).problems
    assert str(found) == f"{path}:{found.where.line}: {problem}"


def test_key_given_three_times_is_two_problems(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("a: 1\na: 2\nb: 3\na: 4\n")
    found = to_plain(read_document(path)).problems
    assert [problem.what for problem in found] == [
        "given twice, on lines 1 and 2; keep one",
        "given twice, on lines 1 and 4; keep one",
    ]


def test_plain_text_is_typed_by_yaml_1_2(tmp_path: Path) -> None:
    values = read(tmp_path, "a: [no, 1e-5, 0777, 12:30, 2024-01-01, =, <<, 0x10, True, ~, 'true']\n")
    assert values == {"a": ["no", 1e-5, 777, "12:30", "2024-01-01", "=", "<<", 16, True, None, "true"]}


def test_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: x\r\n") == {"a": 1, "b": "x"}


def test_anchor_without_a_cycle_is_a_value(tmp_path: Path) -> None:
    assert read(tmp_path, "a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}


def test_anchors_that_multiply_are_built_once(tmp_path: Path) -> None:
    """Thirty levels of ten references would be 10^30 values if each were built separately."""
    levels = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 31))
    values = read(tmp_path, f"a0: &a0 [x]\n{levels}")
    assert len(values) == 31


def test_find_stops_at_the_deepest_part_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("a:\n  b:\n    - x\n    - y\n")
    root = read_document(path)
    assert [find(root, key).where.line for key in [("a", "b", 1), ("a", "c"), ("d",)]] == [4, 1, 1]
    assert [find(root, key).node is None for key in [("a", "b", 1), ("a", "c"), ("d",)]] == [False, True, True]


@settings(examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="ab:-#'\"[]{}&*!|>%@,?\n\t \\~0.e\u00e9\x00\x85", max_size=40))
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(text.encode())
    with suppress(SpecError):
        root = read_document(path)
        to_plain(root)
        set_override(root, f"a.b={text}")
        to_plain(root)
