"""`sampling.n`: a row has n answers, next to each other, each with its own draws and from one prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.harness import Result, TinyRunner, prompts
from tests.end_to_end.interrupted import FOUR_AT_ONCE, MANY_AT_ONCE, start, wait_for_chunks
from tests.tiny_models import context_model, uniform_model

SAMPLED = {"temperature": 1, "max_tokens": 16, "seed": 5, "ignore_eos": True}
TEXTS = [f"{'once upon a time ' * 3}{tail}" for tail in ("a", "ab", "abc" * 9, "", "zz" * 20)] + ["short"]


def run(run_tiny: TinyRunner, n: int, **engine: Any) -> Result:
    sampling = {**SAMPLED, "n": n}
    return run_tiny(prompts(*TEXTS), model=context_model, sampling=sampling, engine={"block_size": 16, **engine})


def test_the_samples_of_a_row_lie_next_to_each_other_in_input_order(run_tiny: TinyRunner) -> None:
    result = run(run_tiny, 3)
    assert [(row["prompt"], row["sample_index"]) for row in result.rows] == [(t, s) for t in TEXTS for s in range(3)]
    assert len(set(result.completions)) == 3 * len(TEXTS)
    assert (result.report["num_rows"], result.report["num_ok"]) == (6, 6)


def test_samples_after_the_first_have_the_whole_prompt_cached(run_tiny: TinyRunner) -> None:
    result = run(run_tiny, 3)
    for row in result.rows:
        assert (row["cached_tokens"] == row["prompt_tokens"]) == (row["sample_index"] > 0)


def test_a_prompt_counts_once_a_row(run_tiny: TinyRunner) -> None:
    one, three = run(run_tiny, 1).report, run(run_tiny, 3).report
    for name in ("num_prompt_tokens", "num_hit_tokens", "hit_ceiling", "hit_rate", "num_prefill_tokens"):
        assert one[name] == three[name]
    assert three["num_output_tokens"] == 3 * one["num_output_tokens"]
    assert three["sharing"] > one["sharing"]


def test_a_sample_is_the_same_however_many_there_are(run_tiny: TinyRunner) -> None:
    one, three = run(run_tiny, 1), run(run_tiny, 3)
    assert one.completions == three.completions[::3]


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 3, "block_size": 8},
        {"max_num_seqs": 8, "num_blocks": 8, "expected_tokens": 1},
        {"prefix_cache": False, "max_num_seqs": 2},
        {"order": "input", "max_batched_tokens": 7},
    ],
)
def test_samples_do_not_depend_on_the_batch(run_tiny: TinyRunner, engine: dict[str, Any]) -> None:
    assert run(run_tiny, 4, **engine).completions == run(run_tiny, 4).completions


@pytest.mark.parametrize("sampling", ["{n: 2}", "{n: 2, temperature: null}"])
@pytest.mark.parametrize("generation_config", [None, {"do_sample": True, "temperature": 0.0}])
def test_several_greedy_samples_are_refused_whatever_makes_them_greedy(
    run_tiny: TinyRunner, sampling: str, generation_config: dict[str, Any] | None
) -> None:
    result = run_tiny(prompts("x"), sampling=sampling, generation_config=generation_config)
    assert result.exit_code == 2
    assert "sampling.n: 2 samples at temperature 0 would all be the same" in result.error


def test_a_row_that_cannot_run_has_one_output(run_tiny: TinyRunner) -> None:
    rows = [{"prompt": "x"}, {"prompt": None}, {"prompt": "y"}]
    result = run_tiny(rows, sampling={"n": 2, "temperature": 0.1, "max_tokens": 1})
    assert [(row["completion"], row["finish_reason"], row["sample_index"]) for row in result.rows] == [
        ("X", "length", 0), ("X", "length", 1), (None, "error", 0), ("Y", "length", 0), ("Y", "length", 1),
    ]  # fmt: skip
    assert (result.report["num_ok"], result.report["num_failed"]) == (2, 1)


@pytest.mark.slow
def test_a_kill_between_the_samples_of_a_row_commits_none_of_them(run_tiny: TinyRunner) -> None:
    sampling = {"temperature": 1, "max_tokens": 120, "seed": 3, "n": 5}  # of very different lengths
    rows = [{"prompt": f"row {n}"} for n in range(16)]

    def write() -> Path:
        return run_tiny.write(rows, model=uniform_model, sampling=sampling, engine=FOUR_AT_ONCE)

    whole, killed = run_tiny.run_file(write(), MANY_AT_ONCE), write()
    session = start(killed)
    wait_for_chunks(killed, 3)
    session.kill()
    resumed = run_tiny.run_file(killed, MANY_AT_ONCE)
    assert resumed.report["num_resumed_rows"] > 0
    varies = ["cached_tokens"]  # what is found depends on the rows of the same session
    assert resumed.table.drop_columns(varies).equals(whole.table.drop_columns(varies))
