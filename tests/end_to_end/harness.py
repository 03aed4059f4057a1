"""A whole job on a tiny model: rows, model folder and job file written, run, and everything that came out read back.

Test modules give models and tokenizers as functions; each pair is saved once a session, however many runs use it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from click.testing import Result as CliResult
from ruamel.yaml import YAML
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from batchgen.cli import main
from batchgen.errors import BatchgenError
from batchgen.job.run import run_job
from batchgen.spec.load import load_job
from tests.prompts.tokenizer_kinds import metaspace
from tests.tiny_models import TAIL, byte_tokenizer, save_model, table_model, upper_table

MakeModel = Callable[[], PreTrainedModel]
MakeTokenizer = Callable[[], PreTrainedTokenizerFast]
# JSON lines from dicts or from bytes as they are, Parquet from a table, or what already lies at a path
Rows: TypeAlias = Sequence[Mapping[str, Any]] | bytes | pa.Table | Path

GREEDY = {"temperature": 0, "max_tokens": 8}
# The columns of every output behind the input's own.
ADDED = [
    ("completion", pa.string()),
    ("finish_reason", pa.string()),
    ("error", pa.string()),
    ("prompt_tokens", pa.int32()),
    ("completion_tokens", pa.int32()),
    ("cached_tokens", pa.int32()),
    ("sample_index", pa.int32()),
]


def upper_model() -> PreTrainedModel:
    """Answers a prompt that ends in a lower-case letter with that letter in upper case."""
    return table_model(upper_table())


class ModelFolders:
    """Saves every pair of model and tokenizer once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._saved: dict[object, Path] = {}

    def get(self, model: MakeModel, tokenizer: MakeTokenizer, generation_config: Mapping[str, Any] | None) -> Path:
        key = (model, tokenizer, json.dumps(generation_config, sort_keys=True))
        if key not in self._saved:
            folder = self._root / f"model-{len(self._saved)}"
            self._saved[key] = save_model(folder, model(), tokenizer(), generation_config)
        return self._saved[key]


@dataclass(frozen=True)
class Result:
    """What a run gave: `error` for a refused one, else the report's exit code and the output folder."""

    exit_code: int
    error: str
    job_file: Path
    folder: Path  # output.path

    @property
    def table(self) -> pa.Table:
        return pq.read_table(self.folder / "completions")

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    @property
    def report(self) -> dict[str, Any]:
        return read_report(self.folder)

    @property
    def resolved(self) -> dict[str, Any]:
        """`job.yaml` of the output folder."""
        resolved: dict[str, Any] = YAML(typ="safe").load(self.folder / "job.yaml")
        return resolved

    def column(self, name: str) -> list[Any]:
        values: list[Any] = self.table[name].to_pylist()
        return values

    @property
    def completions(self) -> list[str | None]:
        return self.column("completion")


class TinyRunner:
    """Runs jobs in one folder; every job has its own input, job file and output folder unless told otherwise."""

    def __init__(self, folder: Path, models: ModelFolders) -> None:
        self.folder = folder
        self._models = models
        self._num_jobs = 0

    def __call__(self, rows: Rows, **job: Any) -> Result:
        """Write a job (see `write`) and run it in this process."""
        return self.run_file(self.write(rows, **job))

    def run_file(self, job_file: Path, overrides: Sequence[str] = ()) -> Result:
        """Run a job file in this process; a refusal becomes the result's `error`."""
        output = job_file.with_suffix("")
        try:
            job = load_job(job_file, overrides)
            output = Path(job.spec.output.path)
            report = run_job(job, quiet=True)
        except BatchgenError as error:
            return Result(error.exit_code, str(error), job_file, output)
        return Result(report.exit_code, "", job_file, output)

    def write(
        self,
        rows: Rows,
        *,
        model: MakeModel | Path = upper_model,
        tokenizer: MakeTokenizer = byte_tokenizer,
        generation_config: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | str | None = None,
        **sections: Any,
    ) -> Path:
        """Write input and job file.

        `input` without a way to a prompt reads the column `prompt`; a `sampling` given as text is YAML as a user
        writes it, one as a dict adds to greedy and 8 tokens. The other sections and keys are put in as they are.
        """
        self._num_jobs += 1
        name = f"job-{self._num_jobs}"
        folder = model if isinstance(model, Path) else self._models.get(model, tokenizer, generation_config)
        columns = dict(input or {})
        if not columns.keys() & {"prompt", "messages", "text", "token_ids", "template"}:
            columns["prompt"] = "prompt"
        job: dict[str, Any] = {
            "model": {"path": str(folder), "dtype": "float32"},
            "input": {"path": str(self._write_rows(rows, name)), **columns},
            "sampling": sampling if isinstance(sampling, str) else {**GREEDY, **(sampling or {})},
            **sections,
            "output": {"path": name, **sections.get("output", {})},
            "engine": {"device": "cpu", **sections.get("engine", {})},
        }
        lines = [f"{key}: {part if isinstance(part, str) else json.dumps(part)}\n" for key, part in job.items()]
        job_file = self.folder / f"{name}.yaml"
        job_file.write_text("".join(lines), encoding="utf-8")
        return job_file

    def _write_rows(self, rows: Rows, name: str) -> Path:
        if isinstance(rows, Path):
            return rows
        if isinstance(rows, pa.Table):
            path = self.folder / f"{name}-in.parquet"
            pq.write_table(rows, path)
            return path
        path = self.folder / f"{name}-in.jsonl"
        path.write_bytes(rows if isinstance(rows, bytes) else json_lines(rows))
        return path


def read_report(folder: Path) -> dict[str, Any]:
    """`report.json`, which must be strict JSON: no NaN."""
    text = (folder / "report.json").read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads(text, parse_constant=_refuse_constant)
    return report


def json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def prompts(*texts: str) -> list[dict[str, Any]]:
    """Rows with these prompts."""
    return [{"prompt": text} for text in texts]


def cli_run(job_file: Path, *options: str) -> CliResult:
    """`batchgen run` through click, in this process."""
    return CliRunner().invoke(main, ["run", str(job_file), *options])


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"report.json holds {name}")


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def answers(result: Result) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "cached_tokens"} for row in result.rows]


def drops_spaces() -> PreTrainedTokenizerFast:
    """Its decoder drops the space of the first token."""
    tokenizer = metaspace("always")
    tokenizer.chat_template = TAIL
    return tokenizer


def cat_model() -> LlamaForCausalLM:
    """Answers any prompt of `drops_spaces` with the tokens of " cat", a comma and " yes", and ends."""
    ids = drops_spaces().get_vocab()
    words = [ids["\u2581cat"], ids[","], ids["\u2581yes,"], ids["<eos>"]]
    return table_model(dict.fromkeys(range(len(ids)), words[0]) | dict(itertools.pairwise(words)))


CATS = {"eos_token_id": [drops_spaces().get_vocab()["<eos>"]]}
