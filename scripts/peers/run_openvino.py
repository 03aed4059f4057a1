"""The peer OpenVINO GenAI, run by its own Python: `python run_openvino.py WORK.json`; see scripts/bench/peers.py.

Runs its continuous batching with prefix caching on and defaults otherwise. The model is converted once, by
optimum-intel, with 16-bit weights like batchgen's; OpenVINO chooses the type that it computes in, which is printed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

_CACHE_GB = 4  # more than any workload of jobs/bench fills


def convert(model: Path, target: Path) -> None:
    """Convert a Hugging Face folder; the result is renamed to `target` when it is complete."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    partial = target.with_name(f"{target.name}.partial")
    main_export(str(model), str(partial), task="text-generation-with-past", ov_config=OVConfig(dtype="fp16"))
    partial.rename(target)


def generate(
    pipeline: openvino_genai.ContinuousBatchingPipeline, prompts: Sequence[Sequence[int]], work: dict[str, float]
) -> int:
    """Generate for all prompts at once; return the number of generated tokens."""
    config = openvino_genai.GenerationConfig(
        max_new_tokens=work["max_tokens"],
        ignore_eos=True,
        do_sample=work["temperature"] > 0,
        num_return_sequences=work["num_samples"],
    )
    if config.do_sample:
        config.temperature = work["temperature"]
    inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
    results = pipeline.generate(inputs, [config] * len(prompts))
    return sum(len(ids) for result in results for ids in result.m_generation_ids)


def main() -> None:
    """Load the model, warm up, and time one run."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    model = Path(work["converted"])
    if not model.exists():
        convert(Path(work["model"]), model)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.cache_size = _CACHE_GB
    properties = {"INFERENCE_NUM_THREADS": work["threads"]}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", properties)
    generate(pipeline, work["warmup"], {**work, "max_tokens": 4})
    begin = time.perf_counter()
    num_tokens = generate(pipeline, work["prompts"], work)
    seconds = time.perf_counter() - begin
    precision = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
    engine = f"OpenVINO GenAI {openvino_genai.__version__}, {precision}"
    print(json.dumps({"seconds": seconds, "num_tokens": num_tokens, "engine": engine}))


if __name__ == "__main__":
    main()
