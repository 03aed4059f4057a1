"""SamplingParams: how the tokens of a row are chosen. A root noun, so that `job` and `engine` stay apart."""

from __future__ import annotations

from dataclasses import dataclass

MIN_TEMPERATURE = 1e-6  # below this the best token is all there is, and float32 would divide by nothing


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Resolved sampling values; nothing here is optional any more but `max_tokens`.

    `max_tokens` None means: up to the context limit. `seed` is the job's seed; the draws of a row also depend on its
    key, so that two rows with one seed differ (`engine/sampler.py`).
    """

    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # 1.0: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0.0: off
    n: int = 1  # samples of every row
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()  # from the job file; end tokens of the model are kept apart
    ignore_eos: bool = False
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE
