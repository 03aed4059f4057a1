"""The peer transformers, run by its own Python: `python run_transformers.py WORK.json`; see scripts/bench/peers.py.

Runs its plain `generate` on all prompts at once, padded on the left.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers


@torch.inference_mode()
def generate(model: Any, prompts: Sequence[Sequence[int]], work: dict[str, Any]) -> int:
    """Generate for all prompts at once; return the number of generated tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    is_greedy = work["temperature"] == 0
    drawing = {} if is_greedy else {"temperature": work["temperature"], "top_k": 0, "top_p": 1.0}
    output = model.generate(
        ids,
        attention_mask=mask,
        do_sample=not is_greedy,
        num_return_sequences=work["num_samples"],
        max_new_tokens=work["max_tokens"],
        eos_token_id=None,
        pad_token_id=0,
        **drawing,
    )
    return int(output[:, width:].numel())


def main() -> None:
    """Load the model, warm up, and time one run."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(work["threads"])
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(work["model"], dtype="auto")
    model.generation_config.eos_token_id = None  # no sample ends before max_tokens
    generate(model, work["warmup"], {**work, "max_tokens": 4})
    begin = time.perf_counter()
    num_tokens = generate(model, work["prompts"], work)
    seconds = time.perf_counter() - begin
    engine = f"transformers {transformers.__version__}, {model.dtype}"
    print(json.dumps({"seconds": seconds, "num_tokens": num_tokens, "engine": engine}))


if __name__ == "__main__":
    main()
