"""Every family in float32: batched, prefix-shared, chunked output equals transformers' own `generate`, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, PreTrainedModel

from batchgen.engine.assemble import EngineSettings, assemble_engine
from batchgen.engine.engine import Engine
from batchgen.engine.request import Request
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.probe import probe_attention
from batchgen.models.support import TESTED_FAMILIES, refuse_unsupported
from batchgen.plan.order import lexicographic_order, visiting_order
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from batchgen_kernels import ReferenceBackend
from scripts.list_families import table
from tests.families.registry import FAMILIES, tiny_config, tiny_family, without

MAX_TOKENS = 8
BLOCK_SIZE = 8
FEATURES = [(kind, name) for kind, family in FAMILIES.items() for name in family.features]


def make_prompts() -> list[list[int]]:
    """Two rows of 45 and 52 tokens that share 40, and rows of 5 and 19; longer than the windows, and shorter."""
    generator = np.random.default_rng(0)

    def tokens(count: int) -> list[int]:
        return generator.integers(3, 256, count).tolist()  # type: ignore[no-any-return]

    shared = tokens(40)
    return [shared + tokens(5), shared + tokens(12), tokens(5), tokens(19)]


PROMPTS = make_prompts()


def generate(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False
    )
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def run(model: PreTrainedModel) -> list[list[int]]:
    """All prompts through an engine of three rows and 24 tokens a step."""
    with torch.device("meta"):
        meta = type(model)._from_config(  # type: ignore[no-untyped-call]
            model.config, dtype=torch.bfloat16, attn_implementation=IMPLEMENTATION
        )
    layers = probe_attention(meta)
    model.set_attn_implementation(IMPLEMENTATION)
    settings = EngineSettings(
        num_blocks=64, block_size=BLOCK_SIZE, max_num_seqs=3, max_batched_tokens=24, expected_tokens=None,
        prefix_cache=True, max_model_len=256, by_prefix=True,
    )  # fmt: skip
    engine = assemble_engine(model, layers, ReferenceBackend(), [], settings)
    outputs = {r.row_index: r.output_token_ids for finished in engine.run(make_requests()) for r in finished}
    assert was_shared_and_cut(engine)
    return [outputs[row] for row in range(len(PROMPTS))]


def make_requests() -> list[Request]:
    store = PackedTokens.pack(PROMPTS)
    order = visiting_order(
        lexicographic_order(store, range(len(PROMPTS))), store, [MAX_TOKENS] * len(PROMPTS), BLOCK_SIZE
    )
    return [
        Request(row, store[row], SamplingParams(), draw_key=row, max_tokens=MAX_TOKENS, shared_with_next=shared)
        for row, shared in zip(order.positions.tolist(), order.shared.tolist(), strict=True)
    ]


def was_shared_and_cut(engine: Engine) -> bool:
    """40 tokens found in the cache, and more steps than an uncut prompt needs."""
    return engine.stats.prompt.hit == 40 and engine.stats.num_steps > MAX_TOKENS + 1


@pytest.mark.parametrize("kind", FAMILIES)
def test_equals_generate(kind: str) -> None:
    model = tiny_family(kind)
    expected = [generate(model, prompt) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS), "the rows must differ"
    assert run(model) == expected


@pytest.mark.parametrize(("kind", "name"), FEATURES)
def test_what_is_special_about_it_matters(kind: str, name: str) -> None:
    """Otherwise the test above would not see it missing."""
    model = tiny_family(kind)
    changed = without(model, FAMILIES[kind].features[name])
    ids = torch.tensor([PROMPTS[1]])
    with torch.inference_mode():
        difference = model(ids).logits[0, -1] - changed(ids).logits[0, -1]
    assert difference.abs().max() > 1e-3


def test_every_registered_family_is_tested_and_supported() -> None:
    assert set(FAMILIES) == TESTED_FAMILIES
    for kind in FAMILIES:
        refuse_unsupported(tiny_config(kind), allow_untested=False)


def test_there_are_many_of_them() -> None:
    assert len(FAMILIES) >= 24
    assert set(FAMILIES) <= set(CONFIG_MAPPING)


def test_the_page_has_the_table() -> None:
    assert "\n".join(table()) in Path("docs/models.md").read_text(encoding="utf-8")
