"""The real model on real prompts: SmolLM2-135M-Instruct on BIG-Bench Hard rows that come with the project.

Needs the embedded model (`python scripts/fetch_model.py`), as `scripts/test.sh` fetches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from batchgen.job.run import run_job
from batchgen.models.load import ModelInfo, inspect_model, load_weights
from batchgen.spec.job_spec import ModelSpec
from batchgen.spec.load import load_job
from batchgen.stats.report import RunReport

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[2] / "jobs"
MODEL = JOBS / "models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK_SIZE = 16
MAX_TOKENS = 12
TIE = 1e-3  # logits closer than this are decided by rounding
NUM_ROWS = 24  # of 54: five pairs share their task's examples
SPOT_CHECKED = (0, 11, 23)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReport, pd.DataFrame]:
    """The quickstart's job in float32, with fewer rows and short completions."""
    assert MODEL.exists(), "run scripts/fetch_model.py first"
    torch.set_num_threads(2)  # tests before this one may have taken one away
    out = tmp_path_factory.mktemp("bbh") / "out"
    changed = {"model.dtype": "float32", "sampling.max_tokens": MAX_TOKENS, "input.limit": NUM_ROWS, "output.path": out}
    report = run_job(
        load_job(JOBS / "quickstart.yaml", [f"{key}={value}" for key, value in changed.items()]), quiet=True
    )
    return report, pq.read_table(out / "completions").to_pandas()


@pytest.fixture(scope="module")
def model_info() -> ModelInfo:
    return inspect_model(ModelSpec(path=str(MODEL), dtype="float32"), torch.device("cpu"))


def prompt_ids(info: ModelInfo, row: Any) -> list[int]:
    """The prompt as transformers itself renders and encodes it."""
    messages = [{"role": "system", "content": row.system}, {"role": "user", "content": row.prompt}]
    text = info.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = info.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def test_every_row_is_answered_in_input_order(run: tuple[RunReport, pd.DataFrame]) -> None:
    _, rows = run
    sample = pq.read_table(JOBS / "data/bbh_sample.parquet").slice(0, NUM_ROWS).to_pandas()
    assert rows[list(sample.columns)].equals(sample)
    assert set(rows.finish_reason) <= {"stop", "length"}
    assert rows.completion.str.len().gt(0).all()


def test_cached_tokens_are_what_the_prefix_tree_allows(
    run: tuple[RunReport, pd.DataFrame], model_info: ModelInfo
) -> None:
    report, rows = run
    prompts = [prompt_ids(model_info, row) for row in rows.itertuples()]
    assert rows.prompt_tokens.tolist() == [len(prompt) for prompt in prompts]
    allowed = most_hits(prompts)
    assert allowed > 0
    assert allowed == report.hit_ceiling == report.num_hit_tokens
    assert rows.cached_tokens.sum() == report.num_hit_tokens + report.num_copied_tokens


def most_hits(prompts: Sequence[Sequence[int]]) -> int:
    """Over the nodes of the block prefix tree: (rows through it - max(1, rows that end exactly on it)) blocks."""
    through: Counter[tuple[int, ...]] = Counter()
    for prompt in prompts:
        through.update(tuple(prompt[:stop]) for stop in range(BLOCK_SIZE, len(prompt) + 1, BLOCK_SIZE))
    ending = Counter(map(tuple, prompts))
    return BLOCK_SIZE * sum(count - max(1, ending[node]) for node, count in through.items())


def test_rows_equal_generate_up_to_a_tie(run: tuple[RunReport, pd.DataFrame], model_info: ModelInfo) -> None:
    _, rows = run
    model = load_weights(model_info, ModelSpec(path=str(MODEL)), torch.device("cpu"), "sdpa")
    for index in SPOT_CHECKED:
        row = next(rows.iloc[[index]].itertuples())
        ids = torch.tensor([prompt_ids(model_info, row)])
        output = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = output.sequences[0, ids.shape[1] :].tolist()
        num_equal = common_steps(model_info, tokens, row.completion)
        gaps = [float(best - second) for best, second in (logits[0].topk(2).values for logits in output.logits)]
        print(f"row {index}: {num_equal} of {len(tokens)} steps equal, smallest gap {min(gaps):.4f}")
        assert num_equal == len(tokens) or gaps[num_equal] < TIE


def common_steps(info: ModelInfo, tokens: Sequence[int], completion: str) -> int:
    """After how many of `tokens` their text is still the beginning of `completion`; all, if it is the whole of it."""

    def text(stop: int) -> str:
        decoded = info.tokenizer.decode(
            list(tokens[:stop]), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(decoded, str)
        return decoded

    if text(len(tokens)) == completion:
        return len(tokens)
    return len(list(takewhile(lambda stop: completion.startswith(text(stop)), range(1, len(tokens)))))
