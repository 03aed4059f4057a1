"""The bench on a tiny job: what it runs in which order, what it says meanwhile, and the ratios that it prints."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from batchgen.spec.load import load_job
from scripts.bench import __main__ as bench
from scripts.bench import peers
from scripts.bench.peers import PeerRun
from scripts.bench.runs import Ratios, Runs, Timing, lines
from scripts.roofline import Limits
from tests.end_to_end.harness import ModelFolders, TinyRunner

FAKE = """#!{python}
import json, pathlib, sys
work = json.loads(pathlib.Path(sys.argv[2]).read_text())
with open({log!r}, "a") as log:
    print(json.dumps(work), file=log)
num_tokens = len(work["prompts"]) * work["num_samples"] * work["max_tokens"]
print("a log line")
print(json.dumps({{"seconds": 100.0, "num_tokens": num_tokens, "engine": "a fake"}}))
"""


@pytest.fixture
def tiny_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace gsm128 by two rows with two samples of four tokens each; return the folder of all files."""
    rows = pa.table({"prompt": ["a question about a", "a question about b"]})
    sampling = {"n": 2, "temperature": 0.8, "max_tokens": 4, "ignore_eos": True, "seed": 0}
    job_file = TinyRunner(tmp_path, ModelFolders(tmp_path / "models")).write(rows, sampling=sampling)
    job_file.rename(tmp_path / "gsm128.yaml")
    monkeypatch.setattr(bench, "JOBS", tmp_path)
    monkeypatch.setattr(bench, "measure_limits", lambda: Limits(1e12, 1e11))
    monkeypatch.setattr(peers, "MODELS", tmp_path / "peers")
    return tmp_path


def fake_python(folder: Path, text: str = FAKE) -> Path:
    script = folder / "fake_python"
    script.write_text(text.format(python=sys.executable, log=str(folder / "works.jsonl")), encoding="utf-8")
    script.chmod(0o755)
    return script


def run_bench(*arguments: str) -> Result:
    return CliRunner().invoke(bench.main, ["gsm128", *arguments])


def last_line(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return document


def timing(seconds: float, peak_blocks: int = 1) -> Timing:
    return Timing(seconds, 0.0, seconds, 1.0, 0.0, peak_blocks, 0.5)


@pytest.mark.slow
def test_a_peer_runs_as_often_as_we_do_and_gets_the_rendered_prompts(tiny_bench: Path) -> None:
    document = last_line(run_bench("--repeat", "2", "--peer", f"openvino={fake_python(tiny_bench)}"))
    runs = document["gsm128"]
    assert len(runs["ours"]) == len(runs["peers"]["openvino"]) == 2
    assert runs["ours_by_peer"]["openvino"]["best"] == min(run["seconds"] for run in runs["ours"]) / 100
    first, second = [json.loads(line) for line in (tiny_bench / "works.jsonl").read_text().splitlines()]
    assert first == second
    assert [bytes(prompt[1:]) for prompt in first["prompts"]] == [
        b"user\na question about a",
        b"user\na question about b",
    ]
    assert (first["num_samples"], first["max_tokens"], first["temperature"]) == (2, 4, 0.8)
    assert first["converted"] == f"{first['model']}-openvino"
    assert Path(first["model"]).parent == tiny_bench / "peers"


@pytest.mark.slow
def test_every_run_is_announced_when_it_begins_and_ends(tiny_bench: Path) -> None:
    peer = f"openvino={fake_python(tiny_bench)}"
    result = run_bench("--repeat", "2", "--peer", peer, "--sharing-off", "gsm128")
    last_line(result)
    said = re.findall(r"^\[ +[\d.]+ s\] gsm128, run (.*?): (begins|ended, [\d.]+ s)$", result.stderr, re.MULTILINE)
    whole = [(name, text) for name, text in said if not name.endswith("openvino")]
    assert [name for name, _ in whole] == [
        f"{index} of 2, {engine}" for index in (1, 2) for engine in ("batchgen", "nothing shared") for _ in range(2)
    ]
    assert [text == "begins" for _, text in whole] == [True, False] * 4
    assert said[4:6] == [("1 of 2, openvino", "begins"), ("1 of 2, openvino", "ended, 100.0 s")]


@pytest.mark.slow
def test_nothing_shared_takes_a_row_for_each_completion(tiny_bench: Path) -> None:
    result = run_bench("--repeat", "1", "--sharing-off", "gsm128")
    runs = last_line(result)["gsm128"]
    (shared,), (unshared,) = runs["ours"], runs["unshared"]
    assert unshared["hit_rate"] == 0 < shared["hit_rate"]
    assert runs["unshared_by_shared"]["peak_blocks"] == unshared["peak_blocks"] / shared["peak_blocks"] > 1
    assert "with nothing shared" in result.output


def test_without_peers_nothing_of_them_is_made(tiny_bench: Path) -> None:
    runs = last_line(run_bench("--repeat", "1"))["gsm128"]
    assert (runs["peers"], runs["ours_by_peer"], runs["unshared"]) == ({}, {}, [])
    assert not (tiny_bench / "peers").exists()


def test_rows_are_repeated_next_to_each_other_within_the_limit(tiny_bench: Path) -> None:
    job = load_job(tiny_bench / "gsm128.yaml", ["input.limit=1", "sampling.n=3"])
    table = pq.read_table(bench.repeat_rows(job, tiny_bench / "repeated.parquet"))
    assert table["prompt"].to_pylist() == ["a question about a"] * 3


def test_ratios_are_ours_by_theirs_of_the_best_and_of_the_median() -> None:
    assert Ratios.of([1.0, 2.0, 9.0], [4.0, 8.0, 5.0]) == Ratios(best=0.25, median=0.4)


def test_the_table_has_a_line_for_each_peer_and_for_nothing_shared() -> None:
    runs = Runs(
        ours=[timing(2.0, peak_blocks=4), timing(3.0, peak_blocks=4)],
        unshared=[timing(5.0, peak_blocks=10)],
        peers={"vllm": [PeerRun(8.0, 64, "vLLM 1"), PeerRun(12.0, 64, "vLLM 1")]},
    )
    _, _, ours, peer, unshared = lines(Limits(1e12, 1e11), {"bbh128": runs})
    assert ours.split()[:3] == ["bbh128", "2.0", "2.5"]
    assert " ".join(peer.split()) == "bbh128 8.0 10.0 s: ours takes 0.25 (median 0.25) of vLLM 1"
    assert " ".join(unshared.split()) == (
        "bbh128 5.0 s with nothing shared: 2.50 times as long (median 2.00), 2.50 times the KV blocks at the peak"
    )


@pytest.mark.parametrize("text", ["sglang=/bin/true", "vllm", "vllm="])
def test_a_peer_that_is_not_known_or_has_no_python_is_refused(text: str) -> None:
    result = run_bench("--peer", text)
    assert result.exit_code == 2
    assert "expected one of openvino, vllm, transformers" in result.output


def test_a_python_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    result = run_bench("--peer", f"vllm={tmp_path}/python")
    assert result.exit_code == 1
    assert f"the Python of the peer vllm is not there: {tmp_path}/python" in result.output
