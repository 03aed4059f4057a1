"""How numba compiles the kernels of this folder, and how torch's tensors are passed to them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor

# Share torch's threads where both find the same OpenMP library: two runtimes in one process compete for the cores.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

# The integer type by which numba knows the numbers of a tensor.
_BITS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}

_FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered; NaN and infinity stay valid


def as_bits(tensor: Tensor) -> npt.NDArray[np.generic]:
    """Return the bits of a tensor as a contiguous array of integers, without a copy if it is contiguous."""
    return tensor.contiguous().view(_BITS[tensor.dtype]).numpy()


def cache_folder(sources: Path, base: str) -> Path:
    """Return the folder of the compiled kernels: in `base` or beside `sources`, named by a hash of their content.

    numba notices changes only in the file of the outermost kernel, not in the files of the functions it calls.
    """
    files = sorted(sources.rglob("*.py"))
    digest = blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()
    return Path(base or sources / "__pycache__", f"kernels-{digest}")


_CACHE = cache_folder(Path(__file__).parents[1], numba.config.CACHE_DIR)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that compiles all kernels here."""

    def decorate(function: Callable[..., Any]) -> Any:
        # numba reads the cache folder here, and has no argument for it.
        previous, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_CACHE)
        try:
            return njit(fastmath=_FAST, cache=True, nogil=True, **options)(function)
        finally:
            numba.config.CACHE_DIR = previous

    return decorate
