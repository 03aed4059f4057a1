"""verify_run: generate rows of a finished run again, each alone, and compare them with the output. Writes nothing.

The job is the one in the run's own `job.yaml`; the rows pass through the same tokenisation and the same engine, one
at a time, without a prefix cache and with the reference attention.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from batchgen.console import progress_bar
from batchgen.engine.request import Request
from batchgen.errors import OutputError
from batchgen.io.input.readers import open_input
from batchgen.io.output.folder import OutputFolder
from batchgen.job.export import refuse_other_input
from batchgen.job.fingerprint import read_earlier_run
from batchgen.job.generate import Generation, prepare_generation
from batchgen.job.run_config import make_encoder, make_sampling, resolve_job
from batchgen.plan.token_store import Positions, TokenStore
from batchgen.prompts.row_sampling import RowSampling
from batchgen.prompts.thinking import Texts
from batchgen.prompts.tokenise import tokenise
from batchgen.spec.job_spec import InputSpec, JobSpec, OutputSpec
from batchgen.spec.load import Job
from batchgen.stats.artifact import read_artifact
from batchgen.stats.stopwatch import Stopwatch

TIE = 1e-3  # between logits closer than this, rounding decides in float32

_ALONE = {"max_num_seqs": 1, "prefix_cache": False, "order": "input", "attention": "torch", "num_blocks": None}


class Difference(NamedTuple):
    """A completion that differs from the written one."""

    row_index: int
    sample_index: int
    token: int  # the first that differs
    written: str  # the completion's end from there on, and why it ended
    alone: str
    gap: float  # between the model's two best logits there
    is_tie: bool  # a greedy row, and the gap is below TIE


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a run."""

    num_rows: int
    num_samples: int
    dtype: str
    differences: list[Difference]

    @property
    def is_good(self) -> bool:
        """Whether all completions are the same, apart from ties."""
        return all(difference.is_tie for difference in self.differences)

    def lines(self) -> Iterator[str]:
        """Yield lines for the terminal; the last one has the figures."""
        for each in self.differences:
            kind = "a tie" if each.is_tie else "different"
            yield (
                f"row {each.row_index}, sample {each.sample_index}: {kind} at token {each.token}, "
                f"gap of the two best logits {each.gap:.5f}: written {each.written}, alone {each.alone}"
            )
        if self.differences and self.dtype != "float32":
            yield f"computed in {self.dtype}, where rounding depends on what else is in the batch; see docs/verify.md"
        num_ties = sum(each.is_tie for each in self.differences)
        num_same, num_other = self.num_samples - len(self.differences), len(self.differences) - num_ties
        yield f"rows={self.num_rows} same={num_same} ties={num_ties} different={num_other}"


class _Written(NamedTuple):
    """What a run wrote for one sample."""

    texts: Texts
    finish_reason: str
    token_ids: list[int] | None


def verify_run(path: str, *, num_rows: int, dtype: str | None = None, quiet: bool = False) -> Verification:
    """Generate up to `num_rows` good rows, evenly spread, of a finished run again and compare them.

    Raises OutputError if the folder holds no finished run, InputError if its input has changed, and what a run raises.
    """
    folder = OutputFolder(path)
    job = _job_alone(read_artifact(folder.path).job, folder, dtype)
    earlier = read_earlier_run(folder)
    if earlier is None:
        raise OutputError(f"{folder.path}: its job.yaml does not say what the run was")
    source = open_input(job.spec.input)
    refuse_other_input(source, earlier.state, "only a run whose input is unchanged can be verified")
    config = resolve_job(job)
    encoder = make_encoder(config, earlier.state.now)
    sampling = make_sampling(config, earlier.state.seed)
    written = _read_written(folder, job.spec.output)
    chosen = _SelectedRows({row_index for row_index, _ in written}, num_rows)
    with tempfile.TemporaryDirectory(prefix="batchgen-verify-") as scratch:
        store = TokenStore(Path(scratch) / "tokens.bin")
        rows = tokenise(source, encoder, sampling, chosen, store, bar=progress_bar("tokenise", quiet=quiet))
        _request_logprobs(sampling)
        generation = prepare_generation(config, rows, chosen, Stopwatch())
        found = [] if generation is None else list(_compare(generation, written))
    differences = sorted(difference for difference in found if difference is not None)
    return Verification(chosen.num_rows, len(found), config.dtype, differences)


def _job_alone(document: Mapping[str, Any], folder: OutputFolder, dtype: str | None) -> Job:
    """The job of a run with every value given, changed to run one row at a time."""
    values = {**document["job"], "engine": {**document["job"]["engine"], **_ALONE}}
    if dtype is not None:
        values["model"] = {**values["model"], "dtype": dtype}
    sources = {f"{name}.{key}": "job" for name in ("sampling", "engine") for key in values[name]}
    return Job(JobSpec.model_validate(values), sources, Path(str(folder.job_yaml)))


class _SelectedRows:
    """Selects good rows of the run, evenly spread; bad rows of the input are never selected."""

    def __init__(self, good: set[int], num_rows: int) -> None:
        self._good = good
        self._most = num_rows
        self.num_rows = 0

    def remaining(self, row_indices: array[int]) -> Positions:
        """Return the positions of the selected rows in the token store."""
        good = np.flatnonzero(np.isin(np.frombuffer(row_indices, np.int64), list(self._good)))
        self.num_rows = min(self._most, len(good))
        return good[np.linspace(0, len(good) - 1, self.num_rows).round().astype(np.int64)]

    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        """Ignore a bad row: rows that failed in the run are not compared."""


def _request_logprobs(sampling: RowSampling) -> None:
    distinct = sampling.distinct
    distinct[:] = [replace(params, logprobs=max(params.logprobs or 0, 2)) for params in distinct]


def _read_written(folder: OutputFolder, output: OutputSpec) -> dict[tuple[int, int], _Written]:
    """Read what the run wrote for all rows that did not fail: (row_index, sample_index) -> output."""
    prefix = output.prefix
    column = f"{prefix}completion"
    parts = open_input(InputSpec(path=str(folder.completions), text=column))
    for _ in parts.read_row_batches():
        pass  # the types of JSON lines are known only after reading
    written: dict[tuple[int, int], _Written] = {}
    row_index = -1
    for batch in parts.read_batches():
        for row in batch.to_pylist():
            sample = row[f"{prefix}sample_index"]
            row_index += sample == 0
            if row[f"{prefix}finish_reason"] != "error":
                ids = row.get(f"{prefix}completion_token_ids")
                texts = Texts(row[column], row[f"{prefix}reasoning"] if output.reasoning == "split" else None)
                written[row_index, sample] = _Written(texts, row[f"{prefix}finish_reason"], ids)
    return written


def _compare(generation: Generation, written: Mapping[tuple[int, int], _Written]) -> Iterator[Difference | None]:
    """Yield the difference of every sample that was generated again; None if it is the same."""
    for finished in generation.engine.run(generation.requests()):
        for request in finished:
            before = written.get((request.row_index, request.sample_index))
            if before is not None:
                yield _difference(request, before, generation)


def _difference(request: Request, before: _Written, generation: Generation) -> Difference | None:
    output = generation.outputs.of(request)
    is_same_ids = before.token_ids is None or before.token_ids == request.output_token_ids
    alone = Texts(output.completion, output.reasoning)
    if is_same_ids and (before.texts, before.finish_reason) == (alone, output.finish_reason.value):
        return None
    is_split = generation.config.output.reasoning == "split"

    def text(stop: int) -> str:
        texts = generation.outputs.decode(request, stop)
        return _joined(texts) if is_split else texts.completion or ""

    ids = request.output_token_ids
    token = min(_num_equal(ids, before, text), max(len(ids) - 1, 0))
    best = request.output_logprobs[token].top[:2] if ids else ()
    gap = best[0][1] - best[1][1] if len(best) == 2 else float("nan")
    start = len(text(token))
    return Difference(
        request.row_index,
        request.sample_index,
        token,
        f"{_joined(before.texts)[start : start + 40]!r} ({before.finish_reason})",
        f"{_joined(alone)[start : start + 40]!r} ({output.finish_reason.value})",
        gap,
        is_tie=request.params.is_greedy and gap < TIE,
    )


def _num_equal(ids: Sequence[int], before: _Written, text: Any) -> int:
    """Count the leading tokens that agree; without written ids, those whose text the written text begins with."""
    if before.token_ids is not None:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, before.token_ids, strict=False)))
    written = _joined(before.texts)
    beginnings = takewhile(lambda stop: written.startswith(text(stop).rstrip("\ufffd")), range(1, len(ids) + 1))
    return sum(1 for _ in beginnings)


def _joined(texts: Texts) -> str:
    """Return the thinking and the answer as one text; whitespace that may precede a tag is left out."""
    return texts.completion or "" if texts.reasoning is None else texts.reasoning.rstrip() + (texts.completion or "")
