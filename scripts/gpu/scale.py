"""How large the steps of gpu_check.py are: on a data-centre GPU, and tiny for a dry run on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of every check and measurement."""

    dtypes: tuple[str, ...]
    heads: tuple[tuple[int, int, int, int], ...]  # query heads, KV heads, K and V head size
    families: tuple[str, ...]  # of `parity.FAMILIES`
    parity_tokens: int
    copy_bytes: int
    matrix: int
    kernel_heads: tuple[int, int, int]  # query heads, KV heads, head size
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    chunk: int
    repeats: int
    model: dict[str, int]
    w1: tuple[int, int, int]  # sequences, fewest and most tokens
    w3: tuple[int, int, int, int, int]  # groups, prompts of each, shared, own and output tokens
    max_batched_tokens: int
    idle_steps: tuple[int, int]  # before the measurement, during it
    peer: dict[str, int]  # sizes that transformers must not choose itself


REAL = Scale(
    dtypes=("bfloat16", "float16", "float32"),
    heads=((32, 8, 128, 128), (16, 8, 128, 128), (9, 3, 64, 64), (3, 1, 80, 80)),
    families=("llama", "qwen3", "gemma2", "gpt2"),
    parity_tokens=20,
    copy_bytes=1 << 30,
    matrix=8192,
    kernel_heads=(32, 8, 128),
    batches=(128, 512),
    contexts=(512, 2048),
    chunk=2048,
    repeats=20,
    model={"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
           "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    w1=(256, 100, 1024),
    w3=(64, 16, 2048, 128, 256),
    max_batched_tokens=8192,
    idle_steps=(60, 10),
    peer={},
)  # fmt: skip
TINY = Scale(
    dtypes=("float32", "float16"),
    heads=((4, 2, 16, 16),),
    families=("qwen3",),
    parity_tokens=3,
    copy_bytes=1 << 20,
    matrix=128,
    kernel_heads=(4, 2, 16),
    batches=(2,),
    contexts=(16, 40),
    chunk=32,
    repeats=1,
    model={"vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    w1=(2, 4, 8),
    w3=(2, 2, 32, 3, 3),
    max_batched_tokens=64,
    idle_steps=(1, 1),
    peer={"num_blocks": 8, "max_batch_tokens": 64},
)  # fmt: skip
