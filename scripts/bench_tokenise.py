"""Pass 1 against one batched call of the tokenizer: python scripts/bench_tokenise.py bbh.parquet MODEL --rows 100000

The input (columns system, prompt) is made larger: every row keeps its system message and takes the first half of one
question and the second half of another that goes with the same system message. The batched call is given rendered
text and uses the tokenizer's own threads; pass 1 reads, renders, encodes and stores the rows. Each has a process of
its own. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

JOB = """
model: {{path: "{model}"}}
input: {{path: "{rows}", system: system, prompt: prompt}}
output: {{path: "out"}}
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One way to tokenise all rows."""

    seconds: float
    cpu_seconds: float  # of all its processes and threads
    peak_mib: int  # resident memory of its process, workers apart
    num_tokens: int
    digest: str  # of the ids of every row


def more_rows(path: Path, num_rows: int) -> Iterator[dict[str, str]]:
    """As many rows as asked for, no two the same."""
    rows = pq.read_table(path, columns=["system", "prompt"]).to_pylist()
    prompts: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        prompts[row["system"]].append(row["prompt"])
    generator = random.Random(0)
    for number in range(num_rows):
        system = generator.choice(rows)["system"]
        first, second = (_sentences(generator.choice(prompts[system])) for _ in range(2))
        prompt = "".join([*first[: len(first) // 2], *second[len(second) // 2 :]])
        yield {"system": system, "prompt": f"{prompt} ({number})"}


def batched_call(job_file: Path) -> Measured:
    """Everything rendered beforehand, then one call."""
    from batchgen.io.input.readers import open_input
    from batchgen.job.run_config import resolve_job
    from batchgen.spec.load import load_job

    job = load_job(job_file)
    tokenizer = resolve_job(job).model.tokenizer
    texts = [
        tokenizer.apply_chat_template(
            [
                {"role": "system", "content": row.values["system"]},
                {"role": "user", "content": row.values["prompt"]},
            ],
            tokenize=False,
            add_generation_prompt=True,
        )
        for row in open_input(job.spec.input).read_rows()
    ]
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    begin = _Clock()
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return _measured(begin, (np.array(prompt, np.int32) for prompt in ids))


def pass_1(job_file: Path) -> Measured:
    """As `run` and `plan` do it."""
    from batchgen.console import progress_bar
    from batchgen.io.input.readers import open_input
    from batchgen.job.run_config import make_encoder, make_sampling, resolve_job
    from batchgen.plan.token_store import TokenStore
    from batchgen.prompts.tokenise import tokenise
    from batchgen.spec.load import load_job

    job = load_job(job_file)
    config = resolve_job(job)
    encoder, sampling = make_encoder(config, datetime.now()), make_sampling(config, seed=0)
    store = TokenStore(job_file.with_suffix(".tokens"))
    begin = _Clock()
    tokenise(open_input(config.input), encoder, sampling, _NoBadRows(), store, bar=progress_bar("tokenise"))
    return _measured(begin, (store[position] for position in range(len(store))))


class _NoBadRows:
    def fail(self, row_index: int, error: str, prompt_tokens: int | None = None) -> None:
        sys.exit(error)


class _Clock:
    """When it was made: by the clock on the wall, and in processor time of this process and its workers."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), sum(os.times()[:4])


def _measured(begin: _Clock, prompts: Iterable[npt.NDArray[np.int32]]) -> Measured:
    """`begin`: when the work that is now done was begun."""
    end, peak_mib = _Clock(), _peak_mib()
    digest, num_tokens = blake2b(), 0
    for ids in prompts:
        digest.update(len(ids).to_bytes(8, "little") + ids.tobytes())
        num_tokens += len(ids)
    return Measured(end.wall - begin.wall, end.cpu - begin.cpu, peak_mib, num_tokens, digest.hexdigest())


def _peak_mib() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")  # getrusage counts the parent's memory, too
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.?!\n])", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    num_cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        rows, job_file = Path(folder) / "rows.parquet", Path(folder) / "job.yaml"
        pq.write_table(pa.Table.from_pylist(list(more_rows(options.input, options.rows))), rows)
        job_file.write_text(JOB.format(model=options.model.resolve(), rows=rows), encoding="utf-8")
        found: dict[str, Measured] = {}
        for way in (pass_1, batched_call):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                found[way.__name__] = process.submit(way, job_file).result()
    for name, measured in found.items():
        rate = options.rows / measured.seconds
        print(
            f"{name:<14}{measured.seconds:8.1f} s {measured.cpu_seconds:8.1f} s of processor {rate:10,.0f} rows/s "
            f"{measured.peak_mib:8,} MiB at most"
        )
    speedup = found["batched_call"].seconds / found["pass_1"].seconds
    same = found["batched_call"].digest == found["pass_1"].digest
    print(f"pass 1 is {speedup:.2f} times as fast on {num_cores} cores; ids {'equal' if same else 'DIFFER'}")
    figures = {name: asdict(measured) for name, measured in found.items()}
    print(json.dumps({"rows": options.rows, "cores": num_cores, "speedup": speedup, "equal": same, **figures}))
    sys.exit(not same)


if __name__ == "__main__":
    main()
