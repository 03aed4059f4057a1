"""The steps of gpu_check.py: what is compared, what is timed, and against which limit.

Workloads W1 and W3, as their benchmarks define them: W1 is nano-vllm's bench.py (256 random prompts of 100 to 1024
tokens, 100 to 1024 output tokens, temperature 0.6, seed 0), W3 SGLang's generated-shared-prefix (64 groups of 16
prompts, 2048 shared and 128 own tokens, 256 output tokens); both on the shape of Qwen3-0.6B with random weights. A
workload that its time does not hold is cut, which its figure `complete` says. Knows no budget and no output.

Share of the roofline = sum over the steps that ran of
    max(products / matrix rate, weights / bandwidth) + max(decode attention / matrix rate, its KV / bandwidth)
    + prefill attention / matrix rate
over the wall time. The KV that rows of a group share is read once where the shared path is on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from batchgen.engine.build import EngineSettings, assemble_engine, measure_steps
from batchgen.engine.engine import Engine, InFlight
from batchgen.engine.request import Request
from batchgen.engine.runner import ModelRunner
from batchgen.engine.step import SchedulerOutput
from batchgen.models.attention import IMPLEMENTATION
from batchgen.models.cuda_graphs import DecodeGraphs
from batchgen.models.device import can_measure_memory
from batchgen.models.kv_cache import block_bytes, step_bytes
from batchgen.models.probe import AttentionLayer, probe_attention
from batchgen.plan.order import lexicographic_order, visiting_order
from batchgen.plan.token_store import PackedTokens
from batchgen.sampling_params import SamplingParams
from batchgen_kernels import AttentionOptions, AttentionStep, Backend, BlockGroup, LayerCache, ReferenceBackend, philox
from batchgen_kernels.contract import write_kv
from batchgen_kernels.triton import TritonBackend
from batchgen_kernels.triton.sample import uniform
from batchgen_kernels.triton.store import store_kv
from tests.kernels.paged_cases import Case, make_case
from tests.tiny_models import context_model, tiny_gemma2, tiny_gpt2, tiny_qwen3

SHARE_ALL, SHARE_NONE = -math.inf, math.inf
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": context_model,
    "qwen3": tiny_qwen3,
    "gemma2": tiny_gemma2,
    "gpt2": tiny_gpt2,
}
GROUPED = [(1, 20), (1, 60), (1, 43), (9, 41), (1, 60), (2, 40), (1, 41), (1, 5)]
# what runs -> rows of (queries, tokens before them), groups of rows, options of the layer
CASES: dict[str, tuple[list[tuple[int, int]], list[BlockGroup], dict[str, Any]]] = {
    "decode": ([(1, 0), (1, 31), (1, 50)], [], {}),
    "prefill": ([(9, 0), (33, 29)], [], {}),
    "shared": (GROUPED, [BlockGroup(1, 5, 5), BlockGroup(5, 7, 5)], {}),
    "split and merge": ([(1, 300), (1, 3)], [], {}),
    "window and cap": ([(33, 29), (1, 90)], [], {"sliding_window": 33, "soft_cap": 5.0}),
}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is."""

    dtypes: tuple[torch.dtype, ...]
    heads: tuple[tuple[int, int, int, int], ...]  # query heads, KV heads, K and V head size
    families: tuple[str, ...]
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
    idle_steps: tuple[int, int]  # before the measurement, of it
    peer: dict[str, int]  # sizes that transformers does not choose itself


REAL = Scale(
    dtypes=(torch.bfloat16, torch.float16, torch.float32),
    heads=((32, 8, 128, 128), (16, 8, 128, 128), (9, 3, 64, 64), (3, 1, 80, 80)),
    families=tuple(FAMILIES),
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
    dtypes=(torch.float32, torch.float16),
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


@dataclass(slots=True)
class Bench:
    """Every step as a method: seconds it has -> figures. A wrong answer is an AssertionError."""

    device: torch.device
    dtype: torch.dtype
    scale: Scale
    bandwidth: float = math.nan  # bytes a second, read and written by a copy; by `limits`
    flops: float = math.nan  # a second

    @classmethod
    def real(cls) -> Bench:
        torch.set_float32_matmul_precision("highest")
        return cls(torch.device("cuda", 0), torch.bfloat16, REAL)

    @classmethod
    def dry(cls) -> Bench:
        return cls(torch.device("cpu"), torch.float32, TINY)

    def limits(self, _: float) -> dict[str, Any]:
        """The best copy and the best square product, as the roofline needs them."""
        size, shape = self.scale.copy_bytes, (self.scale.matrix, self.scale.matrix)
        source = torch.ones(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        left, right = (torch.randn(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        self.bandwidth = 2 * size / self._time(lambda: target.copy_(source))
        self.flops = 2 * self.scale.matrix**3 / self._time(lambda: left @ right)
        return {"copy GB/s": self.bandwidth / 1e9, "products TFLOP/s": self.flops / 1e12}

    def draws(self, _: float) -> dict[str, Any]:
        """The device's draws are the host's, bit for bit."""
        words = [np.random.default_rng(7).integers(0, 2**bits, 300, dtype=np.uint64) for bits in (64, 32, 20)]
        found = uniform(*(torch.from_numpy(word.view(np.int64)).to(self.device) for word in words))
        num_wrong = int((found.cpu().numpy() != philox.uniform(*words)).sum())
        assert num_wrong == 0, f"{num_wrong} of 300 draws differ from the host's"
        return {"equal draws": 300}

    def correctness(self, dtype: torch.dtype, _: float) -> dict[str, Any]:
        """Largest errors of store and attention in one type; all are computed before any of them fails the step."""
        errors = {case: self._attention_error(case, dtype) for case in CASES}
        wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
        assert not wrong, f"errors above {TOLERANCE[dtype]}: {wrong}"
        stored = self._store_error(dtype)
        assert stored == 0, f"what is stored differs by {stored}"
        return {f"{name}: largest error": error for name, error in {"store": stored, **errors}.items()}

    def _store_error(self, dtype: torch.dtype) -> float:
        case = _to(make_case([(1, 33), (20, 0)], self.scale.heads[0], dtype=dtype), self.device)
        found, expected = (LayerCache(*(torch.zeros_like(pool) for pool in case.cache)) for _ in range(2))
        store_kv(case.key, case.value, found, case.step.slot_mapping)
        write_kv(case.key, case.value, expected, case.step.slot_mapping)
        return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))

    def _attention_error(self, name: str, dtype: torch.dtype) -> float:
        rows, groups, options = CASES[name]
        errors = []
        for heads in self.scale.heads:
            case = make_case(rows, heads, groups=groups, dtype=dtype, **options)
            found = _to(case, self.device).run(TritonBackend(SHARE_ALL))
            errors.append(float((found.cpu().float() - case.truth).abs().max()))
        return math.nan if any(map(math.isnan, errors)) else max(errors)

    def loop(self, _: float) -> dict[str, Any]:
        """Tokens of the whole loop (graphs, results one step late, choice on the device) against the plain one's.

        Of greedy rows and of rows that draw, in float32. The plain loop attends and chooses in torch.
        """
        prompts, wrong = _parity_prompts(), []
        each = [SamplingParams(), SamplingParams(temperature=0.8, top_k=50, top_p=0.9)]
        for family, params in product(self.scale.families, each):
            work = Work(prompts, [self.scale.parity_tokens + row for row in range(len(prompts))], params)
            plain, whole = (
                self._run(FAMILIES[family]().to(self.device), work, SHARE_ALL, math.inf, is_plain=is_plain)  # type: ignore[arg-type]
                for is_plain in (True, False)
            )
            wrong += [f"{family} prompt {row}" for row in whole.outputs if whole.outputs[row] != plain.outputs[row]]
            assert whole.can_record, f"the forward of {family} was not captured"
        assert not wrong, f"tokens differ from the plain loop's: {', '.join(wrong)}"
        return {"equal completions": len(prompts) * len(each) * len(self.scale.families)}

    def parity(self, _: float) -> dict[str, Any]:
        """Greedy tokens of the engine against those of `generate`, prompt by prompt, in float32."""
        prompts, wrong = _parity_prompts(), []
        for family in self.scale.families:
            expected = [_generate(FAMILIES[family]().to(self.device), p, self.scale.parity_tokens) for p in prompts]  # type: ignore[arg-type]
            work = Work(prompts, [self.scale.parity_tokens] * len(prompts), SamplingParams())
            run = self._run(FAMILIES[family]().to(self.device), work, SHARE_ALL, math.inf)  # type: ignore[arg-type]
            wrong += [f"{family} prompt {row}" for row in range(len(prompts)) if run.outputs[row] != expected[row]]
        assert not wrong, f"tokens differ from generate: {', '.join(wrong)}"
        return {"equal completions": len(prompts) * len(self.scale.families)}

    def decode(self, _: float) -> dict[str, Any]:
        return self._decode(self._time)

    def decode_graph(self, _: float) -> dict[str, Any]:
        """The same launches replayed from a CUDA graph, so that the host's time is left out."""
        return self._decode(self._time_graph)

    def _decode(self, timer: Callable[[Callable[[], object]], float]) -> dict[str, Any]:
        figures = {}
        _, kv_heads, size = self.scale.kernel_heads
        for batch in self.scale.batches:
            for context in self.scale.contexts:
                seconds = timer(self._attend([(1, context - 1)] * batch))
                floor = batch * context * kv_heads * size * 2 * self.dtype.itemsize / self.bandwidth
                figures[f"{batch} rows of {context}: us"] = seconds * 1e6
                figures[f"{batch} rows of {context}: share of bandwidth"] = floor / seconds
        return figures

    def prefill(self, _: float) -> dict[str, Any]:
        figures = {}
        heads, _, size = self.scale.kernel_heads
        chunk = self.scale.chunk
        for before in (0, chunk):
            seconds = self._time(self._attend([(chunk, before)]))
            floor = 4 * heads * size * (chunk * before + chunk * (chunk + 1) / 2) / self.flops
            figures[f"{chunk} tokens after {before}: us"] = seconds * 1e6
            figures[f"{chunk} tokens after {before}: share of products"] = floor / seconds
        return figures

    def _attend(self, rows: Sequence[tuple[int, int]], block_size: int = 16) -> Callable[[], Tensor]:
        """One attention layer over rows of (queries, tokens before), equally long, blocks all over the pool."""
        heads, kv_heads, size = self.scale.kernel_heads
        queries, before = rows[0]
        length, count = queries + before, -(-(queries + before) // block_size)
        tables = torch.randperm(len(rows) * count, device=self.device).view(len(rows), count)
        at = torch.arange(before, length, device=self.device)
        slots = (tables[:, at // block_size] * block_size + at % block_size).flatten()

        def tensor(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=self.dtype, device=self.device)

        cache = LayerCache(*(tensor(tables.numel(), kv_heads, block_size, size) for _ in range(2)))
        starts = [queries * row for row in range(len(rows) + 1)]
        step = AttentionStep(slots, tables, starts, [length] * len(rows), [], block_size)
        query, key, value = (tensor(len(slots), n, size) for n in (heads, kv_heads, kv_heads))
        backend, options = TritonBackend(), AttentionOptions(scale=size**-0.5)
        prepared = backend.prepare(step)
        return lambda: backend.attend(query, key, value, cache, prepared, options)

    def w1(self, seconds: float) -> dict[str, Any]:
        return self._throughput(self._w1_work(), None, seconds)

    def w3_shared(self, seconds: float) -> dict[str, Any]:
        return self._throughput(self._w3_work(), SHARE_ALL, seconds)

    def w3_plain(self, seconds: float) -> dict[str, Any]:
        return self._throughput(self._w3_work(), SHARE_NONE, seconds)

    def _throughput(self, work: Work, min_saved_bytes: float | None, seconds: float) -> dict[str, Any]:
        model = self._model(IMPLEMENTATION)
        warm_up = Work(work.prompts[:2], [2, 2], work.params)
        self._run(model, warm_up, min_saved_bytes, math.inf)
        run = self._run(model, work, min_saved_bytes, time.perf_counter() + 0.8 * seconds)
        floor = sum(step.floor(model.config, self, min_saved_bytes != SHARE_NONE) for step in run.steps)
        return {**run.figures(work), "share of the roofline": floor / run.seconds}

    def idle(self, _: float) -> dict[str, Any]:
        """Kernel time of profiled steps over the wall time of as many steps before them, which no profiler slows."""
        before, count = self.scale.idle_steps
        engine, requests = self._engine(self._model(IMPLEMENTATION), self._w1_work(), TritonBackend())
        steps = engine.run(requests)
        _take(steps, before)
        begin = time.perf_counter()
        _take(steps, count)
        wall = time.perf_counter() - begin
        if self.device.type == "cpu":
            return {"wall ms a step": wall / count * 1e3, "idle share": "not measured on a CPU"}
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            _take(steps, count)
        kernels = [event for event in profiled.events() if event.device_type.name == "CUDA"]
        busy = sum(event.time_range.elapsed_us() for event in kernels) / 1e6
        assert busy, "the profiler saw no kernel"
        return {
            "wall ms a step": wall / count * 1e3,
            "busy ms a step": busy / count * 1e3,
            "idle share": 1 - busy / wall,
        }

    def memory(self, _: float) -> dict[str, Any]:
        """What the largest steps of W1 take beside weights and KV, as a run measures it and as `plan` guesses it."""
        model, work = self._model(IMPLEMENTATION), self._w1_work()
        rows, tokens = len(work.prompts), self.scale.max_batched_tokens
        guess = step_bytes(model.config.hidden_size, model.config.vocab_size, rows, tokens, self.dtype)
        if not can_measure_memory(self.device):
            return {"by the formula: MB": guess / 1e6, "measured: MB": "not on a CPU"}
        settings = EngineSettings(1, 16, rows, tokens, None, True, 4096, True, lag=1, replay_decodes=True)
        measured = measure_steps(model, _layers(model), TritonBackend(), [], settings, work.params)
        return {"by the formula: MB": guess / 1e6, "measured: MB": measured / 1e6}

    def peer(self, seconds: float) -> dict[str, Any]:
        """transformers' own continuous batching on the work of W1; only completions that ended are counted."""
        work = self._w1_work()
        model = self._model("sdpa")
        assert hasattr(model, "init_continuous_batching"), "this transformers has no init_continuous_batching"
        most = max(work.max_tokens)
        config = GenerationConfig(do_sample=True, temperature=0.6, max_new_tokens=most, eos_token_id=-1)  # type: ignore[no-untyped-call]
        sizes = ContinuousBatchingConfig(**self.scale.peer)  # type: ignore[arg-type]
        manager = model.init_continuous_batching(config, sizes)  # type: ignore[operator]
        manager.start()
        try:
            _drain(manager, Work(work.prompts[:2], [2, 2], work.params), 0.4 * seconds)
            num_tokens, num_ended, wall = _drain(manager, work, 0.5 * seconds)
        finally:
            manager.stop(block=True, timeout=5)
        assert num_ended, f"no completion ended in {wall:.0f} s (manager running: {manager.is_running()})"
        return {"output tokens/s": num_tokens / wall, "seconds": wall, "complete": num_ended == len(work.prompts)}

    def _w1_work(self) -> Work:
        """Draws in the order of nano-vllm's bench.py, so that the lengths are the same."""
        count, low, high = self.scale.w1
        draws = random.Random(0)
        top = min(10000, self.scale.model["vocab_size"] - 1)
        prompts = [[draws.randint(0, top) for _ in range(draws.randint(low, high))] for _ in range(count)]
        return Work(prompts, [draws.randint(low, high) for _ in range(count)], SamplingParams(temperature=0.6))

    def _w3_work(self) -> Work:
        groups, each, shared, own, output = self.scale.w3
        generator = np.random.default_rng(0)
        vocab = self.scale.model["vocab_size"]
        prompts = []
        for _ in range(groups):
            prefix = generator.integers(0, vocab, shared).tolist()
            prompts += [prefix + generator.integers(0, vocab, own).tolist() for _ in range(each)]
        return Work(prompts, [output] * len(prompts), SamplingParams())

    def _model(self, attention: str) -> PreTrainedModel:
        torch.cuda.empty_cache()  # the pool of the step before; does nothing without a GPU
        config = Qwen3Config(**self.scale.model, max_position_embeddings=4096, tie_word_embeddings=True)  # type: ignore[arg-type]
        with torch.device(self.device):
            model = Qwen3ForCausalLM._from_config(config, dtype=self.dtype, attn_implementation=attention)  # type: ignore[no-untyped-call]
        return model.eval()  # type: ignore[no-any-return]

    def _run(
        self,
        model: PreTrainedModel,
        work: Work,
        min_saved_bytes: float | None,
        deadline: float,
        *,
        is_plain: bool = False,
    ) -> Run:
        """Drive the engine until the work or the time ends."""
        backend = ReferenceBackend() if is_plain else TritonBackend(min_saved_bytes)
        engine, requests = self._engine(model, work, backend, is_plain=is_plain)
        recorder = Recorder(engine.runner)  # type: ignore[arg-type]
        engine.runner = recorder
        begin = time.perf_counter()
        for _ in engine.run(requests):
            if time.perf_counter() > deadline:
                break
        seconds = time.perf_counter() - begin
        outputs = {request.row_index: request.output_token_ids for request in requests}
        return Run(seconds, recorder.steps, outputs, recorder.runner.graphs)

    def _engine(
        self, model: PreTrainedModel, work: Work, backend: Backend, *, is_plain: bool = False, block_size: int = 16
    ) -> tuple[Engine, list[Request]]:
        """An engine with room for all of the work, or for what the memory holds; `is_plain` or as on a GPU."""
        model.set_attn_implementation(IMPLEMENTATION)
        layers = _layers(model)
        needed = sum(-(-(len(p) + n) // block_size) for p, n in zip(work.prompts, work.max_tokens, strict=True)) + 1
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
            needed = min(needed, int(free * 0.8) // block_bytes(layers, block_size, model.dtype))
        longest = max(map(len, work.prompts)) + max(work.max_tokens)
        settings = EngineSettings(
            needed, block_size, len(work.prompts), self.scale.max_batched_tokens, None, True, longest, True,
            lag=0 if is_plain else 1, replay_decodes=not is_plain,
        )  # fmt: skip
        engine = assemble_engine(model, layers, backend, [], settings)
        return engine, work.requests(block_size)

    def _time(self, work: Callable[[], object]) -> float:
        """Seconds of one call on the device: the mean of calls in a row, after two that compile and warm up."""
        work(), work()
        if self.device.type == "cpu":
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(self.scale.repeats):
            work()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / self.scale.repeats

    def _time_graph(self, work: Callable[[], object]) -> float:
        if self.device.type == "cpu":
            return self._time(work)
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return self._time(graph.replay)


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts, and how many tokens each is answered with."""

    prompts: list[list[int]]
    max_tokens: list[int]
    params: SamplingParams

    def requests(self, block_size: int) -> list[Request]:
        """In the order in which a job visits them; no token ends them early."""
        store = PackedTokens.pack(self.prompts)
        by_tokens = lexicographic_order(store, range(len(self.prompts)))
        order = visiting_order(by_tokens, store, self.max_tokens, block_size)
        return [
            Request(row, store[row], self.params, rng_key=row, max_tokens=self.max_tokens[row], shared_with_next=share)
            for row, share in zip(order.positions.tolist(), order.shared.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a step computed, as far as the roofline depends on it."""

    num_tokens: int
    num_sampled: int
    decode_pairs: int  # query-token pairs of rows with one query
    unique_kv: int  # tokens that they read, shared ones once
    prefill_pairs: int

    @classmethod
    def of(cls, step: SchedulerOutput, block_size: int) -> StepSize:
        decodes = [chunk for chunk in step.chunks if chunk.num_tokens == 1]
        blocks = {block for c in decodes for block in c.request.block_table[: c.stop // block_size]}
        partial = sum(c.stop % block_size for c in decodes)
        prefill = sum((c.stop * (c.stop + 1) - c.start * (c.start + 1)) // 2 for c in step.chunks if c.num_tokens > 1)
        decode_pairs = sum(c.stop for c in decodes)
        unique = len(blocks) * block_size + partial
        return cls(step.num_tokens, len(step.sampled_requests), decode_pairs, unique, prefill)

    def floor(self, config: Any, bench: Bench, is_shared: bool) -> float:
        """Seconds that the device needs at least, one operation after the other."""
        layers, hidden, size = config.num_hidden_layers, config.hidden_size, config.head_dim
        heads, kv_heads, bytes_each = config.num_attention_heads, config.num_key_value_heads, bench.dtype.itemsize
        body = layers * hidden * (2 * (heads + kv_heads) * size + 3 * config.intermediate_size)
        head = config.vocab_size * hidden
        products = 2 * (body * self.num_tokens + head * self.num_sampled) / bench.flops
        pair = 4 * layers * heads * size / bench.flops
        read = 2 * layers * kv_heads * size * bytes_each * (self.unique_kv if is_shared else self.decode_pairs)
        return float(
            max(products, (body + head) * bytes_each / bench.bandwidth)
            + max(self.decode_pairs * pair, read / bench.bandwidth)
            + self.prefill_pairs * pair
        )


@dataclass(slots=True)
class Recorder:
    """A runner that notes the size of every step."""

    runner: ModelRunner
    steps: list[StepSize] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return self.runner.lag

    def start(self, step: SchedulerOutput) -> InFlight:
        self.steps.append(StepSize.of(step, self.runner.block_size))
        return self.runner.start(step)


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a workload."""

    seconds: float
    steps: list[StepSize]
    outputs: dict[int, list[int]]
    graphs: DecodeGraphs | None

    @property
    def can_record(self) -> bool:
        return self.graphs is not None and self.graphs.can_record

    def figures(self, work: Work) -> dict[str, Any]:
        num_tokens = sum(map(len, self.outputs.values()))
        return {
            "output tokens/s": num_tokens / self.seconds,
            "seconds": self.seconds,
            "steps": len(self.steps),
            "seconds recording graphs": self.graphs.seconds if self.graphs else 0.0,
            "complete": num_tokens == sum(work.max_tokens),
        }


def _parity_prompts() -> list[list[int]]:
    """Short and long ones, of which three share their first tokens."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 256, length).tolist() for length in (1, 16, 33, 60)]
    return prompts + [prompts[-1][:40] + generator.integers(0, 256, extra).tolist() for extra in (0, 5)]


def _to(case: Case, device: torch.device) -> Case:
    """The case on another device."""
    step = replace(
        case.step,
        slot_mapping=case.step.slot_mapping.to(device),
        block_tables=case.step.block_tables.to(device),
    )
    cache = LayerCache(case.cache.key.to(device), case.cache.value.to(device))
    return replace(case.with_inputs(lambda tensor: tensor.to(device)), step=step, cache=cache)


def _layers(model: PreTrainedModel) -> list[AttentionLayer]:
    with torch.device("meta"):
        meta = type(model)._from_config(model.config, attn_implementation=IMPLEMENTATION)  # type: ignore[no-untyped-call]
    return probe_attention(meta)


def _generate(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    lengths = {"max_new_tokens": count, "min_new_tokens": count}
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **lengths)  # type: ignore[operator]
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def _take(steps: Iterator[list[Request]], count: int) -> None:
    """Run `count` steps. Each ends with the tokens of the one before on the host: the device is one ahead at most."""
    for _ in range(count):
        assert next(steps, None) is not None, "the work ended before it could be measured"


def _drain(manager: Any, work: Work, seconds: float) -> tuple[int, int, float]:
    """Output tokens and completions that ended in this time, and the time it took."""
    begin = time.perf_counter()
    for prompt, count in zip(work.prompts, work.max_tokens, strict=True):
        manager.add_request(prompt, max_new_tokens=count)
    num_tokens = num_ended = 0
    while num_ended < len(work.prompts) and time.perf_counter() - begin < seconds and manager.is_running():
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            assert result.error is None, result.error
            num_tokens, num_ended = num_tokens + len(result.generated_tokens), num_ended + 1
    return num_tokens, num_ended, time.perf_counter() - begin
