"""Every registered family, with its special features on, equals `generate` of one row at a time in float32.

The other tests here show that this test can fail: the outputs depend on distant tokens and on every named feature.
"""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from batchgen.sampling_params import SamplingParams
from tests.engine.harness import make_engine, make_requests, run
from tests.families.harness import BLOCK_SIZE, MAX_TOKENS, PINNED, PROMPTS, Generated, expected, generate
from tests.families.registry import AVAILABLE, FAMILIES, tiny_config, tiny_family, with_config

TOLERANCE = 5e-4  # of a logit
SMALLEST_GAP = 2 * TOLERANCE  # between the two best logits, so that no token depends on rounding
NUM_TOP = 20  # log-probabilities compared at each token


def special_to(model_type: str) -> set[str]:
    return {*FAMILIES[model_type].features, *FAMILIES[model_type].traits}


def covering_families() -> list[str]:
    """A few families that have, together, everything that is special about any of them."""
    missing, chosen = set[str]().union(*map(special_to, AVAILABLE)), list[str]()
    while missing:
        chosen.append(max(AVAILABLE, key=lambda model_type: len(missing & special_to(model_type))))
        missing -= special_to(chosen[-1])
    return chosen


# Every family with the layers that `fused` rewrites, since these differ; what the attention sees is covered by a few.
CASES = [
    *((model_type, "fused") for model_type in AVAILABLE),
    *(
        pytest.param(model_type, backend, marks=pytest.mark.slow)
        for backend in ("cpu", "reference")
        for model_type in covering_families()
    ),
]


@pytest.mark.parametrize(("model_type", "backend"), CASES)
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
        for token, expected_logprobs in zip(request.output_logprobs, logprobs, strict=True):
            ids, values = zip(*token.top, strict=True)
            torch.testing.assert_close(torch.tensor(values), expected_logprobs[list(ids)], atol=TOLERANCE, rtol=0)
    assert engine.stats.prompt.hit > 0


@pytest.mark.parametrize("model_type", AVAILABLE)
def test_rows_differ_and_depend_on_far_tokens_and_rounding_decides_none(model_type: str) -> None:
    rows = expected(model_type)
    assert len({tuple(row.token_ids) for row in rows}) == len(PROMPTS)
    best = torch.cat([row.logits for row in rows]).topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > SMALLEST_GAP
    *_, longest = sorted(PROMPTS, key=len)
    changed = [*longest[:-26], *[token ^ 1 for token in longest[-26:-18]], *longest[-18:]]  # beyond window and block
    assert generate(tiny_family(model_type), changed).token_ids != rows[PROMPTS.index(longest)].token_ids


@pytest.mark.parametrize("model_type", [name for name in AVAILABLE if FAMILIES[name].features])
def test_logits_depend_on_every_feature(model_type: str) -> None:
    model = tiny_family(model_type)
    for feature, off in FAMILIES[model_type].features.items():
        without = with_config(model, tiny_config(model_type, off))
        assert largest_difference(without, expected(model_type)) > 100 * TOLERANCE, feature


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
    """Return the largest difference of the logits of `model` from those of the rows, given the rows' tokens."""
    found = 0.0
    for prompt, row in zip(PROMPTS, rows, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + row.token_ids[:-1]]), use_cache=False).logits
        found = max(found, float((logits[0, len(prompt) - 1 :] - row.logits).abs().max()))
    return found


@pytest.mark.skipif(not PINNED, reason="older versions of transformers lack some families")
def test_the_pinned_transformers_has_every_family() -> None:
    assert list(FAMILIES) == AVAILABLE
