"""Pass 1: writes the prompts of all rows to a token store and reports bad rows. Knows no model and no request.

`run` and `plan` both begin with it, so that a plan describes the very prompts that a run would generate from. Only a
few dozen bytes per row stay in memory.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from batchgen.errors import InputError
from batchgen.io.input.readers import Input
from batchgen.io.input.rows import Row, RowBatch, RowLocations
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.encoder import RowEncoder
from batchgen.prompts.prompt import Prompts, RowKeys, rng_key, row_key
from batchgen.prompts.row_sampling import RowSampling
from batchgen.prompts.workers import RowsAndPrompts, encode_in_order

if TYPE_CHECKING:
    from tqdm import tqdm

    from batchgen.spec.job_spec import InputSpec

_LABEL_CHARS = 64

log = logging.getLogger("batchgen")


class BadRows(Protocol):
    """Receives the bad rows."""

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        """Report a row that cannot run, with its number of prompt tokens if it was tokenised."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenisedRows:
    """The good rows of a job. Entry `position` of every array belongs to prompt `position` of the store."""

    store: TokenStore
    row_indices: array[int]
    max_tokens: npt.NDArray[np.int32]  # the most tokens that a completion of each prompt may get
    sampling: RowSampling
    rng_keys: array[int] | None  # None: rows have no ids, and a row's key follows from its index
    locations: RowLocations  # of all rows of the input, bad ones included
    labels: array[int] | None  # equal for rows whose system messages end alike; None: rows have no system message

    def __len__(self) -> int:
        return len(self.row_indices)

    def rng_key(self, position: int) -> int:
        """Return the key that a row's random draws depend on (see `prompt.rng_key`)."""
        if self.rng_keys is not None:
            return self.rng_keys[position]
        return rng_key(self.sampling.seed(position), row_key(self.row_indices[position], None))


def tokenise(
    source: Input, encoder: RowEncoder, sampling: RowSampling, bad_rows: BadRows, store: TokenStore, *, bar: tqdm
) -> TokenisedRows:
    """Read the whole input once: write good prompts to `store`, and report bad rows to `bad_rows`.

    `sampling` is that of the job, without rows yet. Closes `bar`, and `store` for writing. Raises InputError if there
    are rows and a template refuses all of them, or if no row has a column that prompts are made of.
    """
    collector, refusals = _Collector(store, encoder.spec, sampling), _TemplateRefusals()
    with bar, store, closing(_encode(source, encoder)) as batches:
        for rows, prompts in batches:
            prompts = collector.add(rows, prompts)
            refusals.add(prompts)
            for bad in prompts.bad:
                bad_rows.fail(bad.row_index, bad.error, bad.num_tokens)
            bar.update(len(prompts.lengths))
    refusals.check(collector.num_rows)
    _check_columns(source)
    return collector.finish(encoder.max_model_len, source.locations)


def _check_columns(source: Input) -> None:
    """Check that some row has each named column; the columns of JSON lines are known only after reading all rows.

    Raises InputError for a column that prompts are made of, and warns of `id` and `system`, which are optional. A
    template itself refuses a row that lacks a column.
    """
    for setting, error in source.missing_columns().items():
        if setting in ("id", "system"):
            log.warning("%s", error)
        elif setting not in ("template", "system_template"):
            raise error


class _Collector:
    """Collects the good rows."""

    def __init__(self, store: TokenStore, spec: InputSpec, sampling: RowSampling) -> None:
        self.num_rows = 0  # bad ones included
        self._store = store
        self._spec = spec
        self._sampling = sampling
        self._keys = None if spec.id is None else RowKeys(spec.id)
        self._row_indices = array("q")
        self._rng_keys = array("Q")
        self._labels = array("I")
        self._has_labels = spec.system is not None or spec.messages is not None

    def add(self, rows: Sequence[Row], prompts: Prompts) -> Prompts:
        """Add the next rows. Returns their prompts, without those of rows with bad sampling values.

        `rows` may be empty if they have neither ids nor system messages nor sampling values.
        """
        prompts = self._sampling.add(rows, prompts)
        good = np.flatnonzero(prompts.lengths)
        first = len(self._row_indices)
        self._store.extend(prompts.token_ids, prompts.lengths[good])
        self._row_indices.frombytes((good + self.num_rows).tobytes())
        if self._keys is not None:
            keys = [self._keys.add(row) for row in rows]  # of bad rows too: they count as an occurrence of their id
            seeds = map(self._sampling.seed, range(first, len(self._row_indices)))
            self._rng_keys.extend(rng_key(seed, keys[n]) for n, seed in zip(good.tolist(), seeds, strict=True))
        if self._has_labels:
            self._labels.extend(_label(rows[n], self._spec) for n in good.tolist())
        self.num_rows += len(prompts.lengths)
        return prompts

    def finish(self, max_model_len: int, locations: RowLocations) -> TokenisedRows:
        """Return all rows; none may be added after this."""
        self._store.seal()
        if self._keys is not None:
            self._correct_repeated(self._keys)
        lengths = np.diff(self._store.offsets).astype(np.int32)
        return TokenisedRows(
            self._store,
            row_indices=self._row_indices,
            max_tokens=self._sampling.max_tokens(max_model_len - lengths),
            sampling=self._sampling,
            rng_keys=None if self._keys is None else self._rng_keys,
            locations=locations,
            labels=self._labels if self._has_labels else None,
        )

    def _correct_repeated(self, keys: RowKeys) -> None:
        """Replace the rng keys of rows whose id an earlier row has."""
        for row_index, key in keys.repeated():
            position = bisect_left(self._row_indices, row_index)
            if position < len(self._row_indices) and self._row_indices[position] == row_index:  # else a bad row
                self._rng_keys[position] = rng_key(self._sampling.seed(position), key)


def _label(row: Row, spec: InputSpec) -> int:
    """Return a hash of the end of the row's system message; what differs per row, such as a date, is often in front."""
    match row.values.get(spec.system or spec.messages or ""):
        case str(text) | [{"role": "system", "content": str(text)}, *_] | [{"from": "system", "value": str(text)}, *_]:
            return crc32(text[-_LABEL_CHARS:].encode("utf-8", "surrogatepass"))
    return 0


class _TemplateRefusals:
    """Counts the rows that a template refuses: if it refuses all of them, the template is wrong and not the rows."""

    def __init__(self) -> None:
        self._num_refused = 0
        self._first_error = ""

    def add(self, prompts: Prompts) -> None:
        errors = [bad.error for bad in prompts.bad if bad.by_template]
        self._num_refused += len(errors)
        self._first_error = self._first_error or next(iter(errors), "")

    def check(self, num_rows: int) -> None:
        if num_rows and self._num_refused == num_rows:
            raise InputError(f"the template refuses every row ({num_rows} tried); the first: {self._first_error}")


def _encode(source: Input, encoder: RowEncoder) -> Generator[RowsAndPrompts]:
    batches = source.read_row_batches()
    if encoder.spec.token_ids is None:
        yield from encode_in_order((list(batch.rows()) for batch in batches), encoder)
    else:
        yield from (_encode_token_ids(batch, encoder) for batch in batches)


def _encode_token_ids(batch: RowBatch, encoder: RowEncoder) -> RowsAndPrompts:
    """Encode rows of token ids: all at once if Arrow holds them and all are good, else one by one."""
    prompts = encoder.encode_token_ids(batch)
    if prompts is not None:
        # Only the rows' ids and sampling values are still needed.
        has_more = encoder.spec.id is not None or encoder.spec.sampling is not None
        rows = list(batch.rows(without=encoder.spec.token_ids)) if has_more else []
        if not any(row.error for row in rows):
            return rows, prompts
    rows = list(batch.rows())
    return rows, encoder.encode(rows)
