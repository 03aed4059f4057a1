"""Ceilings, empty slots and blocks, by hand and against every node and every choice of rows."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchgen.plan.limits import hit_ceiling, num_hit_blocks, tail_waste
from batchgen.plan.order import lexicographic_order, seen_lengths
from batchgen.plan.plan import make_plan
from tests.examples import examples
from tests.plan.texts import forests, pack


def ceiling(texts: list[str], size: int) -> int:
    tokens = pack(texts)
    order = lexicographic_order(tokens, range(len(texts)))
    return hit_ceiling(tokens.lengths(order.positions), order.shared_with_before, size)


def ceiling_by_nodes(texts: list[str], size: int) -> int:
    """Sum over the nodes of the block prefix tree of (rows through it - max(1, rows ending exactly on it))."""
    through: dict[str, int] = {}
    for text in texts:
        for stop in range(size, len(text) + 1, size):
            through[text[:stop]] = through.get(text[:stop], 0) + 1
    return size * sum(count - max(1, texts.count(node)) for node, count in through.items())


def test_a_ceiling_by_hand() -> None:
    # "aaaa" is computed by the row that ends on it and found by two, "bbbb" computed by one and found by one.
    assert ceiling(["aaaabbbb1", "cccc", "aaaabbbb2", "aaaa"], 4) == 12


def test_the_last_token_must_be_computed_so_equal_prompts_on_a_border_share_one_block_less() -> None:
    assert ceiling(["aaaabbbb", "aaaabbbb"], 4) == 4
    assert ceiling(["aaaabbbb", "aaaabbbb"], 2) == 6


@examples(300)
@given(forests, st.sampled_from([1, 2, 3, 4, 8]))
def test_the_ceiling_is_the_sum_over_the_nodes(texts: list[str], size: int) -> None:
    assert ceiling(texts, size) == ceiling_by_nodes(texts, size)


@examples(60)
@given(forests.map(lambda texts: texts[:5]), st.sampled_from([1, 2, 4]))
def test_no_order_of_the_rows_finds_more(texts: list[str], size: int) -> None:
    tokens = pack(texts)
    order = lexicographic_order(tokens, range(len(texts)))
    hits = [
        int(num_hit_blocks(tokens.lengths(visited), seen_lengths(order, visited), size).sum()) * size
        for visited in map(np.array, permutations(range(len(texts))))
    ]
    assert max(hits) == ceiling(texts, size)


def test_tail_waste_by_hand() -> None:
    # In blocks of 4: 5 + 4 - 1 = 8 tokens leave no slot empty, 6 + 4 - 1 = 9 leave three, 1 + 1 - 1 = 1 leaves three.
    assert tail_waste(np.array([5, 6, 1], np.int32), np.array([4, 4, 1]), 4) == 6


def needed(texts: list[str], max_tokens: list[int], size: int, max_num_seqs: int) -> int:
    return make_plan(
        pack(texts), range(len(texts)), max_tokens, block_size=size, max_num_seqs=max_num_seqs, by_prefix=True
    ).num_blocks_needed


def test_one_group_needs_its_prefix_once_and_a_tail_for_each_row() -> None:
    texts = ["p" * 40 + end * 4 for end in "abcdefgh"]  # 10 blocks for all, 2 for each: 4 tokens and 3 of the output
    assert needed(texts, [4] * 8, 4, max_num_seqs=3) == 10 + 4 * 2  # three rows, and one path for the next


@examples(100)
@given(forests.map(lambda texts: texts[:8]), st.data(), st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_no_choice_of_rows_holds_more_blocks(texts: list[str], data: st.DataObject, size: int, num_rows: int) -> None:
    max_tokens = data.draw(st.lists(st.integers(1, 12), min_size=len(texts), max_size=len(texts)))

    def held(rows: tuple[int, ...]) -> int:
        """Shared full blocks once; a last full block and what comes behind it once for each row."""
        shared = {texts[row][:stop] for row in rows for stop in range(size, len(texts[row]), size)}
        own = [-(-(len(texts[row]) + max_tokens[row] - 1) // size) - (len(texts[row]) - 1) // size for row in rows]
        return len(shared) + sum(own)

    # `held` counts a last full block that others go on from twice: so may rows that run at the same time.
    most = max(held(rows) for rows in combinations(range(len(texts)), min(num_rows + 1, len(texts))))
    assert min(most, _distinct(texts, max_tokens, size)) <= needed(texts, max_tokens, size, num_rows)


def _distinct(texts: list[str], max_tokens: list[int], size: int) -> int:
    blocks = sum(-(-(len(text) + extra - 1) // size) for text, extra in zip(texts, max_tokens, strict=True))
    return blocks - ceiling_by_nodes(texts, size) // size
