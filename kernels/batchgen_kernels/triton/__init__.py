"""The GPU backend in Triton. Importing it imports triton, which exists on Linux only; `batchgen_kernels` does not.

work.py      a step as lists of work items; NumPy, knows no device
launch.py    launch parameters from the committed table
store.py     write K and V to slots
attention.py the attention kernel over work items
merge.py     joins the parts of a query
uniform.py   Philox draws, the host's bit for bit
sample.py    logits and draws to token ids, by inverse CDF
backend.py   TritonBackend: the contract, step by step
"""

from __future__ import annotations

from batchgen_kernels.triton.backend import Prepared, TritonBackend

__all__ = ["Prepared", "TritonBackend"]
