"""The GPU backend in Triton. Importing it imports triton, which exists on Linux only; `batchgen_kernels` does not.

work.py       a step as lists of work items, in NumPy on the host
launch.py     launch parameters from the committed table
store.py      writes K and V to slots
attention.py  the attention kernel over work items
merge.py      merges the parts of a query
sample.py     random draws, equal to the host's bit for bit, and tokens by inverse CDF
backend.py    TritonBackend, which implements the contract
"""

from __future__ import annotations

from batchgen_kernels.triton.backend import Prepared, TritonBackend

__all__ = ["Prepared", "TritonBackend"]
