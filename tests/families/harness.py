"""What transformers' `generate` gives for a few prompts of a family, with its logits; and a model with LongRoPE."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from tests.families.registry import tiny_family
from tests.tiny_models import VOCAB_SIZE

BLOCK_SIZE = 8
MAX_TOKENS = 12


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


PINNED = f"transformers=={transformers.__version__}\n" in (Path(__file__).parents[2] / "constraints.txt").read_text()
BORDER = 32  # tokens of the first training


def longrope_model() -> PreTrainedModel:
    factors = {"short_factor": [1.0, 1.0, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e2, "partial_rotary_factor": 0.5, **factors}
    return tiny_family("phi3", {"original_max_position_embeddings": BORDER, "rope_parameters": rope})


SHORT_ROWS = [prompt for prompt in PROMPTS if len(prompt) + MAX_TOKENS <= BORDER]
LONG_ROWS = [prompt for prompt in PROMPTS if len(prompt) > BORDER]
