from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.dynamic_module_utils
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from batchgen.errors import CapacityError, ModelError
from batchgen.models import load
from batchgen.models.load import ModelInfo, build_meta_model, check_weights_fit, inspect_model, load_weights
from batchgen.spec.job_spec import ModelSpec
from tests.tiny_models import (
    byte_tokenizer,
    context_model,
    save_model,
    tiny_gemma2,
    tiny_gpt2,
    tiny_qwen3,
)

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a tiny Llama (end token 258), for tests to damage."""
    return save_model(tmp_path / "llama", context_model(), byte_tokenizer())


def _edit(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes a key."""
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def _inspect(folder: Path, **settings: Any) -> ModelInfo:
    return inspect_model(ModelSpec(path=str(folder), **settings), CPU)


def _load(folder: Path, **settings: Any) -> PreTrainedModel:
    return load_weights(_inspect(folder, **settings), ModelSpec(path=str(folder), **settings), CPU, "eager")


def test_end_tokens_of_both_files_count(folder: Path) -> None:
    _edit(folder / "config.json", eos_token_id=258)
    _edit(folder / "generation_config.json", eos_token_id=[260, 256])
    assert _inspect(folder).eos_token_ids == {256, 258, 260}


def test_all_end_tokens_of_the_config_count(folder: Path) -> None:
    _edit(folder / "config.json", eos_token_id=[258, 259])
    _edit(folder / "generation_config.json", eos_token_id=None)
    assert _inspect(folder).eos_token_ids == {258, 259}


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("config.json", {"eos_token_id": 259}),
        ("config.json", {"eos_token_id": [259]}),
        ("generation_config.json", {"eos_token_id": 259}),
        ("generation_config.json", {"eos_token_id": [258, 259]}),
        ("tokenizer_config.json", {"eos_token": "<|im_start|>"}),
        ("tokenizer_config.json", {"eos_token": {"__type": "AddedToken", "content": "<|im_start|>", "special": True}}),
    ],
)
def test_an_end_token_counts_wherever_it_is_declared(
    folder: Path, caplog: pytest.LogCaptureFixture, where: str, value: dict[str, Any]
) -> None:
    _edit(folder / "config.json", eos_token_id=258)
    _edit(folder / "generation_config.json", eos_token_id=258)
    _edit(folder / "tokenizer_config.json", eos_token="<eos>")
    with caplog.at_level("INFO", "batchgen"):
        assert _inspect(folder).eos_token_ids == {258}
        assert not caplog.messages
        _edit(folder / where, **value)
        assert _inspect(folder).eos_token_ids >= {259}
    (line,) = caplog.messages
    assert "<eos> 258" in line
    assert "<|im_start|> 259" in line
    assert where.replace("tokenizer_config.json", "the tokenizer") in line


def test_the_default_of_a_config_class_is_no_declaration(folder: Path) -> None:
    """LlamaConfig fills in 2."""
    for name in ("config.json", "generation_config.json"):
        _edit(folder / name, eos_token_id=None)
    assert _inspect(folder).eos_token_ids == {258}
    _edit(folder / "tokenizer_config.json", eos_token=None)
    assert _inspect(folder).eos_token_ids == set()


def test_minus_one_stands_for_no_end_token(folder: Path) -> None:
    _edit(folder / "generation_config.json", eos_token_id=-1)
    assert _inspect(folder).eos_token_ids == {258}


def test_ids_that_are_not_in_the_tokenizer_are_unused(folder: Path) -> None:
    info = _inspect(folder)
    assert (info.vocab_size, info.unused_token_ids.tolist()) == (264, [261, 262, 263])


def test_the_generation_config_holds_the_values_of_the_file_and_no_defaults(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": 1.0, "do_sample": true, "top_k": null}')
    assert _inspect(folder).generation_config == {"temperature": 1.0, "do_sample": True}


def test_without_the_file_the_generation_config_is_empty(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert _inspect(folder).generation_config == {}


def test_a_broken_generation_config_is_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"its generation_config\.json cannot be loaded: Expecting"):
        _inspect(folder)


def test_dtype_auto_is_the_checkpoints_own(tmp_path: Path) -> None:
    save_model(tmp_path, context_model().to(torch.bfloat16), byte_tokenizer())  # type: ignore[arg-type]
    assert _inspect(tmp_path).dtype == torch.bfloat16
    assert _load(tmp_path).dtype == torch.bfloat16


def test_dtype_auto_of_a_config_without_dtype_is_float32(folder: Path) -> None:
    _edit(folder / "config.json", dtype=None)
    assert _inspect(folder).dtype == torch.float32


def test_the_dtype_of_the_job_file_wins(folder: Path) -> None:
    assert _load(folder, dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("make", [context_model, tiny_qwen3, tiny_gemma2, tiny_gpt2])
def test_weights_are_loaded_unchanged_and_take_the_predicted_bytes(tmp_path: Path, make: Any) -> None:
    saved = make()
    save_model(tmp_path, saved, byte_tokenizer())
    loaded = _load(tmp_path)
    for (name, tensor), (_, expected) in zip(loaded.named_parameters(), saved.named_parameters(), strict=True):
        assert torch.equal(tensor, expected), name
    # GPT-2's output layer is its embedding: counted once
    assert _inspect(tmp_path).weight_bytes == sum(tensor.nbytes for tensor in saved.parameters())


def test_a_loaded_model_is_for_inference_and_has_the_attention_asked_for(folder: Path) -> None:
    model = _load(folder)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.config._attn_implementation == "eager"


def test_an_adapter_is_refused_by_its_base_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "acme/base", "peft_type": "LORA"}')
    message = r"contains an adapter \(LORA, of acme/base\), which batchgen does not apply; merge it into the base model"
    with pytest.raises(ModelError, match=message):
        _inspect(folder)
    (folder / "config.json").unlink()  # as peft saves an adapter
    with pytest.raises(ModelError, match=message):
        _inspect(folder)


@pytest.fixture
def extra_weight(folder: Path) -> Path:
    """Return a folder with a weight that the model lacks, of which transformers warns in a report."""
    tensors = {**load_file(folder / "model.safetensors"), "extra.weight": torch.zeros(2)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(("level", "is_shown"), [("INFO", True), ("WARNING", False)])
def test_transformers_warns_of_nothing_when_the_log_is_quiet(
    extra_weight: Path, caplog: pytest.LogCaptureFixture, level: str, is_shown: bool
) -> None:
    caplog.set_level(level, "batchgen")
    _load(extra_weight)
    assert ("extra.weight" in caplog.text) == is_shown
    assert transformers_logging.get_verbosity() == logging.WARNING


def test_loading_prints_nothing_off_a_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    _load(folder)
    assert capfd.readouterr() == ("", "")


def test_a_meta_model_has_no_storage_and_does_not_change_the_config(folder: Path) -> None:
    info = _inspect(folder, dtype="bfloat16")
    model = build_meta_model(info, "eager")
    assert {(parameter.device.type, parameter.dtype) for parameter in model.parameters()} == {("meta", torch.bfloat16)}
    assert info.config.dtype == torch.float32
    assert info.config._attn_implementation != "eager"


def test_the_context_length_is_found_under_the_names_of_other_families(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_gpt2(), byte_tokenizer())
    assert "max_position_embeddings" not in json.loads((tmp_path / "config.json").read_text())
    assert _inspect(tmp_path).max_model_len == 512


def test_an_unsupported_model_is_refused_before_its_tokenizer_is_read(folder: Path) -> None:
    _edit(folder / "config.json", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="dynamic"):
        _inspect(folder)


def test_weights_without_one_tensor_are_refused_by_its_name(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"its weights lack 1 tensors of the model, among them model\.norm\.weight"):
        _load(folder)


def test_damaged_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match="its weights cannot be loaded"):
        _load(folder)


def test_missing_weights_are_refused_only_when_loaded(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    _inspect(folder)
    with pytest.raises(ModelError, match="its weights cannot be loaded"):
        _load(folder)


def test_a_model_type_that_transformers_does_not_know_is_named(folder: Path) -> None:
    _edit(folder / "config.json", model_type="no_such_family")
    with pytest.raises(ModelError, match=r"its config cannot be loaded: .*no_such_family"):
        _inspect(folder)


def test_a_hub_id_that_is_not_cached_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"acme/no-such-model: its config cannot be loaded: .*HF_HUB_OFFLINE is set"):
        inspect_model(ModelSpec(path="acme/no-such-model"), CPU)


def test_a_folder_without_tokenizer_files_is_refused(tmp_path: Path) -> None:
    """transformers returns a GPT-2 tokenizer of one token for it."""
    tiny_gpt2().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no tokenizer files"):
        _inspect(tmp_path)


def test_the_chat_template_of_a_processor_counts_if_the_tokenizer_has_none(folder: Path) -> None:
    """Older multimodal checkpoints have it in a file of its own."""
    (folder / "chat_template.json").write_text('{"chat_template": "{{ messages }}"}')
    own = (folder / "chat_template.jinja").read_text()
    assert _inspect(folder).tokenizer.chat_template == own
    (folder / "chat_template.jinja").unlink()
    assert _inspect(folder).tokenizer.chat_template == "{{ messages }}"


def test_a_tokenizer_that_is_not_a_fast_one_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CTRLTokenizer"}')
    (folder / "vocab.json").write_text('{"<unk>": 0, "a</w>": 1}')
    (folder / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ModelError, match=r"\(CTRLTokenizer\) is not a fast one"):
        _inspect(folder)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own_llama"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def _with_own_code(folder: Path, model_type: str, auto_map: dict[str, str], code: str) -> None:
    (folder / "own_code.py").write_text(code)
    _edit(folder / "config.json", model_type=model_type, auto_map=auto_map)


def test_code_of_the_checkpoint_runs_only_when_trusted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    auto_map = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    _with_own_code(folder, "own_llama", auto_map, OWN_CODE)
    with pytest.raises(ModelError, match=r"model\.trust_remote_code: true"):
        _inspect(folder, allow_untested=True)
    assert type(_load(folder, trust_remote_code=True, allow_untested=True)).__name__ == "OwnModel"


def test_untrusted_code_does_not_run_for_a_config_of_transformers(folder: Path, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    _with_own_code(folder, "vit", {"AutoModelForCausalLM": "own_code.OwnModel"}, code)
    with pytest.raises(ModelError, match="no causal language model"):
        _inspect(folder, allow_untested=True)
    assert not (tmp_path / "ran").exists()


GIB = 2**30


def _with_weights(folder: Path, weight_bytes: int) -> ModelInfo:
    return replace(_inspect(folder), path="acme/model", weight_bytes=weight_bytes)


def test_weights_up_to_the_fraction_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "available_memory", lambda device: 10 * GIB)
    check_weights_fit(_with_weights(folder, 9 * GIB), CPU, 0.9)


def test_weights_above_the_fraction_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "available_memory", lambda device: 10 * GIB)
    with pytest.raises(CapacityError) as refused:
        check_weights_fit(_with_weights(folder, 9 * GIB + 1), CPU, 0.9)
    message = str(refused.value)
    assert "the model itself does not fit on cpu, even without KV blocks" in message
    assert "acme/model take 9.00 GiB in float32" in message
    assert "of the 10.00 GiB available only 9.00 GiB" in message
