"""The language part of every registered multimodal model equals `generate` of the whole model on text, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.load import ModelInfo, inspect_model, load_weights
from batchgen.spec.job_spec import ModelSpec
from tests.engine.harness import make_engine, make_requests, run
from tests.families.harness import BLOCK_SIZE, MAX_TOKENS, PINNED, PROMPTS, Generated, generate
from tests.families.multimodal import AVAILABLE, MULTIMODAL, tiny_multimodal
from tests.tiny_models import byte_tokenizer, save_model

CPU = torch.device("cpu")
SMALLEST_GAP = 1e-3  # between the two best logits, so that no token depends on rounding


def load_language_part(folder: Path, whole: PreTrainedModel) -> tuple[ModelInfo, PreTrainedModel]:
    """Save the whole model as transformers does, and load its language part."""
    spec = ModelSpec(path=str(save_model(folder, whole, byte_tokenizer())))
    info = inspect_model(spec, CPU)
    return info, load_weights(info, spec, CPU, IMPLEMENTATION)


def language_bytes(whole: PreTrainedModel) -> int:
    """Return the bytes of the decoder and of the output layer, unless that is the embedding."""
    decoder, head = whole.get_decoder(), whole.get_output_embeddings()  # type: ignore[no-untyped-call]
    parameters = {id(parameter): parameter for part in (decoder, head) for parameter in part.parameters()}
    return sum(parameter.nbytes for parameter in parameters.values())


def expected(whole: PreTrainedModel) -> list[Generated]:
    rows = [generate(whole, prompt) for prompt in PROMPTS]
    best = torch.cat([row.logits for row in rows]).topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > SMALLEST_GAP
    assert len({tuple(row.token_ids) for row in rows}) == len(PROMPTS)
    return rows


@pytest.mark.parametrize("model_type", AVAILABLE)
def test_equals_generate_of_the_whole_model(model_type: str, tmp_path: Path) -> None:
    whole = tiny_multimodal(model_type)
    info, model = load_language_part(tmp_path, whole)
    assert info.weight_bytes == sum(parameter.nbytes for parameter in model.parameters()) == language_bytes(whole)
    assert info.weight_bytes < sum(parameter.nbytes for parameter in whole.parameters())
    assert model.config.model_type == MULTIMODAL[model_type].text
    engine = make_engine(model, "fused", block_size=BLOCK_SIZE, max_batched_tokens=24)
    requests = make_requests(PROMPTS, BLOCK_SIZE)
    for request in requests:
        request.max_tokens = MAX_TOKENS
    outputs = run(engine, requests)
    assert [outputs[row] for row in range(len(PROMPTS))] == [row.token_ids for row in expected(whole)]


@pytest.mark.skipif(not PINNED, reason="older versions of transformers lack some families")
def test_the_pinned_transformers_has_every_family() -> None:
    assert list(MULTIMODAL) == AVAILABLE
