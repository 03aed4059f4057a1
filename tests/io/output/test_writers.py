"""Part files: order, types, samples and sizes; and when rows are committed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import batchgen
from batchgen.errors import InputError, OutputError
from batchgen.io import Input, OutputFolder, ResultWriter, open_input, output_schema
from batchgen.io.input.files import Format
from batchgen.io.output import journal
from batchgen.request_output import FinishReason, RequestOutput
from batchgen.spec.job_spec import InputSpec

ADDED = pa.schema(
    [
        *((name, pa.string()) for name in ("completion", "finish_reason", "error")),
        *((name, pa.int32()) for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "sample_index")),
    ]
)


def answer(index: int, sample: int = 0) -> RequestOutput:
    return RequestOutput(index, FinishReason.STOP, sample, f"answer {index}.{sample}", None, index, 1, 0)


def answered(input: Input, folder: Path, answers: Iterable[RequestOutput], **options: Any) -> pa.Table:
    """Return the completions of a run with these outputs; reads the input once before, as every run does."""
    return ds.dataset(written_parts(input, folder, answers, "parquet", **options)).to_table()


def written_parts(
    input: Input, folder: Path, answers: Iterable[RequestOutput], format: Format, **options: Any
) -> list[Path]:
    assert all(row.index >= 0 for row in input.read_rows())
    output = OutputFolder(folder)
    output.claim()
    output.begin("{}")
    writer = ResultWriter(output, rows_per_chunk=options.pop("rows_per_chunk", 10_000))
    for each in answers:
        writer.write(each)
    writer.finish(input, "", format, **options)
    return sorted((folder / "completions").iterdir())


def parquet_input(folder: Path, **columns: Any) -> Input:
    pq.write_table(pa.table(columns), folder / "in.parquet")
    return open_input(InputSpec(path=str(folder / "in.parquet"), prompt="prompt"))


def test_input_order_and_declared_types_whatever_order_rows_finish_in(tmp_path: Path) -> None:
    prompts = [f"p{i}" for i in range(700)]
    kinds = pa.array(["x", None] * 350).dictionary_encode()
    input = parquet_input(tmp_path, prompt=prompts, kind=kinds, vector=pa.array([[0.5]] * 700, pa.list_(pa.float32())))
    answers = [answer(i) for i in range(700)]
    random.Random(0).shuffle(answers)
    table = answered(input, tmp_path / "out", answers, rows_per_chunk=7)  # 100 chunks: more than one merge opens
    assert table.schema.equals(pa.schema([*input.schema, *ADDED]))
    assert table["prompt"].to_pylist() == prompts
    assert table["kind"].to_pylist() == kinds.to_pylist()
    assert table["completion"].to_pylist() == [f"answer {i}.0" for i in range(700)]
    assert table["prompt_tokens"].to_pylist() == list(range(700))


def test_failed_row_has_nulls_for_unknown_values(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=["a"])
    [row] = answered(input, tmp_path / "out", [RequestOutput(0, FinishReason.ERROR, error="why")]).to_pylist()
    known = {"prompt": "a", "finish_reason": "error", "error": "why", "sample_index": 0}
    assert row == {**dict.fromkeys(ADDED.names), **known}


def test_samples_of_a_row_stand_next_to_each_other(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=["a", "b"])
    answers = [answer(1, 1), answer(0, 0), answer(1, 0), answer(0, 1)]
    table = answered(input, tmp_path / "out", answers, rows_per_chunk=1)
    assert table["prompt"].to_pylist() == ["a", "a", "b", "b"]
    assert table["completion"].to_pylist() == ["answer 0.0", "answer 0.1", "answer 1.0", "answer 1.1"]


def test_parts_record_what_wrote_them(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=["a", "b"])
    answered(
        input, tmp_path / "out", map(answer, range(2)), rows_per_part=1, provenance={"job": "j.yaml", "model": "gpt2"}
    )
    for part in (tmp_path / "out" / "completions").iterdir():
        schema = pq.read_schema(part)
        metadata = {key.decode(): value.decode() for key, value in schema.metadata.items()}
        assert metadata == {"batchgen": batchgen.__version__, "batchgen.job": "j.yaml", "batchgen.model": "gpt2"}
        assert b"description" in schema.field("completion").metadata
        assert all(pq.ParquetFile(part).metadata.row_group(0).column(i).compression == "ZSTD" for i in range(8))


def test_every_added_column_is_described() -> None:
    fields = output_schema(pa.schema([]), "gen_")
    assert all(len(field.metadata[b"description"]) > 20 for field in fields)


def test_parts_are_full(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=[str(i) for i in range(600)])
    table = answered(input, tmp_path / "out", map(answer, range(600)), rows_per_part=250)
    parts = sorted((tmp_path / "out" / "completions").iterdir())
    assert [part.name for part in parts] == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert [pq.ParquetFile(part).metadata.num_rows for part in parts] == [250, 250, 100]
    assert table["prompt"].to_pylist() == [str(i) for i in range(600)]


def test_no_rows_give_one_part_with_all_columns(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"")
    input = open_input(InputSpec(path=str(tmp_path / "in.jsonl"), prompt="prompt"))
    table = answered(input, tmp_path / "out", [])
    assert (table.num_rows, table.schema.equals(ADDED)) == (0, True)


def test_lines_with_unusual_values_become_parquet_that_pandas_reads(tmp_path: Path) -> None:
    lines = [
        b'{"id":"1","prompt":"note a"}',
        b'{"id":"2","prompt":"half \\ud83d a"}',
        b'{"id":"3","prompt":"nul \\u0000 a"}',
        b'{"id":"4","prompt":"note d","score":NaN}',
        b'{"id":"5","prompt":"note e","prompt":"note f"}',
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    input = open_input(InputSpec(path=str(tmp_path / "in.jsonl"), prompt="prompt"))
    answered(input, tmp_path / "out", map(answer, range(5)))
    frame = pd.read_parquet(tmp_path / "out" / "completions")
    assert frame["id"].fillna("").tolist() == ["1", "2", "3", "4", ""]
    assert frame["prompt"].fillna("").tolist() == ["note a", "", "nul \0 a", "note d", ""]
    assert frame["completion"].tolist() == [f"answer {i}.0" for i in range(5)]


def test_a_missing_result_is_a_bug(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=["a", "b", "c"])
    with pytest.raises(AssertionError, match="expected the result of row 1"):
        answered(input, tmp_path / "out", [answer(0), answer(2)])


def test_a_repeated_result_is_a_bug(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=["a"])
    with pytest.raises(AssertionError, match="missing or repeated"):
        answered(input, tmp_path / "out", [answer(0), answer(0)])


def test_input_that_changed_before_the_end_is_refused(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=["a"])
    output = OutputFolder(tmp_path / "out")
    output.claim()
    output.begin("{}")
    writer = ResultWriter(output)
    writer.write(answer(0))
    pq.write_table(pa.table({"prompt": ["a", "b"]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="changed while the job ran"):
        writer.finish(input, prefix="")
    assert list(output.completions.iterdir()) == []


def test_input_columns_named_like_added_ones_are_refused_with_advice() -> None:
    schema = pa.schema([(name, pa.string()) for name in ("prompt", "completion", "error", "Completion")])
    with pytest.raises(OutputError, match=r"columns named completion, error; set output\.prefix"):
        output_schema(schema, "")
    names = output_schema(schema, "gen_").names
    assert names[:5] == ["prompt", "completion", "error", "Completion", "gen_completion"]
    with pytest.raises(OutputError, match=r"a column named completion"):
        output_schema(pa.schema([("completion", pa.string())]), "")


def test_jsonl_parts_are_in_input_order_and_full(tmp_path: Path) -> None:
    input = parquet_input(tmp_path, prompt=[f"p{i}" for i in range(600)])
    answers = [answer(i) for i in reversed(range(600))]
    parts = written_parts(input, tmp_path / "out", answers, "jsonl", rows_per_part=250)
    assert [part.name for part in parts] == ["part-00000.jsonl", "part-00001.jsonl", "part-00002.jsonl"]
    lines = [part.read_bytes().splitlines(keepends=True) for part in parts]
    assert [len(part) for part in lines] == [250, 250, 100]
    rows = [json.loads(line) for part in lines for line in part]
    assert [row["prompt"] for row in rows] == [f"p{i}" for i in range(600)]
    assert rows[599] == {
        "prompt": "p599",
        "completion": "answer 599.0",
        "finish_reason": "stop",
        "error": None,
        "prompt_tokens": 599,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "sample_index": 0,
    }


def test_no_rows_give_one_part_without_lines(tmp_path: Path) -> None:
    [part] = written_parts(parquet_input(tmp_path, prompt=pa.array([], pa.string())), tmp_path / "out", [], "jsonl")
    assert (part.name, part.read_bytes()) == ("part-00000.jsonl", b"")


def test_type_that_json_cannot_hold_is_refused_for_lines_only() -> None:
    schema = pa.schema([("prompt", pa.string()), ("every", pa.list_(pa.month_day_nano_interval()))])
    assert "every" in output_schema(schema, "").names
    with pytest.raises(OutputError, match=r"column 'every' is list<.*, which JSON lines cannot hold"):
        output_schema(schema, "", "jsonl")


def test_no_room_to_merge_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FAN_IN", 1)
    output = OutputFolder(tmp_path / "out")
    output.claim()
    output.begin("{}")
    writer = ResultWriter(output, rows_per_chunk=1)
    for index in range(2):
        writer.write(answer(index))
    (output.scratch / "merge").touch()  # no folder can be made
    with pytest.raises(OutputError, match=r"\.state: cannot be written: File exists"):
        writer.finish(parquet_input(tmp_path, prompt=["a", "b"]), "")


def test_a_run_that_lost_its_folder_commits_nothing(tmp_path: Path) -> None:
    output = OutputFolder(tmp_path / "out")
    output.claim()
    output.begin("{}")
    writer = ResultWriter(output, rows_per_chunk=1)
    (tmp_path / "out/.state/lock").unlink()
    OutputFolder(tmp_path / "out").lock.acquire()
    with pytest.raises(OutputError, match="another run has taken over this folder"):
        writer.write(answer(0))
    assert list(output.journal.iterdir()) == []


def test_rows_are_committed_by_number_and_by_time(tmp_path: Path) -> None:
    now = 0.0
    output = OutputFolder(tmp_path / "out")
    output.claim()
    output.begin("{}")
    writer = ResultWriter(output, rows_per_chunk=3, clock=lambda: now)

    def num_chunks() -> int:
        return len(list(output.journal.iterdir()))

    for i in range(5):
        writer.write(answer(i))
    assert num_chunks() == 1
    now = 29.9
    writer.commit_if_due()
    assert num_chunks() == 1
    now = 30.0
    writer.commit_if_due()
    assert num_chunks() == 2
    now = 60.0
    writer.commit_if_due()  # no output is waiting, so nothing is written
    assert num_chunks() == 2


def test_a_kill_loses_no_row_older_than_30_seconds(tmp_path: Path) -> None:
    """Steps take 0.7 s and every 11th finishes a row; a kill would lose the rows that are in no chunk."""
    now, ended_at = 0.0, [0.0]
    output = OutputFolder(tmp_path / "out")
    output.claim()
    output.begin("{}")
    writer = ResultWriter(output, clock=lambda: now)
    writer.write(answer(0))
    for step in range(1, 300):
        now = step * 0.7
        if step % 11 == 0:
            writer.write(answer(len(ended_at)))
            ended_at.append(now)
        writer.commit_if_due()
        num_safe = sum(pq.read_metadata(path).num_rows for path in output.journal.iterdir())
        assert all(now - ended < 30 for ended in ended_at[num_safe:])
    assert len(list(output.journal.iterdir())) < 300 * 0.7 / 30  # and no more chunks than that needs


def test_a_kill_loses_fewer_than_10_000_rows(tmp_path: Path) -> None:
    output = OutputFolder(tmp_path / "out")
    output.claim()
    output.begin("{}")
    writer = ResultWriter(output, clock=lambda: 0.0)
    for index in range(9_999):
        writer.write(answer(index))
    assert list(output.journal.iterdir()) == []
    writer.write(answer(9_999))
    assert [pq.read_metadata(path).num_rows for path in output.journal.iterdir()] == [10_000]
