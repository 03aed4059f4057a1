"""Philox gives the known answers of Random123 (kat_vectors, philox4x32 10)."""

from __future__ import annotations

import numpy as np
import pytest

from batchgen_kernels.philox import philox_4x32, uniform

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    def words(values: tuple[int, ...]) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], ...]:
        return tuple(np.array([value], np.uint64) for value in values)

    drawn = philox_4x32(words(counter), words(key))  # type: ignore[arg-type]
    assert tuple(int(word[0]) for word in drawn) == answer


def test_draws_are_uniform_and_depend_on_key_position_and_sample() -> None:
    keys = np.full(20_000, 5, np.uint64)
    positions = np.arange(20_000, dtype=np.uint64)
    samples = np.zeros(20_000, np.uint64)
    draws = uniform(keys, positions, samples)
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    for other in (uniform(keys + np.uint64(1), positions, samples), uniform(keys, positions, samples + np.uint64(1))):
        assert abs(np.corrcoef(draws, other)[0, 1]) < 0.03


def test_a_draw_does_not_depend_on_its_batch() -> None:
    keys, positions, samples = (np.array(values, np.uint64) for values in ([3, 9, 4], [0, 1, 2], [0, 0, 0]))
    alone = uniform(keys[1:2], positions[1:2], samples[1:2])
    assert uniform(keys, positions, samples)[1] == alone[0]
