"""The committed launch table covers all architectures, dtypes and head sizes that the backend supports."""

from __future__ import annotations

import pytest

from batchgen.models.backends import MAX_TRITON_HEAD_SIZE
from batchgen_kernels.triton.launch import LaunchKey, constants, launches


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "interpreter"])
def test_every_arch_has_a_launch_up_to_the_largest_head(arch: str, dtype: str) -> None:
    for head_size in (16, 80, 128, MAX_TRITON_HEAD_SIZE):
        for launch in launches(LaunchKey(arch, head_size, 4, dtype, 16)).values():
            assert launch.block_m >= 16
            assert launch.block_n >= 16
    assert constants(arch).min_split % 16 == 0


def test_a_tile_holds_all_heads_of_a_query() -> None:
    for launch in launches(LaunchKey("sm_90", 128, 71, "bfloat16", 16)).values():
        assert launch.block_m >= 71


def test_an_arch_without_rows_uses_those_of_the_newest_older_one() -> None:
    assert launches(LaunchKey("sm_89", 128, 4, "bfloat16", 16)) == launches(LaunchKey("sm_80", 128, 4, "bfloat16", 16))
    assert launches(LaunchKey("sm_90", 128, 4, "bfloat16", 16)) != launches(LaunchKey("sm_80", 128, 4, "bfloat16", 16))
