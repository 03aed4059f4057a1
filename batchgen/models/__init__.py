"""Models: a stock transformers model, its KV cache and the bridge to the attention kernels."""
