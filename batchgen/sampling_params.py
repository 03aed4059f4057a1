"""SamplingParams: how the tokens of a row are sampled. At the root, so that `engine` need not import `job`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIN_TEMPERATURE = 1e-6  # lower temperatures mean greedy sampling, so that no logit is divided by almost 0


class Structured(NamedTuple):
    """The format that a completion must have."""

    kind: str  # the key in `sampling.structured`
    text: str  # its value; schemas and choices as JSON


def contradiction(*, temperature: float, n: int, min_tokens: int, max_tokens: int | None) -> str | None:
    """Return why these values cannot be meant together, beginning with a key; None if they can."""
    if max_tokens is not None and min_tokens > max_tokens:
        return f"min_tokens: {min_tokens} is more than max_tokens, which is {max_tokens}"
    if n > 1 and temperature == 0:
        return f"n: {n} samples at temperature 0 would all be the same; set a temperature above 0, or n to 1"
    return None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Resolved sampling values of a row; every field is a key of the job's `sampling`, with bad words as token ids.

    Hashable, so that rows with equal values share one object. docs/sampling.md defines them; `max_tokens` None
    means: up to the context limit. `seed` is what the job file gives; the draws of a row also depend on its key, so
    that two rows with one seed differ (`prompts/prompt.py`).
    """

    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # 1.0: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0.0: off
    repetition_penalty: float = 1.0  # 1.0: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, value added to its logit)
    bad_words: tuple[tuple[int, ...], ...] = ()  # the last token of each is forbidden after the others
    structured: Structured | None = None
    n: int = 1  # samples per row
    max_tokens: int | None = None
    max_reasoning_tokens: int | None = None  # None: up to the context limit
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()  # from the job file; the end tokens of the model are not among them
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None  # None: drawn once a run
    logprobs: int | None = None  # number of top tokens to report besides the sampled one
    prompt_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE

    @property
    def contradiction(self) -> str | None:
        """Why these values cannot be meant together, beginning with a key; None if they can."""
        return contradiction(
            temperature=self.temperature, n=self.n, min_tokens=self.min_tokens, max_tokens=self.max_tokens
        )

    @property
    def penalises(self) -> bool:
        """Whether tokens that occurred before become more or less likely."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
