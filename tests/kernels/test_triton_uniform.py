"""The draws of the device, in Triton's interpreter, equal those of the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batchgen_kernels import philox
from batchgen_kernels.triton.sample import uniform


@pytest.mark.parametrize("count", [1, 128, 300])
def test_draws_equal_the_hosts_bit_for_bit(count: int) -> None:
    generator = np.random.default_rng(7)
    keys = generator.integers(0, 2**64, count, dtype=np.uint64)
    keys[0] = 2**64 - 1
    positions = generator.integers(0, 2**32, count, dtype=np.uint64)
    samples = generator.integers(0, 2**20, count, dtype=np.uint64)
    tensors = [torch.from_numpy(column.view(np.int64)) for column in (keys, positions, samples)]
    np.testing.assert_array_equal(uniform(*tensors).numpy(), philox.uniform(keys, positions, samples))
