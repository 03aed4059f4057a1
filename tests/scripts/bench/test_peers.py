"""Drivers of other engines: their input, and the error when one fails."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
import torch
from transformers import AutoModelForCausalLM

from batchgen.job.run_config import resolve_job
from batchgen.spec.load import load_job
from scripts.bench import peers
from scripts.bench.peers import Peer, PeerRun, Work, make_work, run_peer, save_plain_model
from tests.end_to_end.harness import ModelFolders, TinyRunner

FORCED = {"max_tokens": 4, "ignore_eos": True}
WORK = Work("model", "model", [[1, 2], [3]], [[2, 1]], num_samples=2, temperature=0.0, max_tokens=4, threads=1)


def peer(folder: Path, code: str) -> Peer:
    """Return a peer with this driver, run by this Python."""
    driver = folder / "driver.py"
    driver.write_text(code, encoding="utf-8")
    return Peer("vllm", sys.executable, driver)


def tiny_job(folder: Path, **sampling: object) -> Path:
    runner = TinyRunner(folder, ModelFolders(folder / "models"))
    return runner.write([{"prompt": "one"}, {"prompt": "another"}], sampling={**FORCED, **sampling})


def test_the_answer_is_the_last_line(tmp_path: Path) -> None:
    code = 'print("loading"); print(\'{"seconds": 1.5, "num_tokens": 16, "engine": "E 1"}\')'
    assert run_peer(peer(tmp_path, code), WORK) == PeerRun(1.5, 16, "E 1")


def test_a_failure_shows_the_end_of_what_the_driver_said(tmp_path: Path) -> None:
    failing = peer(tmp_path, 'import sys; print("about", file=sys.stderr); raise SystemExit("no such instruction")')
    with pytest.raises(click.ClickException, match=r"the peer vllm failed \(.*\):\nabout\nno such instruction"):
        run_peer(failing, WORK)


def test_another_number_of_tokens_is_refused(tmp_path: Path) -> None:
    short = peer(tmp_path, 'print(\'{"seconds": 1.5, "num_tokens": 15, "engine": "E 1"}\')')
    with pytest.raises(click.ClickException, match="generated 15 tokens instead of 16"):
        run_peer(short, WORK)


@pytest.mark.parametrize("code", ["", "print('done')", "print('{}')", "print('[1]')"])
def test_a_last_line_that_is_no_result_is_shown(tmp_path: Path, code: str) -> None:
    with pytest.raises(click.ClickException, match="the last line of the peer vllm is not its result"):
        run_peer(peer(tmp_path, code), WORK)


def test_a_driver_does_not_see_our_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    code = """
import json, os
print(json.dumps({"seconds": 1, "num_tokens": 16, "engine": os.environ.get("PYTHONPATH", "none")}))
"""
    assert run_peer(peer(tmp_path, code), WORK).engine == "none"


@pytest.mark.parametrize("sampling", [{"top_k": 5}, {"ignore_eos": False}, {"max_tokens": None}, {"stop": ["x"]}])
def test_a_job_that_peers_would_run_otherwise_is_refused(tmp_path: Path, sampling: dict[str, object]) -> None:
    with pytest.raises(click.ClickException, match=r"only on sampling\.temperature, n and max_tokens"):
        make_work(load_job(tiny_job(tmp_path, **sampling)))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MODELS", tmp_path / "peers")


@pytest.mark.usefixtures("models")
def test_each_model_is_saved_in_a_folder_of_its_own(tmp_path: Path) -> None:
    job_file = tiny_job(tmp_path)
    jobs = [load_job(job_file, [f"model.dtype={dtype}"]) for dtype in ("float32", "bfloat16", "bfloat16")]
    folders = [save_plain_model(resolve_job(job)) for job in jobs]
    assert folders[0] != folders[1] == folders[2]


@pytest.mark.usefixtures("models")
def test_the_saved_model_has_the_weights_that_the_job_computes_with(tmp_path: Path) -> None:
    job = load_job(tiny_job(tmp_path), ["model.dtype=bfloat16"])
    folder = save_plain_model(resolve_job(job))
    saved = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    own = AutoModelForCausalLM.from_pretrained(job.spec.model.path, dtype=torch.bfloat16).state_dict()
    assert saved.keys() == own.keys()
    assert all(saved[name].dtype == torch.bfloat16 and torch.equal(saved[name], own[name]) for name in own)


@pytest.mark.slow
@pytest.mark.usefixtures("models")
def test_transformers_generates_every_token(tmp_path: Path) -> None:
    work = replace(make_work(load_job(tiny_job(tmp_path, n=2, temperature=0.8))), threads=1)
    run = run_peer(Peer.parse(f"transformers={sys.executable}"), work)
    assert run.num_tokens == work.num_tokens == 2 * work.num_samples * 4
    assert "torch.float32" in run.engine
