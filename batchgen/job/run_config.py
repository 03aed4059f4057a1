"""RunConfig: every setting of a run, resolved once from the job file, the model's own files and the device.

Everything that can be refused before a weight is read is refused here. Two values are known only later and are kept by
those who find them: the seed of a job that gives none (`session.py`) and the number of KV blocks (`pool.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import torch

from batchgen.errors import ModelError, SpecError
from batchgen.job.reasoning import resolve_reasoning
from batchgen.job.settings import Setting, resolve_sampling
from batchgen.log import event
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.backends import choose_backend
from batchgen.models.device import choose_device
from batchgen.models.load import ModelInfo, build_meta_model, inspect_model
from batchgen.models.probe import AttentionLayer, probe_attention
from batchgen.models.rope import fix_longrope
from batchgen.prompts.encoder import RowEncoder
from batchgen.prompts.reasoning import Reasoning
from batchgen.prompts.row_sampling import RowSampling
from batchgen.prompts.sampling_encoder import SamplingEncoder
from batchgen.sampling_params import SamplingParams
from batchgen.spec.job_spec import InputSpec, OutputSpec
from batchgen.spec.load import Job

# Starting points, not measured: the rows and tokens from which larger matrix products should gain little.
_MAX_NUM_SEQS = {"cpu": 128, "cuda": 512}
_MAX_BATCHED_TOKENS = {"cpu": 1024, "cuda": 8192}

log = logging.getLogger("batchgen")


@dataclass(frozen=True, slots=True, eq=False)
class RunConfig:
    """A job with every value resolved, and the model that it runs."""

    job: Job  # what the user wrote, for messages and for the resolved job.yaml
    device: torch.device
    model: ModelInfo
    layers: Sequence[AttentionLayer]
    rope_factors: str | None  # "short" | "long" of a LongRoPE model, chosen by max_model_len
    sampling: SamplingParams  # the values of rows that have none of their own
    sampling_encoder: SamplingEncoder
    reasoning: Reasoning | None  # None: thinking is kept in the completions
    max_errors: int | None  # failed rows that the job tolerates; None: any number
    attention: str  # torch | cpu | triton
    block_size: int
    num_blocks: int | None  # None: from memory
    memory_fraction: float
    max_num_seqs: int
    max_batched_tokens: int
    max_model_len: int
    expected_tokens: int | None  # None: learnt from finished rows
    prefix_cache: bool
    order: Literal["prefix", "input"]
    settings: Sequence[Setting]  # the values that the job file left open, with their sources

    @property
    def input(self) -> InputSpec:
        """Which rows, and which of their columns make the prompt."""
        return self.job.spec.input

    @property
    def output(self) -> OutputSpec:
        """Where the completions go, and in which form."""
        return self.job.spec.output

    @property
    def dtype(self) -> str:
        """The dtype of weights and KV cache, as a job file names it."""
        return str(self.model.dtype).removeprefix("torch.")

    def source_of(self, key: str) -> str:
        """Who gave a value that is not in `settings`: "--set", "job" or "default"."""
        return self.job.sources.get(key, "default")


def resolve_job(job: Job) -> RunConfig:
    """Resolve device, model and every setting. Raises ModelError or SpecError; reads no weight, allocates no memory."""
    spec, engine = job.spec, job.spec.engine
    device = choose_device(engine.device)
    model = inspect_model(spec.model, device)
    layers = probe_attention(build_meta_model(model, IMPLEMENTATION))
    reasoning = resolve_reasoning(job, model)
    encoder = SamplingEncoder(model.tokenizer, model.vocab_size, splits_reasoning=reasoning is not None)
    sampling, settings = resolve_sampling(job, model.generation_config, encoder)
    max_model_len = _max_model_len(job, model)
    rope = fix_longrope(model.config, max_model_len)
    config = RunConfig(
        job=job,
        device=device,
        model=replace(model, config=rope.config),
        layers=layers,
        rope_factors=rope.factors,
        sampling=sampling,
        sampling_encoder=encoder,
        reasoning=reasoning,
        max_errors=0 if spec.on_error == "stop" else spec.max_errors,
        attention=_attention(job, device, model, layers),
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        memory_fraction=engine.memory_fraction,
        max_num_seqs=engine.max_num_seqs or _MAX_NUM_SEQS[device.type],
        max_batched_tokens=engine.max_batched_tokens or _MAX_BATCHED_TOKENS[device.type],
        max_model_len=max_model_len,
        expected_tokens=engine.expected_tokens,
        prefix_cache=engine.prefix_cache,
        order=engine.order,
        settings=settings,
    )
    _log_config(config)
    return replace(config, settings=[*settings, *_chosen_settings(config)])


def make_encoder(config: RunConfig, clock: datetime) -> RowEncoder:
    """Make the encoder of a job's rows. Raises ModelError (no chat template) or SpecError (a broken template)."""
    model = config.model
    encoder = RowEncoder(
        model.tokenizer, config.input, vocab_size=model.vocab_size, max_model_len=config.max_model_len, clock=clock
    )
    for key in encoder.unread_keys():
        log.warning("%s: the chat template does not use it, so it changes no prompt", key)
    return encoder


def make_sampling(config: RunConfig, seed: int) -> RowSampling:
    """Make the sampling values of a job's rows, for the seed of its run."""
    return RowSampling(config.sampling, seed, config.sampling_encoder, config.input.sampling, config.reasoning)


def _log_config(config: RunConfig) -> None:
    if config.rope_factors:
        log.info("LongRoPE: the %s factors, for a context limit of %d", config.rope_factors, config.max_model_len)
    if config.sampling.max_tokens is None:
        words = "sampling.max_tokens is not set: a completion may grow up to the context limit of %d"
        log.info(words, config.max_model_len)
    if config.reasoning is not None and config.sampling.max_reasoning_tokens is None:
        words = "sampling.max_reasoning_tokens is not set: thinking may grow up to the context limit of %d"
        log.info(words, config.max_model_len)
    inspected = event("model_inspected", family=config.model.family, dtype=config.dtype, device=str(config.device))
    log.info("a %s model, to run in %s on %s", config.model.family, config.dtype, config.device, extra=inspected)


def _chosen_settings(config: RunConfig) -> list[Setting]:
    """The values of `engine` for which a job file may leave the choice to batchgen."""
    chosen = []
    for name in ("device", "max_model_len", "max_num_seqs", "max_batched_tokens", "attention"):
        value, key = getattr(config, name), f"engine.{name}"
        is_given = getattr(config.job.spec.engine, name) not in (None, "auto")
        source = config.source_of(key) if is_given else "default"
        chosen.append(Setting(key, str(value) if name == "device" else value, source))
    if config.reasoning is not None:
        is_given = config.output.reasoning_tags is not None
        source = config.source_of("output.reasoning_tags") if is_given else "model"
        chosen.append(Setting("output.reasoning_tags", config.reasoning.tags[:2], source))
    return chosen


def _max_model_len(job: Job, model: ModelInfo) -> int:
    wanted = job.spec.engine.max_model_len
    if wanted is not None and wanted > model.max_model_len:
        raise SpecError([f"{job.path}: engine.max_model_len: {wanted} is more than the model's {model.max_model_len}"])
    return wanted or model.max_model_len


def _attention(job: Job, device: torch.device, model: ModelInfo, layers: Sequence[AttentionLayer]) -> str:
    try:
        return choose_backend(job.spec.engine.attention, device, model.dtype, layers)
    except ModelError as error:
        raise SpecError([f"{job.path}: engine.attention: {error}"]) from None
