"""resolve: --set > job > generation_config > built-in, by what was given and never by what is falsy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchgen.errors import ModelError
from batchgen.job.settings import Setting, dump_yaml, resolve_sampling, resolved_document
from batchgen.prompts.sampling_encoder import SamplingEncoder
from batchgen.request_output import FinishReason
from batchgen.sampling_params import SamplingParams
from batchgen.spec.load import Job, load_job
from tests.examples import examples
from tests.tiny_models import VOCAB_SIZE, byte_tokenizer

MODEL: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_p": 0.8, "top_k": 20, "max_new_tokens": 16}

TOKENS = SamplingEncoder(byte_tokenizer(), VOCAB_SIZE)

Load = Callable[..., Job]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(sampling: str = "{}", *overrides: str) -> Job:
        path = tmp_path / "job.yaml"
        path.write_text(f"model: {{path: m}}\ninput: {{path: i, text: t}}\noutput: {{path: o}}\nsampling: {sampling}\n")
        return load_job(path, overrides)

    return load


def resolve(job: Job, config: dict[str, Any]) -> tuple[SamplingParams, dict[str, tuple[Any, str]]]:
    params, found = resolve_sampling(job, config, TOKENS)
    return params, {setting.key: (setting.value, setting.source) for setting in found}


def test_nothing_given_is_built_in(load: Load) -> None:
    params, found = resolve(load(), {})
    assert params == SamplingParams()
    assert {source for _, source in found.values()} == {"default"}
    assert list(found) == [f"sampling.{name}" for name in SamplingParams.__slots__]


def test_model_decides_what_the_job_does_not(load: Load) -> None:
    params, found = resolve(load("{top_p: 0.5}", "sampling.top_k=3"), MODEL)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.9, 0.5, 3, 0.0)
    sources = [found[f"sampling.{name}"][1] for name in ("temperature", "top_p", "top_k", "min_p")]
    assert sources == ["model", "job", "--set", "default"]


def test_zero_in_the_job_is_a_value(load: Load) -> None:
    params, found = resolve(load("{temperature: 0, seed: 0, top_k: 0}"), MODEL)
    assert params.is_greedy
    assert (params.seed, params.top_k) == (0, 0)
    assert found["sampling.temperature"] == (0.0, "job")
    assert found["sampling.seed"] == (0, "job")


def test_zero_in_an_override_is_a_value(load: Load) -> None:
    _, found = resolve(load("{temperature: 0.7}", "sampling.temperature=0"), MODEL)
    assert found["sampling.temperature"] == (0.0, "--set")


def test_null_in_the_job_leaves_it_to_the_model(load: Load) -> None:
    _, found = resolve(load("{temperature: null}"), MODEL)
    assert found["sampling.temperature"] == (0.9, "model")


@pytest.mark.parametrize("do_sample", [False, None])
def test_model_that_does_not_sample_is_greedy(load: Load, do_sample: bool | None) -> None:
    params, found = resolve(load(), MODEL | {"do_sample": do_sample})
    assert params.is_greedy
    assert found["sampling.top_p"] == (1.0, "default")


def test_model_that_samples_without_a_temperature_samples_at_one(load: Load) -> None:
    _, found = resolve(load(), {"do_sample": True, "top_p": 0.8})
    assert found["sampling.temperature"] == (1.0, "model")


def test_length_limit_of_the_model_is_not_taken(load: Load) -> None:
    _, found = resolve(load(), MODEL | {"max_length": 20})
    assert found["sampling.max_tokens"] == (None, "default")


def test_seed_that_nobody_gave_is_left_to_the_session(load: Load) -> None:
    assert resolve(load(), {})[0].seed is None


def test_unusable_value_of_the_model_is_refused(load: Load) -> None:
    with pytest.raises(ModelError, match=r"generation_config has top_p: 7, .* set sampling\.top_p in the job file"):
        resolve_sampling(load(), MODEL | {"top_p": 7}, TOKENS)


def test_unusable_value_of_the_model_does_not_matter_if_the_job_has_its_own(load: Load) -> None:
    assert resolve(load("{top_p: 1}"), MODEL | {"top_p": 7})[0].top_p == 1.0


def test_stop_values_reach_the_params(load: Load) -> None:
    params, _ = resolve(load("{stop: END, stop_token_ids: [7, 5, 7]}"), {})
    assert params.stop == ("END",)
    assert params.stop_token_ids == {5, 7}


def test_document_has_a_source_for_every_value(load: Load) -> None:
    job = load("{seed: 3}", "engine.block_size=8")
    _, found = resolve_sampling(job, MODEL, TOKENS)
    document = resolved_document(job, [*found, Setting("engine.device", "cpu", "default")], {"batchgen": "0.1.0"})
    assert document["batchgen"] == "0.1.0"
    assert document["job"]["sampling"]["temperature"] == 0.9
    assert document["job"]["engine"]["device"] == "cpu"
    sources = document["sources"]
    leaves = {f"{name}.{key}" for name, part in document["job"].items() if isinstance(part, dict) for key in part}
    assert set(sources) == leaves | {"on_error", "max_errors"}
    keys = ["sampling.seed", "engine.block_size", "sampling.top_p", "engine.order"]
    assert [sources[key] for key in keys] == ["job", "--set", "model", "default"]


def test_job_part_of_the_document_loads_again(load: Load, tmp_path: Path) -> None:
    job = load("{stop: [no, '12:30', '1e-5', \"\\n\", 'é: #', '~'], stop_token_ids: [2], temperature: 1e-5}")
    params, found = resolve_sampling(job, {}, TOKENS)
    again = tmp_path / "elsewhere" / "again.yaml"
    again.parent.mkdir()
    again.write_text(dump_yaml(resolved_document(job, found, {})["job"]), encoding="utf-8")
    loaded = load_job(again)
    assert resolve_sampling(loaded, MODEL, TOKENS)[0] == params
    assert loaded.spec.model_copy(update={"sampling": job.spec.sampling}) == job.spec


@settings(examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stop=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3))
def test_any_stop_text_survives_the_document(load: Load, tmp_path: Path, stop: list[str]) -> None:
    job = load()
    document = resolved_document(job, [Setting("sampling.stop", tuple(stop), "job")], {})
    again = tmp_path / "again.yaml"
    again.write_bytes(dump_yaml(document["job"]).encode())
    assert load_job(again).spec.sampling.stop == tuple(stop)


def test_line_breaks_of_unicode_survive_the_document() -> None:
    assert dump_yaml({"a": "\x85", "b": "x\u2028y", "c": "é"}) == 'a: "\\N"\nb: "x\\Ly"\nc: é\n'


def test_document_is_yaml_in_its_own_order() -> None:
    assert dump_yaml({"b": None, "a": [1, "x"], "c": 1e-05}) == "b: null\na:\n- 1\n- x\nc: 1e-05\n"


def test_enum_and_other_kinds_of_text_are_text() -> None:
    assert dump_yaml({"why": FinishReason.STOP}) == "why: stop\n"
