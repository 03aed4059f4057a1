"""Target: what a job runs on and with, resolved before any weight is read. Everything that can be refused is, here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from batchgen.errors import SpecError
from batchgen.job.settings import Setting, resolve_sampling
from batchgen.log import event
from batchgen.models.attention import IMPLEMENTATION, MAX_TRITON_HEAD_SIZE, has_triton, is_triton_interpreted
from batchgen.models.device import choose_device
from batchgen.models.load import ModelInfo, build_meta_model, inspect_model
from batchgen.models.probe import AttentionLayer, probe_attention
from batchgen.models.rope import fix_longrope
from batchgen.prompts.token_values import TokenValues
from batchgen.sampling_params import SamplingParams
from batchgen.spec.load import Job

# Starting points, not measured: the rows and tokens from which larger matrix products should gain little.
_MAX_NUM_SEQS = {"cpu": 128, "cuda": 512}
_MAX_BATCHED_TOKENS = {"cpu": 1024, "cuda": 8192}

log = logging.getLogger("batchgen")


@dataclass(frozen=True, slots=True)
class Target:
    """A model that can be run exactly, and every resolved value of the run."""

    device: torch.device
    info: ModelInfo
    layers: list[AttentionLayer]
    params: SamplingParams
    token_values: TokenValues
    max_model_len: int
    max_num_seqs: int
    max_batched_tokens: int
    attention: str
    rope_factors: str | None  # "short" | "long" of a LongRoPE model, chosen by max_model_len
    settings: list[Setting]  # what the job file left open, with sources

    def with_seed(self, seed: int) -> Target:
        """The same with the seed that an earlier session drew."""
        settings = [replace(each, value=seed) if each.key == "sampling.seed" else each for each in self.settings]
        return replace(self, params=replace(self.params, seed=seed), settings=settings)


def inspect_target(job: Job) -> Target:
    """Resolve device, model and settings. Raises ModelError or SpecError; reads no weight and asks for no memory."""
    spec = job.spec
    device = choose_device(spec.engine.device)
    info = inspect_model(spec.model, device)
    layers = probe_attention(build_meta_model(info, IMPLEMENTATION))
    token_values = TokenValues(info.tokenizer, info.vocab_size)
    params, settings = resolve_sampling(job, info.generation_config, token_values)
    max_model_len = _max_model_len(job, info)
    rope = fix_longrope(info.config, max_model_len)
    if rope.factors:
        log.info("LongRoPE: the %s factors, for a context limit of %d", rope.factors, max_model_len)
    if params.max_tokens is None:
        log.info("sampling.max_tokens is not set: a completion may grow up to the context limit of %d", max_model_len)
    max_num_seqs = spec.engine.max_num_seqs or _MAX_NUM_SEQS[device.type]
    max_batched_tokens = spec.engine.max_batched_tokens or _MAX_BATCHED_TOKENS[device.type]
    attention = _attention(job, device, info, layers)
    chosen = {
        "device": str(device),
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_batched_tokens": max_batched_tokens,
        "attention": attention,
    }
    for name, value in chosen.items():
        is_given = getattr(spec.engine, name) not in (None, "auto")
        source = job.sources.get(f"engine.{name}", "default") if is_given else "default"
        settings.append(Setting(f"engine.{name}", value, source))
    dtype = str(info.dtype).removeprefix("torch.")
    inspected = event("model_inspected", family=info.family, dtype=dtype, device=str(device))
    log.info("a %s model, to run in %s on %s", info.family, dtype, device, extra=inspected)
    return Target(
        device=device,
        info=replace(info, config=rope.config),
        layers=layers,
        params=params,
        token_values=token_values,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        attention=attention,
        rope_factors=rope.factors,
        settings=settings,
    )


def _max_model_len(job: Job, info: ModelInfo) -> int:
    wanted = job.spec.engine.max_model_len
    if wanted is not None and wanted > info.max_model_len:
        raise SpecError([f"{job.path}: engine.max_model_len: {wanted} is more than the model's {info.max_model_len}"])
    return wanted or info.max_model_len


def _attention(job: Job, device: torch.device, info: ModelInfo, layers: Sequence[AttentionLayer]) -> str:
    wanted = job.spec.engine.attention
    if wanted == "auto":
        return "cpu" if device.type == "cpu" else "torch" if _why_no_triton(device, info, layers) else "triton"
    if wanted == "triton" and (reason := _why_no_triton(device, info, layers)):
        raise SpecError([f"{job.path}: engine.attention: triton {reason}"])
    if wanted == "cpu" and device.type != "cpu":
        raise SpecError([f"{job.path}: engine.attention: cpu does not run on {device}; use auto or torch"])
    return wanted


def _why_no_triton(device: torch.device, info: ModelInfo, layers: Sequence[AttentionLayer]) -> str | None:
    """What keeps the Triton kernels from running this model here, as the end of a sentence; None: nothing."""
    if not has_triton():
        return "needs the package triton, which is not installed here; use auto or torch"
    if device.type == "cpu" and not is_triton_interpreted():
        return "runs on a GPU; use auto or cpu here, or set TRITON_INTERPRET=1 to debug its kernels"
    if device.type == "cpu" and info.dtype == torch.bfloat16:
        return "is computed wrongly in bfloat16 by Triton's interpreter; set model.dtype: float32"
    head_size = max(max(layer.key_head_size, layer.value_head_size) for layer in layers)
    if head_size > MAX_TRITON_HEAD_SIZE:
        return f"holds heads of up to {MAX_TRITON_HEAD_SIZE}, and this model's are {head_size} wide; use auto or torch"
    return None
