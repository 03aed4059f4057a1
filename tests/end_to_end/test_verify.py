"""`batchgen verify`: rows of a finished run again, alone and cold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from click.testing import Result as CliResult

from batchgen.cli import main
from batchgen.job.verify import verify_run
from tests.end_to_end.harness import Result, TinyRunner, prompts
from tests.tiny_models import context_model

TEXTS = [f"{'once upon a time ' * 3}{tail}" for tail in ("a", "ab", "b", "cd", "")]


def verify(result: Result, *options: str) -> CliResult:
    return CliRunner().invoke(main, ["verify", str(result.folder), "--quiet", *options])


def last_line(done: CliResult) -> str:
    return done.stdout.splitlines()[-1]


def tamper(result: Result, **columns: list[Any]) -> None:
    """Put other values into the one part of a run."""
    (path,) = (result.folder / "completions").iterdir()
    table = pq.read_table(path)
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    pq.write_table(table, path)


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
@pytest.mark.parametrize("token_ids", [False, True])
def test_an_honest_run_is_the_same_alone(run_tiny: TinyRunner, format: str, token_ids: bool) -> None:
    own: list[Any] = [None, {"n": 2}, {"temperature": 0}, {"structured": {"regex": "[a-c]{4}"}}, {"seed": 8}]
    rows = [{"prompt": text, "own": value} for text, value in zip(TEXTS, own, strict=True)]
    result = run_tiny(
        [*rows, {"prompt": 5, "own": None}],
        model=context_model,
        input={"sampling": "own"},
        sampling={"temperature": 1, "logprobs": 0},  # and a fresh seed
        output={"format": format, "token_ids": token_ids, "prefix": "gen_"},
        engine={"block_size": 4},
    )
    assert result.exit_code == 3
    done = verify(result)
    assert (done.exit_code, last_line(done)) == (0, "rows=5 same=6 ties=0 different=0"), done.output


def test_rows_are_evenly_spread(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts(*TEXTS), model=context_model)
    tamper(result, completion=["?"] * 5)
    assert [each.row_index for each in verify_run(str(result.folder), num_rows=3, quiet=True).differences] == [0, 2, 4]


@pytest.mark.parametrize("token_ids", [False, True])
def test_a_tampered_completion_is_found_and_located(run_tiny: TinyRunner, token_ids: bool) -> None:
    table = pa.table({"ids": [[*text.encode()] for text in TEXTS]})
    sampling = {"logit_bias": {str(byte): -100 for byte in (*range(32), *range(127, 256))}}  # a byte a character
    output = {"token_ids": token_ids}
    result = run_tiny(table, model=context_model, input={"token_ids": "ids"}, sampling=sampling, output=output)
    completions = result.column("completion")
    other = "x" if completions[2][3] != "x" else "y"
    changed = completions[2][:3] + other + completions[2][4:]
    columns = {"completion": [*completions[:2], changed, *completions[3:]]}
    if token_ids:
        columns["completion_token_ids"] = [[*text.encode()] for text in columns["completion"]]
    tamper(result, **columns)
    done = verify(result)
    assert (done.exit_code, last_line(done)) == (3, "rows=5 same=4 ties=0 different=1")
    assert done.stdout.startswith("row 2, sample 0: different at token 3, gap of the two best logits ")
    assert f"written {changed[3:]!r} (length), alone {completions[2][3:]!r} (length)" in done.stdout


def test_another_finish_reason_differs_at_the_last_token(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("ab"))
    assert result.completions == ["B"]
    tamper(result, finish_reason=["length"])
    (found,) = verify_run(str(result.folder), num_rows=1, quiet=True).differences
    assert (found.token, found.written, found.alone) == (1, "'' (length)", "'' (stop)")


def test_a_greedy_row_that_parts_at_a_tie_is_good(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("1"), sampling={"max_tokens": 1})  # the table model knows no digit: all logits are 0
    tamper(result, completion=["~"])
    done = verify(result)
    assert (done.exit_code, last_line(done)) == (0, "rows=1 same=0 ties=1 different=0")


def test_low_precision_is_named(run_tiny: TinyRunner) -> None:
    result = run_tiny(prompts("ab"))
    tamper(result, completion=["C"])
    done = verify(result, "--dtype", "bfloat16")
    assert done.exit_code == 3
    assert "computed in bfloat16" in done.stdout


def test_what_is_no_finished_run_or_has_another_input_is_refused(run_tiny: TinyRunner) -> None:
    file = run_tiny.write(prompts("ab"))
    assert CliRunner().invoke(main, ["verify", str(file.with_suffix(""))]).exit_code == 2
    result = run_tiny.run_file(file)
    source = file.with_name(f"{file.stem}-in.jsonl")
    source.write_text(source.read_text() + "\n")
    done = verify(result)
    assert done.exit_code == 2
    assert "has changed since the run began; only a run whose input is unchanged" in done.output
