"""LongRoPE fixed for a whole job. Knows configs; knows no tensor.

A LongRoPE config (Ding et al., arXiv 2402.13753) holds one list of factors for contexts as long as those of the first
training and one for longer ones. transformers chooses by the longest position of a forward: a row would depend on the
rows beside it, and its cached keys on the step they were made in. Here the choice falls once, by the context limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from transformers import PreTrainedConfig


class FixedRope(NamedTuple):
    """A config whose rotary positions depend on nothing but the position."""

    config: PreTrainedConfig
    factors: str | None  # "short" | "long": which list a LongRoPE config was given for both; None: it is none


def fix_longrope(config: PreTrainedConfig, max_model_len: int) -> FixedRope:
    """The long factors where contexts may exceed the length of the first training, else the short ones.

    `config` stays as it is; it is returned where it has no LongRoPE.
    """
    if not any(rope.get("rope_type") == "longrope" for rope in rope_settings(config)):
        return FixedRope(config, None)
    fixed = deepcopy(config)
    factors = ""
    for rope in rope_settings(fixed):
        if rope.get("rope_type") == "longrope":
            factors = "long" if max_model_len > rope["original_max_position_embeddings"] else "short"
            rope["short_factor"] = rope["long_factor"] = rope[f"{factors}_factor"]
    return FixedRope(fixed, factors)


def rope_settings(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    """The rotary settings of a config: one set, and one for each kind of layer where they differ."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    yield settings
    yield from (value for value in settings.values() if isinstance(value, Mapping))  # type: ignore[misc]
