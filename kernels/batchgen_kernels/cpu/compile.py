"""How numba compiles the kernels of this folder, and how torch's tensors are passed to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from numba.core.caching import FunctionCache
from torch import Tensor

from batchgen_kernels.cache import choose_cache_folder

# Share torch's threads where both find the same OpenMP library: two runtimes in one process compete for the cores.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

# Without /dev/shm numba cannot lock the start of its threads against forked processes; there are none here.
warnings.filterwarnings("ignore", "Could not obtain multiprocessing lock", numba.NumbaSystemWarning)

# The integer type by which numba knows the numbers of a tensor.
_BITS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}

_FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered; NaN and infinity stay valid


def as_bits(tensor: Tensor) -> npt.NDArray[np.generic]:
    """Return the bits of a tensor as a contiguous array of integers, without a copy if it is contiguous."""
    return tensor.contiguous().view(_BITS[tensor.dtype]).numpy()


def preferred_cache(sources: Path, base: str) -> Path:
    """Return the folder of the compiled kernels: in `base` or beside `sources`, named by a hash of their content.

    numba notices changes only in the file of the outermost kernel, not in the files of the functions it calls.
    """
    files = sorted(sources.rglob("*.py"))
    digest = blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()
    return Path(base or sources / "__pycache__", f"kernels-{digest}").absolute()


PREFERRED_CACHE = preferred_cache(Path(__file__).parents[1], numba.config.CACHE_DIR)
_CACHE = choose_cache_folder(PREFERRED_CACHE, PREFERRED_CACHE.name)


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one kernel; a full disk or a damaged file costs a compilation, not the run."""

    def load_overload(self, signature: Any, target: Any) -> Any:
        try:
            return super().load_overload(signature, target)
        except Exception:  # whatever unpickling a damaged file raises
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        with suppress(OSError):
            super().save_overload(signature, result)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that compiles all kernels here."""

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = njit(fastmath=_FAST, nogil=True, **options)(function)
        if _CACHE is not None:
            _keep_on_disk(kernel, _CACHE)
        return kernel

    return decorate


def _keep_on_disk(kernel: Any, folder: Path) -> None:
    """Give the kernel a cache in the folder, unless numba can cache no function here."""
    # numba reads the folder when a cache is made, and has no argument for it.
    previous, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        with suppress(RuntimeError):  # no locator is available
            kernel._cache = _KernelCache(kernel.py_func)
    finally:
        numba.config.CACHE_DIR = previous
