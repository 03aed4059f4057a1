"""Other engines on the prompts of a job, for scripts/bench.py: the same token ids, the same weights, their own Python.

A driver in scripts/peers imports nothing of ours. It is run as `PYTHON driver.py WORK.json`, with the fields of `Work`,
and its last line is a JSON object with the fields of `PeerRun`: it loads and warms up, and then times one call that
generates for all prompts. How to make an environment for each: docs/performance.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

import click
import torch

from batchgen.console import progress_bar
from batchgen.io.input.readers import open_input
from batchgen.job.run_config import RunConfig, make_encoder, make_sampling, resolve_job
from batchgen.models.identity import model_identity
from batchgen.models.load import load_weights
from batchgen.plan.token_store import TokenStore
from batchgen.prompts.tokenise import tokenise
from batchgen.sampling_params import SamplingParams
from batchgen.spec.load import Job

ROOT = Path(__file__).resolve().parent.parent
DRIVERS = ROOT / "scripts/peers"
MODELS = ROOT / "jobs/models/peers"
NAMES = ("openvino", "vllm", "transformers")
_NUM_WARMUP_PROMPTS, _WARMUP_TOKENS = 8, 64
_ERROR_LINES = 20


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine and the Python that has it."""

    name: str
    python: str
    driver: Path

    @classmethod
    def parse(cls, text: str) -> Peer:
        """Of `name=path`, as on the command line."""
        name, _, python = text.partition("=")
        if name not in NAMES or not python:
            raise click.BadParameter(f"{text}: expected one of {', '.join(NAMES)}, then = and the path of its Python")
        return cls(name, python, DRIVERS / f"run_{name}.py")


@dataclass(frozen=True, slots=True)
class Work:
    """What a driver is given."""

    model: str  # a Hugging Face folder
    converted: str  # where the driver may keep the model in a form of its own
    prompts: list[list[int]]
    warmup: list[list[int]]  # prompts that share no first token run with the others
    num_samples: int  # of each prompt
    temperature: float  # 0: greedy
    max_tokens: int  # of each sample, end tokens or not
    threads: int

    @property
    def num_tokens(self) -> int:
        """How many must come out."""
        return len(self.prompts) * self.num_samples * self.max_tokens


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What a driver answers."""

    seconds: float  # of its generate call
    num_tokens: int  # that came out of it
    engine: str  # with its version, and what it computed in


class _NoBadRows:
    """A bench has none."""

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        raise click.ClickException(f"row {row_index}: {error}")


def make_work(job: Job) -> Work:
    """The prompts of a job as batchgen renders them, and its model without quantisation, which is saved once."""
    config = resolve_job(job)
    params = config.sampling
    max_tokens = _forced_length(job, params)
    model = save_plain_model(config)
    prompts = _prompts(config)
    return Work(
        model=str(model),
        converted=str(model),
        prompts=prompts,
        warmup=[prompt[:_WARMUP_TOKENS][::-1] for prompt in prompts[:_NUM_WARMUP_PROMPTS]],
        num_samples=params.n,
        temperature=params.temperature,
        max_tokens=max_tokens,
        threads=torch.get_num_threads(),
    )


def _forced_length(job: Job, params: SamplingParams) -> int:
    """`sampling.max_tokens`, where drivers can do what the job asks for."""
    known = {name: getattr(params, name) for name in ("temperature", "n", "max_tokens", "ignore_eos", "seed")}
    if params != replace(SamplingParams(), **known) or params.max_tokens is None or not params.ignore_eos:
        raise click.ClickException(
            f"{job.path}: peers can be compared only on sampling.temperature, n and max_tokens, with ignore_eos: true"
        )
    return params.max_tokens


def _prompts(config: RunConfig) -> list[list[int]]:
    source = open_input(config.input)
    encoder, sampling = make_encoder(config, datetime.now()), make_sampling(config, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        store = TokenStore(Path(folder, "tokens.bin"))
        rows = tokenise(source, encoder, sampling, _NoBadRows(), store, bar=progress_bar("tokenise", quiet=True))
        return [rows.store[position].tolist() for position in range(len(rows))]


def save_plain_model(config: RunConfig) -> Path:
    """The job's model as a Hugging Face folder in the type that the job computes in; whole, or not there at all.

    `config` must not have been used yet. Another model, or one that has changed, gets another folder.
    """
    spec = config.job.spec.model
    identity = json.dumps(model_identity(config.model, spec)).encode()
    folder = MODELS / f"{Path(spec.path).stem}-{blake2b(identity, digest_size=4).hexdigest()}"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        load_weights(config.model, spec, torch.device("cpu"), "eager").save_pretrained(partial)
        config.model.tokenizer.save_pretrained(partial)
        partial.rename(folder)
    return folder


def run_peer(peer: Peer, work: Work) -> PeerRun:
    """One run of a driver. Raises click.ClickException: it failed, or did other work than it was given."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(work.threads)}
    environment.pop("PYTHONPATH", None)  # ours has a folder `kernels`
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "work.json")
        file.write_text(json.dumps(asdict(replace(work, converted=f"{work.converted}-{peer.name}"))), encoding="utf-8")
        done = subprocess.run(
            [peer.python, peer.driver, file], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise click.ClickException(f"the peer {peer.name} failed ({peer.python}):\n{_end(done.stderr)}")
    run = _answer(peer, done.stdout)
    if run.num_tokens != work.num_tokens:
        raise click.ClickException(
            f"the peer {peer.name} generated {run.num_tokens:,} tokens instead of {work.num_tokens:,}"
        )
    return run


def _answer(peer: Peer, output: str) -> PeerRun:
    try:
        return PeerRun(**json.loads(output.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        raise click.ClickException(
            f"the last line of the peer {peer.name} is not its result:\n{_end(output)}"
        ) from None


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-_ERROR_LINES:])


def check_peers(peers: Sequence[Peer]) -> None:
    """Before anything is timed. Raises click.ClickException: a Python that cannot be run, or one peer twice."""
    names = [peer.name for peer in peers]
    if len(set(names)) < len(names):
        raise click.ClickException("each peer can be named once")
    for peer in peers:
        if not os.access(peer.python, os.X_OK):
            raise click.ClickException(f"the Python of the peer {peer.name} is not there: {peer.python}")
