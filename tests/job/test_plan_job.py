"""plan_job: figures that can be counted by hand, what it needs, and what it leaves alone. One token is one byte."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchgen.errors import InputError
from batchgen.job import plan_job as plan_job_module
from batchgen.job.plan_job import plan_job
from batchgen.job.plan_report import BadKind, JobPlan
from batchgen.spec.load import load_job
from tests.end_to_end.harness import ModelFolders, TinyRunner, prompts
from tests.tiny_models import NO_SYSTEM, byte_tokenizer

ROOT = Path(__file__).parents[2]
# 24 shared tokens, then rows of 24, 26, 28 and 30 tokens; 30 on their own
SHARED = [*range(24)]
TOKEN_IDS = pa.table({"ids": [SHARED, [*SHARED, 1, 1], [*SHARED, 2, 2, 2, 2], [*SHARED, *[3] * 6], [9] * 30]})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    return ModelFolders(tmp_path_factory.mktemp("models"))


@pytest.fixture
def tiny(tmp_path: Path, models: ModelFolders) -> TinyRunner:
    return TinyRunner(tmp_path, models)


def plan(job_file: Path, **settings: Any) -> JobPlan:
    return plan_job(load_job(job_file), quiet=True, **settings)


def plan_of_token_ids(tiny: TinyRunner, **engine: Any) -> JobPlan:
    sampling = {"max_tokens": 3}
    return plan(
        tiny.write(TOKEN_IDS, input={"token_ids": "ids"}, sampling=sampling, engine={"block_size": 8, **engine})
    )


def test_tokens(tiny: TinyRunner) -> None:
    found = plan_of_token_ids(tiny)
    assert found.num_prompt_tokens == 24 + 26 + 28 + 30 + 30
    assert found.num_unique_tokens == 24 + 2 + 4 + 6 + 30
    assert found.hit_ceiling == 3 * 24  # the row of 24 tokens computes all three blocks
    assert {size.block_size: size.hit_ceiling for size in found.block_sizes} == {8: 72, 16: 48, 32: 0, 64: 0, 128: 0}


def test_empty_slots_count_the_output_but_for_its_last_token(tiny: TinyRunner) -> None:
    stored = [26, 28, 30, 32, 32]
    waste = {size.block_size: size.tail_waste for size in plan_of_token_ids(tiny).block_sizes}
    assert waste == {size: sum(-n % size for n in stored) for size in (8, 16, 32, 64, 128)}


def test_groups_name_rows_of_the_input(tiny: TinyRunner) -> None:
    table = pa.table({"ids": [[], [300], *TOKEN_IDS["ids"].to_pylist()]})  # two bad rows in front
    found = plan(tiny.write(table, input={"token_ids": "ids"}, engine={"block_size": 8}))
    [group] = found.groups.largest
    assert (group.first_row, group.num_rows, group.prefix_tokens) == (2, 4, 24)


def test_memory(tiny: TinyRunner) -> None:
    memory = plan_of_token_ids(tiny).memory
    assert memory.block == 8 * 2 * 2 * 66 * 4  # tokens, keys and values, KV heads, head size, bytes
    assert memory.num_blocks == memory.num_blocks_needed == 3 + 4 * 1 + 4  # shared, own tails, the row on its own
    assert memory.problem is None


def test_rows_at_once_are_what_the_pool_holds_of_the_average_row(tiny: TinyRunner) -> None:
    # Each of the rows reserves 4 blocks; the 9 hit blocks are shared: 11 blocks for 5 rows.
    assert plan_of_token_ids(tiny).memory.rows_at_once == 5
    assert plan_of_token_ids(tiny, max_num_seqs=2).memory.rows_at_once == 2
    assert plan_of_token_ids(tiny, num_blocks=7).memory.rows_at_once == 7 * 5 // 11
    assert plan_of_token_ids(tiny, num_blocks=7, prefix_cache=False).memory.rows_at_once == 7 * 5 // 20


def test_row_that_can_never_fit_the_pool_is_bad_as_in_a_run(tiny: TinyRunner) -> None:
    engine, sampling = {"block_size": 8, "num_blocks": 3}, {"max_tokens": 1}
    job_file = tiny.write(TOKEN_IDS, input={"token_ids": "ids"}, engine=engine, sampling=sampling)
    found = plan(job_file)
    assert (found.num_rows, found.num_bad, found.num_prompt_tokens) == (5, 4, 24)
    assert "needs 26 tokens of KV cache, the whole pool has 24" in found.bad_rows[0].error
    assert tiny.run_file(job_file).report["num_failed"] == 4


def test_bad_rows_are_shown_by_kind_in_the_order_they_came(tiny: TinyRunner) -> None:
    found = plan(tiny.write([{"prompt": "a"}, {"prompt": 1}, {}, {"prompt": 2}], input={"prompt": "prompt"}))
    assert (found.num_rows, found.num_bad) == (4, 3)
    assert [kind.num_rows for kind in found.bad_rows] == [2, 1]
    assert "line 2: column 'prompt': expected text, found the number 1" in found.bad_rows[0].error
    assert "line 3: column 'prompt' is missing" in found.bad_rows[1].error


def test_plan_says_when_a_run_would_stop(tiny: TinyRunner) -> None:
    rows = [{"prompt": "a"}, {"prompt": 1}]
    assert "the run will stop: max_errors allows" in plan(tiny.write(rows, on_error="stop")).table()
    assert "the run will stop: max_errors allows" not in plan(tiny.write(rows)).table()


def test_template_that_refuses_every_row_is_refused(tiny: TinyRunner) -> None:
    rows = [{"prompt": "a", "system": "s"}]
    job_file = tiny.write(rows, tokenizer=no_system, input={"system": "system"})
    with pytest.raises(InputError, match="no system role here"):
        plan(job_file)


def no_system() -> Any:
    return byte_tokenizer(NO_SYSTEM)


def test_time_from_a_given_rate(tiny: TinyRunner) -> None:
    job_file = tiny.write(prompts("a", "b"), input={"text": "prompt"}, sampling={"max_tokens": 8})
    time = plan(job_file, tokens_per_second=9.0).time
    assert (time.num_output_tokens, time.num_computed_tokens, time.seconds) == (16, 18, 2.0)


def test_time_without_a_rate_is_not_known_and_the_table_says_how_to_get_one(tiny: TinyRunner) -> None:
    found = plan(tiny.write(prompts("a")))
    assert found.time.seconds is None
    assert "--tokens-per-second" in found.table()


def test_rate_and_output_length_of_an_earlier_run_count(tiny: TinyRunner) -> None:
    job_file = tiny.write(prompts("note a", "note b"))  # a run answers with a letter and ends
    report = tiny.run_file(job_file).report
    time = plan(job_file).time
    assert time.num_output_tokens == report["num_output_tokens"]
    assert time.tokens_per_second == report["computed_tokens_per_second"]
    assert time.seconds == pytest.approx(time.num_computed_tokens / report["computed_tokens_per_second"])


def test_figures_are_those_of_the_run(tiny: TinyRunner) -> None:
    texts = ["s" * 40 + tail for tail in ("a", "b", "a long tail a", "ca")]
    job_file = tiny.write(prompts(*texts), engine={"block_size": 4})
    found, report = plan(job_file), tiny.run_file(job_file).report
    same = ("num_rows", "num_prompt_tokens", "num_unique_tokens", "hit_ceiling")
    assert [getattr(found, name) for name in same] == [report[name] for name in same]
    assert report["num_hit_tokens"] == found.hit_ceiling > 0
    assert report["num_blocks"] == found.memory.num_blocks


def test_nothing_is_written_and_nothing_left(tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = tiny.write(prompts("note a"))
    temporary = tiny.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    plan(job_file)
    assert not job_file.with_suffix("").exists()
    assert list(temporary.iterdir()) == []


def test_finished_run_stays_as_it_is(tiny: TinyRunner) -> None:
    job_file = tiny.write(prompts("note a"))
    folder = tiny.run_file(job_file).folder
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    plan(job_file)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_weights_are_not_needed(tmp_path: Path) -> None:
    tiny = TinyRunner(tmp_path, ModelFolders(tmp_path / "models"))
    job_file = tiny.write(prompts("note a"))
    [weights] = tmp_path.rglob("model.safetensors")
    weights.unlink()
    assert plan(job_file).num_rows == 1


def test_model_that_does_not_fit_is_said_and_the_rest_is_planned(
    tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchgen.models.load.available_memory", lambda device: 1000)
    found = plan(tiny.write(prompts("note a")))
    assert "the model itself does not fit on cpu" in (found.memory.problem or "")
    assert (found.memory.num_blocks, found.memory.rows_at_once) == (None, None)
    assert found.num_prompt_tokens > 0
    assert "fits                 no: the model itself" in found.table()


def test_pool_is_sized_by_what_is_left_beside_weights_and_steps(
    tiny: TinyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plan_of_token_ids(tiny).memory
    left = whole.weights + 1000 + 5 * whole.block
    monkeypatch.setattr("batchgen.job.pool.step_bytes", lambda *_: 1000)
    monkeypatch.setattr(plan_job_module, "available_memory", lambda device: left)
    memory = plan_of_token_ids(tiny, memory_fraction=1.0).memory
    assert (memory.num_blocks, memory.pool_reason) == (5, "memory")
    assert memory.num_blocks_needed == whole.num_blocks_needed


def test_variable_part_in_front_is_found_and_shown(tiny: TinyRunner) -> None:
    system = ". You are a careful assistant and answer every question in one short sentence, without a preamble."
    rows = [{"prompt": "a", "system": f"Ticket {number}{system}"} for number in range(1000, 1020)]
    found = plan(tiny.write(rows, input={"system": "system"}))
    difference = found.difference
    assert difference is not None
    assert difference.before.endswith("system\nTicket 100")
    assert difference.after == ("0. You are a", "1. You are a")
    assert "move what differs behind what is the same" in found.table()


def test_shared_system_message_shows_no_difference(tiny: TinyRunner) -> None:
    rows = [{"prompt": f"question {number}?", "system": "s" * 100} for number in range(20)]
    found = plan(tiny.write(rows, input={"system": "system"}))
    assert found.difference is None
    assert "not shared" not in found.table()


def test_job_without_rows_is_planned(tiny: TinyRunner) -> None:
    found = plan(tiny.write(b""), tokens_per_second=1.0)
    assert (found.num_rows, found.num_prompt_tokens, found.time.seconds) == (0, 0, 0.0)
    assert "0 good" in found.table()
    json.loads(found.to_json())


def test_json_is_one_object_and_every_key_is_documented(tiny: TinyRunner) -> None:
    rows = [{"prompt": "a"}, {"prompt": 1}]
    found = json.loads(plan(tiny.write(rows)).to_json())
    assert [*found] == [field.name for field in dataclasses.fields(JobPlan)]
    assert found["bad_rows"][0].keys() == {field.name for field in dataclasses.fields(BadKind)}
    assert found["groups"]["rows"].keys() == {"min", "median", "max"}
    documented = (ROOT / "docs/plan_command.md").read_text(encoding="utf-8")
    inner = [key for value in found.values() if isinstance(value, dict) for key in value]
    assert not [key for key in [*found, *inner] if f"`{key}`" not in documented]
