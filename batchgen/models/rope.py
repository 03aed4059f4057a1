"""One LongRoPE scaling for a whole job. Knows configs; knows no tensor.

A LongRoPE config (Ding et al., arXiv 2402.13753) holds one list of factors for contexts up to the length of the
original training and one for longer ones. transformers chooses by the longest position of a forward: a row would depend
on its batch, and its cached keys on the step that computed them. Here the context limit of the job chooses once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from transformers import PreTrainedConfig


class FixedRope(NamedTuple):
    """A config whose rotary embedding of a token depends on nothing but its position."""

    config: PreTrainedConfig
    factors: str | None  # "short" | "long": the list that replaces both; None if the config has no LongRoPE


def fix_longrope(config: PreTrainedConfig, max_model_len: int) -> FixedRope:
    """Return the config with the long factors if contexts may exceed the original training length, else the short ones.

    `config` is not changed; it is returned itself if it has no LongRoPE.
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
    """Yield the rotary settings of a config: the shared ones, then those of each kind of layer, if they differ."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    yield settings
    yield from (value for value in settings.values() if isinstance(value, Mapping))  # type: ignore[misc]
