"""A step as lists of work items for the attention kernel. NumPy on the host; knows neither device nor kernel.

An item is a tile of queries against a range of tokens of one row's block table:

    first_query, num_queries   queries of the step, of one row or of consecutive rows that share a prefix
    table_row, low, high       the tokens [low, high) of that row
    part                       index among the parts of its queries' contexts; ONLY_PART if it is the whole context

    decode    few queries of one row (usually one), split into ranges of tokens if the row is long
    shared    the stacked queries of a group against its shared blocks, which are read once; split likewise
    prefill   a tile of a prefill chunk against all tokens of its row before and in the chunk
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchgen_kernels.contract import AttentionStep, BlockGroup

ITEM_FIELDS = 8  # six are used; a power of two aligns the items
ONLY_PART = -1
_FIRST_QUERY, _NUM_QUERIES, _TABLE_ROW, _LOW, _HIGH, _PART = range(6)

Ints = npt.NDArray[np.int32]


class Tiling(NamedTuple):
    """The properties of a layer and its launches by which a step is cut into items."""

    decode_queries: int  # queries in a tile
    shared_queries: int
    prefill_queries: int
    min_split: int  # tokens of the shortest range of a split row, except the last
    num_items: int  # number of items of equal length that fill the device
    token_bytes: int  # K and V of a token in all heads
    partial_bytes: int  # one part of one query in all heads
    min_saved_bytes: float  # what sharing must save in a layer, net, to be used
    max_parts: float = math.inf  # of all queries together; ranges are made longer until it holds


class Capacity(NamedTuple):
    """The most elements that each list of a step may have; they determine the launch grids."""

    decode: int
    shared: int
    prefill: int
    tokens: int
    merged_tokens: int
    partials: int


def decode_capacity(num_rows: int, num_items: int) -> Capacity:
    """Return what any step of up to `num_rows` rows of one query needs, cut with `max_parts` = `partials`.

    Ranges are so long that all tokens together fill `num_items` of them, and every row and every group may end with
    a shorter one. Every row may have two parts: the blocks of its group and its own.
    """
    return Capacity(
        decode=num_rows + num_items,
        shared=num_rows + num_items,
        prefill=0,
        tokens=num_rows,
        merged_tokens=num_rows,
        partials=2 * num_rows + num_items,
    )


class Work(NamedTuple):
    """The items of a step, longest first, and the indices of their parts."""

    decode: Ints  # [items, ITEM_FIELDS]
    shared: Ints
    prefill: Ints
    positions: Ints  # [T]: each query's position in its row
    partial_starts: Ints  # [T + 1]: query t has the parts from [t] to [t + 1); none if its only part is the output
    merged_tokens: Ints  # queries with more than one part

    @property
    def size(self) -> Capacity:
        """Return the smallest capacity that holds this."""
        items = (len(self.decode), len(self.shared), len(self.prefill))
        return Capacity(*items, len(self.positions), len(self.merged_tokens), int(self.partial_starts[-1]))


class _Rows(NamedTuple):
    """The rows of a step, as arrays with one element a row."""

    starts: Ints
    num_queries: Ints
    lens: Ints
    is_decode: npt.NDArray[np.bool_]


def plan_work(step: AttentionStep, tiling: Tiling) -> Work:
    """Cut a step into items."""
    starts = np.asarray(step.query_starts, np.int32)
    num_queries = np.diff(starts)
    lens = np.asarray(step.seq_lens, np.int32)
    is_decode = num_queries <= tiling.decode_queries
    rows = _Rows(starts[:-1], num_queries, lens, is_decode)
    groups = _groups_worth_sharing(step, rows, tiling)
    shared_lens = np.zeros_like(lens)
    for group in groups:
        shared_lens[group.start : group.stop] = group.num_blocks * step.block_size

    own = _items(rows.starts, num_queries, np.arange(len(lens)), shared_lens, lens)
    shared = _items(
        [starts[group.start] for group in groups],
        [starts[group.stop] - starts[group.start] for group in groups],
        [group.start for group in groups],
        0,
        [group.num_blocks * step.block_size for group in groups],
    )
    prefill = _cut_queries(own[~is_decode], tiling.prefill_queries)
    # A tile ends at the token of its last query.
    prefill[:, _HIGH] -= starts[prefill[:, _TABLE_ROW] + 1] - prefill[:, _FIRST_QUERY] - prefill[:, _NUM_QUERIES]
    shared = _cut_queries(shared, tiling.shared_queries)
    split = _split_len((own[is_decode], shared, prefill), tiling)
    while np.sum((num_parts := _num_parts(rows, shared_lens, split)) * num_queries) > tiling.max_parts:
        split *= 2
    first_part = np.where(num_parts > 0, -(-shared_lens // split), ONLY_PART)

    prefill[:, _PART] = first_part[prefill[:, _TABLE_ROW]]
    own[:, _PART] = first_part
    parts = np.repeat(num_parts, num_queries)
    return Work(
        decode=_longest_first(_cut_tokens(own[is_decode], split)),
        shared=_longest_first(_cut_tokens(shared, split)),
        prefill=_longest_first(prefill),
        positions=(np.arange(starts[-1]) + np.repeat(lens - starts[1:], num_queries)).astype(np.int32),
        partial_starts=np.concatenate([[0], np.cumsum(parts)]).astype(np.int32),
        merged_tokens=np.flatnonzero(parts).astype(np.int32),
    )


def _groups_worth_sharing(step: AttentionStep, rows: _Rows, tiling: Tiling) -> list[BlockGroup]:
    """Return runs of decode rows in groups that save more reads than their partials cost, if together worth a launch.

    A prefill tile is full without other rows, so prefill rows read their whole context themselves.
    """
    runs = [run for group in step.groups for run in _decode_runs(group, rows.is_decode)]
    saved = [_saved_bytes(run, rows, step.block_size, tiling) for run in runs]
    if sum(max(each, 0) for each in saved) <= tiling.min_saved_bytes:
        return []
    least = min(tiling.min_saved_bytes, 0)
    return [run for run, each in zip(runs, saved, strict=True) if each > least]


def _decode_runs(group: BlockGroup, is_decode: npt.NDArray[np.bool_]) -> list[BlockGroup]:
    inside = np.flatnonzero(is_decode[group.start : group.stop]) + group.start
    runs = np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1)
    return [BlockGroup(int(run[0]), int(run[-1]) + 1, group.num_blocks) for run in runs if len(run) > 0]


def _saved_bytes(run: BlockGroup, rows: _Rows, block_size: int, tiling: Tiling) -> int:
    """Return the bytes of K and V that sharing saves in a layer, less the bytes of its partials, written and read."""
    num_queries = int(rows.num_queries[run.start : run.stop].sum())
    num_tiles = -(-num_queries // tiling.shared_queries)
    saved_reads = run.stop - run.start - num_tiles
    tokens = run.num_blocks * block_size
    return saved_reads * tokens * tiling.token_bytes - 2 * 2 * num_queries * tiling.partial_bytes


def _items(
    first_query: npt.ArrayLike, num_queries: npt.ArrayLike, table_row: npt.ArrayLike, low: npt.ArrayLike,
    high: npt.ArrayLike,
) -> Ints:  # fmt: skip
    """Return items [n, ITEM_FIELDS] with part 0."""
    columns = np.broadcast_arrays(first_query, num_queries, table_row, low, high)
    items = np.zeros((columns[0].size, ITEM_FIELDS), np.int32)
    for field, column in enumerate(columns):
        items[:, field] = column
    return items


def _cut_queries(items: Ints, size: int) -> Ints:
    """Cut items into tiles of at most `size` queries."""
    cut, index = _repeat(items, -(-items[:, _NUM_QUERIES] // size))
    whole = cut[:, _NUM_QUERIES].copy()
    cut[:, _FIRST_QUERY] += index * size
    cut[:, _NUM_QUERIES] = np.minimum(whole - index * size, size)
    return cut


def _cut_tokens(items: Ints, size: int) -> Ints:
    """Cut items into ranges of at most `size` tokens, whose parts are numbered from the item's own."""
    cut, index = _repeat(items, -(-(items[:, _HIGH] - items[:, _LOW]) // size))
    cut[:, _LOW] += index * size
    cut[:, _HIGH] = np.minimum(cut[:, _LOW] + size, cut[:, _HIGH])
    cut[:, _PART] += index  # items with ONLY_PART are not cut
    return cut


def _repeat(items: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return each item `counts` times, and the index of each among the copies of its item."""
    repeated = np.repeat(items, counts, axis=0)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return repeated, (np.arange(len(repeated)) - first).astype(np.int32)


def _split_len(lists: Sequence[Ints], tiling: Tiling) -> int:
    """Return the most tokens of a range, such that items of that length fill the device about once.

    It is a multiple of `min_split`, so that a row is cut at the same tokens in most batches.
    """
    num_tokens = sum(int((items[:, _HIGH] - items[:, _LOW]).sum()) for items in lists)
    return -(-max(num_tokens, 1) // (tiling.num_items * tiling.min_split)) * tiling.min_split


def _num_parts(rows: _Rows, shared_lens: Ints, split: int) -> Ints:
    """Return the number of parts of each row's queries, in its group's and its own blocks; 0 if there is only one."""
    own = np.where(rows.is_decode, -(-(rows.lens - shared_lens) // split), 1)
    num_parts = -(-shared_lens // split) + own
    return np.where(num_parts > 1, num_parts, 0)


def _longest_first(items: Ints) -> Ints:
    """Sort items so that the longest start first. The sort is stable, so the items of a prefix stay together."""
    return items[np.argsort(items[:, _LOW] - items[:, _HIGH], kind="stable")]
