"""How the kernels of this folder are compiled, and how they see torch's tensors."""

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

# torch's own threads, where both find the same OpenMP library; two runtimes in one process spin against each other.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

# The integer type by which numba knows the numbers of a tensor.
_BITS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}

_FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered; NaN and infinity keep their meaning


def as_bits(tensor: Tensor) -> npt.NDArray[np.generic]:
    """The numbers of a tensor as numba knows them, contiguous; no copy where they are so already."""
    return tensor.contiguous().view(_BITS[tensor.dtype]).numpy()


def cache_folder(sources: Path, base: str) -> Path:
    """Where compiled kernels are kept on disk: in `base`, or beside `sources`, a folder for each content of these.

    numba notices only a change of the file that the outermost kernel is in, not of what it calls elsewhere.
    """
    files = sorted(sources.rglob("*.py"))
    digest = blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()
    return Path(base or sources / "__pycache__", f"kernels-{digest}")


_CACHE = cache_folder(Path(__file__).parents[1], numba.config.CACHE_DIR)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's compiler as all kernels here use it."""

    def decorate(function: Callable[..., Any]) -> Any:
        # numba takes note of the folder here, and has no argument for it.
        theirs, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_CACHE)
        try:
            return njit(fastmath=_FAST, cache=True, nogil=True, **options)(function)
        finally:
            numba.config.CACHE_DIR = theirs

    return decorate
