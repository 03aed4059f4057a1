"""Pass 1: which rows get a prompt, what is stored of each, and which errors the others get. One token is one byte."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerFast

from batchgen.console import progress_bar
from batchgen.errors import InputError
from batchgen.io.input.readers import open_input
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.encoder import RowEncoder
from batchgen.prompts.prompt import repeated_key, rng_key, row_key
from batchgen.prompts.row_sampling import RowSampling
from batchgen.prompts.sampling_encoder import SamplingEncoder
from batchgen.prompts.tokenise import TokenisedRows, tokenise
from batchgen.sampling_params import SamplingParams
from batchgen.spec.job_spec import InputSpec
from tests.tiny_models import CHATML, NO_SYSTEM, VOCAB_SIZE, byte_tokenizer

SEED = 7
MAX_MODEL_LEN = 50


class BadRows:
    def __init__(self) -> None:
        self.found: dict[int, tuple[str, int | None]] = {}

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        self.found[row_index] = (error, prompt_tokens)


class PassOne:
    """Runs pass 1 on rows written as JSON lines (dicts) or as Parquet (a table)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bad = BadRows()

    def __call__(
        self,
        rows: Sequence[Mapping[str, Any]] | pa.Table,
        tokenizer: PreTrainedTokenizerFast | None = None,
        **columns: Any,
    ) -> TokenisedRows:
        self.bad = BadRows()
        if isinstance(rows, pa.Table):
            path = self._folder / "in.parquet"
            pq.write_table(rows, path)
        else:
            path = self._folder / "in.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = InputSpec(path=str(path), **columns)
        encoder = RowEncoder(
            tokenizer or byte_tokenizer(CHATML),
            spec,
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            clock=datetime.now(),
        )
        store = TokenStore(self._folder / "tokens.bin")
        sampling_encoder = SamplingEncoder(byte_tokenizer(), VOCAB_SIZE)
        sampling = RowSampling(SamplingParams(max_tokens=8), SEED, sampling_encoder, spec.sampling)
        return tokenise(open_input(spec), encoder, sampling, self.bad, store, bar=progress_bar(None, quiet=True))


@pytest.fixture
def pass_one(tmp_path: Path) -> PassOne:
    return PassOne(tmp_path)


def prompts_of(rows: TokenisedRows) -> list[list[int]]:
    return [rows.store[position].tolist() for position in range(len(rows))]


def test_prompts_are_those_of_the_chat_template(pass_one: PassOne) -> None:
    tokenizer = byte_tokenizer(CHATML)
    rows = pass_one([{"q": "hi"}, {"q": "a\n\nb"}], tokenizer, prompt="q")
    chats = [[{"role": "user", "content": text}] for text in ("hi", "a\n\nb")]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert prompts_of(rows) == expected


def test_bad_rows_leave_no_gap_and_take_no_index(pass_one: PassOne) -> None:
    rows = pass_one([{"q": "a"}, {"q": 3}, {"q": "b"}, {}, {"q": "c" * MAX_MODEL_LEN}, {"q": "d"}], text="q")
    assert prompts_of(rows) == [[ord("a")], [ord("b")], [ord("d")]]
    assert rows.row_indices == array("q", [0, 2, 5])
    assert [*pass_one.bad.found] == [1, 3, 4]


def test_prompt_needs_room_for_one_more_token(pass_one: PassOne) -> None:
    rows = pass_one([{"q": "a" * 49}, {"q": "a" * 50}], text="q")
    assert rows.max_tokens.tolist() == [1]
    error, num_tokens = pass_one.bad.found[1]
    assert error.startswith("in.jsonl line 2: the prompt has 50 tokens; the limit is 50 ")
    assert num_tokens == 50


GOOD = [[1, 2, 3], [5], [263]]
BAD: dict[str, Any] = {
    "empty": [],
    "negative": [-1],
    "beyond": [264],
    "null": None,
    "null inside": [None],
    "too long": [1] * 50,
}


def table_of(prompts: Sequence[Any], list_type: Any = pa.list_, item: pa.DataType | None = None) -> pa.Table:
    return pa.table({"ids": pa.array(prompts, list_type(item or pa.int32()))})


@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list, pa.list_view], ids=lambda make: make.__name__)
@pytest.mark.parametrize("item", [pa.int32(), pa.uint16(), pa.int64()], ids=str)
def test_token_ids_of_any_integer_list(pass_one: PassOne, list_type: Any, item: pa.DataType) -> None:
    rows = pass_one(table_of(GOOD, list_type, item), token_ids="ids")
    assert prompts_of(rows) == GOOD
    assert rows.row_indices == array("q", [0, 1, 2])


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_token_ids_fail_alone_and_with_the_same_error_in_either_format(pass_one: PassOne, bad: Any) -> None:
    prompts = [GOOD[0], bad, GOOD[2]]
    rows = pass_one(table_of(prompts), token_ids="ids")
    assert prompts_of(rows) == [GOOD[0], GOOD[2]]
    from_parquet = pass_one.bad.found
    assert prompts_of(pass_one([{"ids": ids} for ids in prompts], token_ids="ids")) == [GOOD[0], GOOD[2]]
    [(error, num_tokens)] = pass_one.bad.found.values()
    assert from_parquet == {1: (error.replace("in.jsonl line", "in.parquet row"), num_tokens)}


def test_plain_token_ids_are_never_made_rows(pass_one: PassOne, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RowEncoder, "encode")
    assert prompts_of(pass_one(table_of(GOOD * 100), token_ids="ids")) == GOOD * 100


def test_rng_key_of_a_row_without_an_id_follows_from_its_index(pass_one: PassOne) -> None:
    rows = pass_one([{"q": 1}, {"q": "a"}], text="q")
    assert rows.rng_key(0) == rng_key(SEED, row_key(1, None))


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_rng_keys_follow_from_ids_and_count_bad_rows_with_the_same_id(pass_one: PassOne, format: str) -> None:
    values = [{"id": "k", "ids": [1]}, {"id": "k", "ids": [-1]}, {"id": "k", "ids": [2]}, {"id": None, "ids": [3]}]
    rows = pass_one(pa.Table.from_pylist(values) if format == "parquet" else values, token_ids="ids", id="id")
    keys = [row_key(0, "k"), repeated_key(row_key(0, "k"), 2), row_key(3, None)]
    assert [rows.rng_key(position) for position in range(3)] == [rng_key(SEED, key) for key in keys]


def test_unreadable_id_fails_its_row_beside_plain_token_ids(pass_one: PassOne) -> None:
    ids = pa.array([b"a", b"\xe9", b"c"])
    ids = pa.Array.from_buffers(pa.string(), 3, ids.buffers())  # Arrow takes such a string without a check
    rows = pass_one(pa.table({"id": ids, "ids": table_of(GOOD)["ids"]}), token_ids="ids", id="id")
    assert prompts_of(rows) == [GOOD[0], GOOD[2]]
    assert "not valid UTF-8" in pass_one.bad.found[1][0]


def test_rows_whose_system_messages_end_alike_have_one_label(pass_one: PassOne) -> None:
    ends = ["x" * 64, "y" * 64]
    rows = [{"q": "a", "s": f"{number} {end}"} for number, end in enumerate([*ends, *ends])]
    found = pass_one(rows, byte_tokenizer("{{ messages[-1]['content'] }}"), prompt="q", system="s")
    assert found.labels is not None
    assert found.labels[0] == found.labels[2] != found.labels[1] == found.labels[3]


REFUSED = {"q": "a", "s": "be brief"}


def test_template_that_refuses_every_row_refuses_the_job(pass_one: PassOne) -> None:
    with pytest.raises(InputError, match=r"2 tried.*in\.jsonl line 1: .*no system role here"):
        pass_one([REFUSED, REFUSED], byte_tokenizer(NO_SYSTEM), prompt="q", system="s")


def test_user_template_that_refuses_every_row_refuses_the_job(pass_one: PassOne) -> None:
    with pytest.raises(InputError, match=r"input\.template: division by zero"):
        pass_one([{"q": 0}], template="{{ 1 / q }}")


@pytest.mark.parametrize(
    "other", [{"q": "b"}, {"q": 3}, {"q": "c" * MAX_MODEL_LEN}], ids=["good", "wrong value", "too long"]
)
def test_one_row_that_the_template_does_not_refuse_keeps_the_job(pass_one: PassOne, other: dict[str, Any]) -> None:
    pass_one([REFUSED, other], byte_tokenizer(NO_SYSTEM), prompt="q", system="s")
    assert "no system role here" in pass_one.bad.found[0][0]


def test_input_without_rows_is_no_refusal(pass_one: PassOne) -> None:
    assert len(pass_one([], byte_tokenizer(NO_SYSTEM), prompt="q", system="s")) == 0
