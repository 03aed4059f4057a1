"""A RowEncoder with the byte tokenizer, rows for it, and their errors."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from batchgen.errors import RowError
from batchgen.io.input.rows import Row
from batchgen.prompts.encoder import RowEncoder
from batchgen.spec.job_spec import InputSpec
from tests.tiny_models import VOCAB_SIZE, byte_tokenizer

NOON = datetime(2025, 1, 2, 12, 0, 0, 123456)


def encoder(
    tokenizer: PreTrainedTokenizerFast | None = None, *, vocab_size: int = VOCAB_SIZE, **columns: Any
) -> RowEncoder:
    spec = InputSpec.model_validate({"path": "rows.jsonl"} | (columns or {"prompt": "prompt"}))
    return RowEncoder(tokenizer or byte_tokenizer(), spec, vocab_size=vocab_size, max_model_len=1000, clock=NOON)


def row(**values: Any) -> Row:
    return Row(2, "rows.jsonl line 3", values)


def error_of(row_encoder: RowEncoder, bad_row: Row) -> str:
    with pytest.raises(RowError) as caught:
        row_encoder.encode_row(bad_row)
    return str(caught.value)
