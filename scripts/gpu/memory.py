"""Memory of the largest steps on a device, next to the estimate that plans go by."""

from __future__ import annotations

from typing import Any

from batchgen.engine.build import EngineSettings, measure_steps
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.device import can_measure_memory
from batchgen.models.kv_cache import step_bytes
from batchgen_kernels.triton import TritonBackend
from scripts.gpu.engine_runs import attention_layers, make_model
from scripts.gpu.machine import Machine
from scripts.gpu.workloads import w1


def measure_memory(machine: Machine, _: float) -> dict[str, Any]:
    """Return the memory of the largest steps of W1 beside weights and KV, as measured and as `plan` estimates it."""
    model, work = make_model(machine, IMPLEMENTATION), w1(machine.scale)
    rows, tokens = len(work.prompts), machine.scale.max_batched_tokens
    guess = step_bytes(model.config.hidden_size, model.config.vocab_size, rows, tokens, machine.dtype)
    if not can_measure_memory(machine.device):
        return {"by the formula: MB": guess / 1e6, "measured: MB": "not on a CPU"}
    settings = EngineSettings(1, 16, rows, tokens, None, True, 4096, True, lag=1, replay_decodes=True)
    measured = measure_steps(model, attention_layers(model), TritonBackend(), [], settings, work.params)
    return {"by the formula: MB": guess / 1e6, "measured: MB": measured / 1e6}
