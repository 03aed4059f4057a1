"""Pass 1: rows to token ids in a store, bad rows to their errors. A few dozen bytes a row stay in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from batchgen.engine.philox import draw_key
from batchgen.errors import RowError
from batchgen.io.readers import Input
from batchgen.io.rows import Row
from batchgen.job.results import Results
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.encoder import PromptEncoder
from batchgen.prompts.prompt import Prompt, RowKeys

if TYPE_CHECKING:
    from batchgen.job.target import Target


@dataclass(slots=True)
class TokenisedRows:
    """The good rows of a job; the n-th entry of every array belongs to the n-th prompt of the store."""

    store: TokenStore
    row_indices: array[int] = field(default_factory=lambda: array("q"))
    draw_keys: array[int] = field(default_factory=lambda: array("Q"))
    max_tokens: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.row_indices)


def tokenise(
    source: Input, encoder: PromptEncoder, target: Target, id_column: str | None, results: Results, store: TokenStore
) -> TokenisedRows:
    """Read the whole input once; bad rows go to `results`, the prompts of the others to `store`."""
    rows = TokenisedRows(store)
    for prompt in _encode(source.read_rows(), encoder, RowKeys(id_column), target.max_model_len, results):
        store.append(prompt.token_ids)
        rows.row_indices.append(prompt.row_index)
        rows.draw_keys.append(draw_key(target.params.seed, prompt.key))
        rows.max_tokens.append(target.max_tokens(len(prompt.token_ids)))
    store.seal()
    return rows


def _encode(
    rows: Iterable[Row], encoder: PromptEncoder, keys: RowKeys, max_model_len: int, results: Results
) -> Iterator[Prompt]:
    for row in rows:
        key = keys.next(row)
        if row.error is not None:
            results.fail(row.index, row.error)
            continue
        try:
            token_ids = encoder.encode(row)
        except RowError as error:
            results.fail(row.index, str(error))
            continue
        if len(token_ids) >= max_model_len:
            results.fail(row.index, _too_long(row, token_ids, max_model_len), len(token_ids))
            continue
        yield Prompt(row.index, token_ids, key)


def _too_long(row: Row, token_ids: Sequence[int], max_model_len: int) -> str:
    return (
        f"{row.place}: the prompt has {len(token_ids)} tokens; the limit is {max_model_len} (engine.max_model_len or "
        "the model's own) and at least one must be left for the completion"
    )
