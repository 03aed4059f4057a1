"""Every registered family equals plain `generate`, one row at a time, in float32, with all that is special about it on.

The other tests here show that these can fail: the outputs depend on far tokens and on every feature that is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from batchgen.sampling_params import SamplingParams
from tests.engine.test_parity import make_engine, make_requests, run
from tests.families.registry import AVAILABLE, FAMILIES, tiny_config, tiny_family, with_config
from tests.tiny_models import VOCAB_SIZE

BLOCK_SIZE = 8
MAX_TOKENS = 12
TOLERANCE = 5e-4  # of a logit
SMALLEST_GAP = 2 * TOLERANCE  # between the two best logits, so that rounding decides no token
NUM_TOP = 20  # log-probabilities compared at each token


def make_prompts() -> list[list[int]]:
    """Lengths 1, 9, 23 and 50, and three more that share their first 20 tokens with the longest."""
    generator = np.random.default_rng(0)
    prompts = [[first, *generator.integers(0, 256, length - 1).tolist()] for first, length in enumerate((1, 9, 23, 50))]
    return prompts + [prompts[-1][:20] + generator.integers(0, 256, extra).tolist() for extra in (0, 5, 19)]


PROMPTS = make_prompts()


class Generated(NamedTuple):
    """One row's output."""

    token_ids: list[int]
    logits: Tensor  # [tokens, vocab]


def generate(model: PreTrainedModel, prompt: list[int], unused: Sequence[int] = (VOCAB_SIZE - 1,)) -> Generated:
    """What transformers gives for this prompt alone. `unused`: ids that the tokenizer lacks."""
    ids = torch.tensor([prompt])
    output = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        suppress_tokens=list(unused),
        output_logits=True,
        return_dict_in_generate=True,
    )
    return Generated(output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits))


@cache
def expected(model_type: str) -> list[Generated]:
    """What `generate` gives for each prompt alone."""
    model = tiny_family(model_type)
    return [generate(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("backend", ["cpu", "fused", "reference"])
@pytest.mark.parametrize("model_type", AVAILABLE)
def test_equals_generate(model_type: str, backend: str) -> None:
    engine = make_engine(tiny_family(model_type), backend, block_size=BLOCK_SIZE, max_batched_tokens=24)
    requests = make_requests(PROMPTS, BLOCK_SIZE)
    for request in requests:
        request.max_tokens = MAX_TOKENS
        request.params = SamplingParams(logprobs=NUM_TOP)
    outputs = run(engine, requests)
    assert [outputs[row] for row in range(len(PROMPTS))] == [row.token_ids for row in expected(model_type)]
    for request in requests:
        logprobs = expected(model_type)[request.row_index].logits.log_softmax(-1)
        for token, theirs in zip(request.output_logprobs, logprobs, strict=True):
            ids, values = zip(*token.top, strict=True)
            torch.testing.assert_close(torch.tensor(values), theirs[list(ids)], atol=TOLERANCE, rtol=0)
    assert engine.stats.prompt.hit > 0


@pytest.mark.parametrize("model_type", AVAILABLE)
def test_a_token_beyond_window_and_block_changes_the_output(model_type: str) -> None:
    *_, longest = sorted(PROMPTS, key=len)
    changed = [*longest[:-26], *[token ^ 1 for token in longest[-26:-18]], *longest[-18:]]
    before = expected(model_type)[PROMPTS.index(longest)]
    assert generate(tiny_family(model_type), changed).token_ids != before.token_ids


@pytest.mark.parametrize("model_type", AVAILABLE)
def test_rows_differ_and_rounding_decides_no_token(model_type: str) -> None:
    rows = expected(model_type)
    assert len({tuple(row.token_ids) for row in rows}) == len(PROMPTS)
    best = torch.cat([row.logits for row in rows]).topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > SMALLEST_GAP


@pytest.mark.parametrize(
    ("model_type", "feature"),
    [(model_type, name) for model_type in AVAILABLE for name in FAMILIES[model_type].features],
)
def test_logits_depend_on_every_feature(model_type: str, feature: str) -> None:
    off = tiny_config(model_type, FAMILIES[model_type].features[feature])
    model = with_config(tiny_family(model_type), off)
    assert largest_difference(model, expected(model_type)) > 100 * TOLERANCE


@pytest.mark.parametrize("model_type", [name for name in AVAILABLE if "sinks" in " ".join(FAMILIES[name].traits)])
def test_logits_depend_on_the_sinks(model_type: str) -> None:
    model = tiny_family(model_type)
    sinks = [parameter for name, parameter in model.named_parameters() if "sink" in name]
    assert sinks
    with torch.no_grad():
        for parameter in sinks:
            parameter.fill_(-torch.inf)
    assert largest_difference(model, expected(model_type)) > 100 * TOLERANCE


def largest_difference(model: PreTrainedModel, rows: list[Generated]) -> float:
    """Between the logits of `model` and those of the rows, at the rows' own tokens."""
    found = 0.0
    for prompt, row in zip(PROMPTS, rows, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + row.token_ids[:-1]]), use_cache=False).logits
        found = max(found, float((logits[0, len(prompt) - 1 :] - row.logits).abs().max()))
    return found


PINNED = f"transformers=={transformers.__version__}\n" in (Path(__file__).parents[2] / "constraints.txt").read_text()


@pytest.mark.skipif(not PINNED, reason="older versions of transformers lack some families")
def test_the_pinned_transformers_has_every_family() -> None:
    assert list(FAMILIES) == AVAILABLE
