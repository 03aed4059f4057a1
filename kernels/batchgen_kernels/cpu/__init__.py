"""The CPU backend: kernels that numba compiles at their first use."""
