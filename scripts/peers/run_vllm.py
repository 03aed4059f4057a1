"""The peer vLLM on a CPU, run by its own Python: `python run_vllm.py WORK.json`; see scripts/bench/peers.py.

Runs in one process with prefix caching on and one thread on each of the first cores; defaults otherwise.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CACHE_GB = 4  # more than any workload of jobs/bench fills


def generate(llm: Any, prompts: Sequence[Sequence[int]], work: dict[str, Any]) -> int:
    """Generate for all prompts at once; return the number of generated tokens."""
    from vllm import SamplingParams, TokensPrompt

    params = SamplingParams(
        n=work["num_samples"], temperature=work["temperature"], max_tokens=work["max_tokens"], ignore_eos=True
    )
    inputs = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
    requests = llm.generate(inputs, params, use_tqdm=False)
    return sum(len(sample.token_ids) for request in requests for sample in request.outputs)


def main() -> None:
    """Load the model, warm up, and time one run."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    cores = sorted(os.sched_getaffinity(0))[: work["threads"]]
    os.environ |= {  # vLLM reads these when it is imported
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
    }
    import vllm

    llm = vllm.LLM(model=work["model"], enable_prefix_caching=True)
    generate(llm, work["warmup"], {**work, "max_tokens": 4})
    begin = time.perf_counter()
    num_tokens = generate(llm, work["prompts"], work)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "num_tokens": num_tokens, "engine": f"vLLM {vllm.__version__}"}))


if __name__ == "__main__":
    main()
