"""The contract of token choice, for the engine: only this room knows the kernels."""

from __future__ import annotations

from batchgen_kernels import Chosen, SamplingBackend, SamplingRows

__all__ = ["Chosen", "SamplingBackend", "SamplingRows"]
