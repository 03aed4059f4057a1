"""The tensors of a step of three rows in blocks of 4, checked by hand, and block tables as one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchgen.engine.batch import Batch, BlockTables, make_batch
from batchgen.engine.request import PENDING_TOKEN, Request
from batchgen.engine.step import BlockCopy, Repeat, ScheduledChunk, SchedulerOutput
from batchgen.sampling_params import SamplingParams


def chunk(prompt: list[int], output: list[int], table: list[int], start: int, num_tokens: int) -> ScheduledChunk:
    request = Request(0, np.array(prompt, np.int32), SamplingParams(), 0, max_tokens=9)
    request.output_token_ids = output
    request.block_table = table
    return ScheduledChunk(request, start, num_tokens, [request] if start + num_tokens == request.num_tokens else [])


def batch_of(
    chunks: list[ScheduledChunk], sampled_before: Sequence[Request] = (), repeats: Sequence[Repeat] = ()
) -> Batch:
    step = SchedulerOutput(99, chunks=chunks, copies=[BlockCopy(7, 8), BlockCopy(8, 9)], repeats=list(repeats))
    return make_batch(step, BlockTables(), 4, torch.device("cpu"), sampled_before)


def make() -> Batch:
    chunks = [
        chunk([1, 2, 3, 4, 5, 6], [7, 8], [5, 3], 7, 1),  # a decode
        chunk([1, 2, 3, 4, 9], [], [5, 2], 4, 1),  # the last prompt token; its first block is the first row's
        chunk([10, 11, 12, 13, 14, 15], [], [0], 0, 4),  # a prompt cut by the budget
    ]
    return batch_of(chunks)


def test_tokens_positions_and_slots() -> None:
    batch = make()
    assert batch.inputs.input_ids.tolist() == [8, 9, 10, 11, 12, 13]
    assert batch.inputs.position_ids.tolist() == [7, 4, 0, 1, 2, 3]
    assert batch.attention.slot_mapping.tolist() == [15, 8, 0, 1, 2, 3]
    assert batch.attention.query_starts == [0, 1, 2, 6]
    assert batch.attention.seq_lens == [8, 5, 4]
    assert batch.attention.block_tables.tolist() == [[5, 3], [5, 2], [0, 0]]


def test_a_repeated_token_has_a_second_slot() -> None:
    chunks = [chunk([1, 2, 3, 4, 5, 6, 7], [], [5, 3], 2, 5), chunk([1, 2, 3, 4, 5, 6, 8], [], [5, 2], 6, 1)]
    attention = batch_of(chunks, repeats=[Repeat(chunks[0].request, 4, 6, 2)]).attention
    assert attention.slot_mapping.tolist() == [22, 23, 12, 13, 14, 10, 8, 9]
    assert attention.repeated is not None
    assert attention.repeated.tolist() == [2, 3]


def test_only_chunks_that_reach_the_newest_token_are_sampled() -> None:
    assert make().inputs.logits_indices.tolist() == [0, 1]


def test_rows_with_the_same_computed_blocks_are_a_group() -> None:
    assert [tuple(group) for group in make().attention.groups] == [(0, 2, 1)]


def test_a_block_that_a_row_is_just_filling_is_in_no_group() -> None:
    chunks = [chunk([1, 2, 3, 4, 5], [], [5, 3], 0, 5), chunk([1, 2, 3, 4, 6], [], [5, 2], 4, 1)]
    assert batch_of(chunks).attention.groups == []


def test_copies_are_sources_and_targets() -> None:
    assert make().inputs.copies.tolist() == [[7, 8], [8, 9]]


def test_a_pending_token_is_taken_from_the_step_before() -> None:
    chunks = [chunk([1, 2], [3], [0], 2, 1), chunk([4, 5], [], [1], 1, 1), chunk([6], [7], [2], 1, 1)]
    first, second, third = (each.request for each in chunks)
    first.output_token_ids, first.num_pending_tokens = [], 1
    third.output_token_ids, third.num_pending_tokens = [], 1
    batch = batch_of(chunks, [third, second, first])
    assert batch.inputs.input_ids.tolist() == [PENDING_TOKEN, 5, PENDING_TOKEN]
    assert (batch.inputs.pending_indices.tolist(), batch.inputs.pending_sources.tolist()) == ([0, 2], [2, 0])


def test_only_a_step_of_sampled_single_tokens_is_a_decode_step() -> None:
    decode = chunk([1, 2], [3], [0], 2, 1)
    assert batch_of([decode, decode]).is_decode
    assert not make().is_decode
    assert not batch_of([decode, chunk([1, 2, 3], [], [1], 1, 1)]).is_decode


def test_block_tables_are_padded_with_0_to_the_longest() -> None:
    assert BlockTables().update([[5], [3, 4]]).tolist() == [[5, 0], [3, 4]]


def test_a_block_table_grows_and_copy_on_write_replaces_its_last_entry() -> None:
    tables, row = BlockTables(), [1, 2]
    tables.update([row])
    row[-1] = 3
    assert tables.update([row]).tolist() == [[1, 3]]
    row[-1] = 4
    row += [5, 6]
    assert tables.update([row]).tolist() == [[1, 4, 5, 6]]


def test_rows_come_leave_and_change_places() -> None:
    tables, first, second = BlockTables(), [1, 2], [3]
    tables.update([first, second])
    assert tables.update([second, [7, 8], first]).tolist() == [[3, 0], [7, 8], [1, 2]]
    assert tables.update([first]).tolist() == [[1, 2]]


def test_a_row_that_lost_its_blocks_has_another_list() -> None:
    tables = BlockTables()
    tables.update([[1, 2, 3]])
    assert tables.update([[4, 5, 3]]).tolist() == [[4, 5, 3]]


@given(
    st.lists(st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 3), st.booleans()), min_size=1), max_size=8)
)
def test_block_tables_of_any_steps_are_what_the_rows_have(steps: list[dict[int, tuple[int, bool]]]) -> None:
    """A step is of rows, the blocks they grow by and whether their last one is replaced."""
    tables, rows, blocks = BlockTables(), [[row] for row in range(5)], iter(range(10, 10**6))
    for step in steps:
        for row, (growth, is_replaced) in step.items():
            if is_replaced:
                rows[row][-1] = next(blocks)
            rows[row] += [next(blocks) for _ in range(growth)]
        longest = max(len(rows[row]) for row in step)
        expected = [rows[row] + [0] * (longest - len(rows[row])) for row in step]
        assert tables.update([rows[row] for row in step]).tolist() == expected
