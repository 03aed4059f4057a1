"""A .gguf file through `load.py`: written here from a tiny Llama, read back by transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchgen.models import load
from batchgen.models.load import inspect_model, load_weights
from batchgen.spec.job_spec import ModelSpec
from tests.tiny_models import byte_tokenizer, context_model

CPU = torch.device("cpu")


def _interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a query or key weight with its rows in the order of a .gguf file."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


# Llama's tensors: the name in a .gguf file and in transformers
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def _write_gguf(file: Path, model: PreTrainedModel) -> None:
    """Write a `context_model` and the byte tokenizer to a .gguf file in float32."""
    gguf = pytest.importorskip("gguf")
    config, weights = model.config, model.state_dict()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = byte_tokenizer().get_vocab()
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), "ab", "de"]  # a tokenizer must have merges
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * 5 + [1] * 2)
    writer.add_token_merges(["a b", "d e"])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    for name, ours in OUTER.items():
        writer.add_tensor(f"{name}.weight", weights[f"{ours}.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for name, ours in INNER.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name)
            weight = weight if heads is None else _interleave(weight, heads)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    pytest.importorskip("accelerate")
    _write_gguf(tmp_path / "m.gguf", context_model())
    return tmp_path / "m.gguf"


def test_a_gguf_file_gives_plain_weights_and_prints_nothing(gguf_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    spec = ModelSpec(path=str(gguf_file), dtype="float32")
    model = load_weights(inspect_model(spec, CPU), spec, CPU, "eager")
    assert capfd.readouterr() == ("", "")
    expected = context_model().state_dict()
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, expected[name]), name


def test_a_gguf_file_contains_its_tokenizer_and_end_token(gguf_file: Path) -> None:
    info = inspect_model(ModelSpec(path=str(gguf_file)), CPU)
    assert info.tokenizer("cab", add_special_tokens=False)["input_ids"] == [ord("c"), 261]
    assert (set(info.eos_token_ids), info.max_model_len, info.generation_config) == ({258}, 512, {})


@pytest.mark.parametrize(("has", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_dtype_auto_of_a_gguf_file_is_the_fastest_of_the_device(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch, has: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(load, "has_bfloat16", lambda device: has)
    assert inspect_model(ModelSpec(path=str(gguf_file)), CPU).dtype == dtype


def test_its_header_is_parsed_once_before_the_weights_and_once_for_them(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gguf

    calls: list[str] = []

    def recorded(name: str, parse: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(name)
            return parse(*args)

        return call

    monkeypatch.setattr(gguf.GGUFReader, "__init__", recorded("header", gguf.GGUFReader.__init__))
    monkeypatch.setattr(gguf, "get_tensor_name_map", recorded("table", gguf.get_tensor_name_map))
    spec = ModelSpec(path=str(gguf_file))
    info = inspect_model(spec, CPU)
    assert calls == ["header"]
    load_weights(info, spec, CPU, "eager")
    assert calls == ["header", "header", "table"]


def test_a_file_that_changed_is_parsed_again(gguf_file: Path) -> None:
    spec = ModelSpec(path=str(gguf_file))
    assert inspect_model(spec, CPU).max_model_len == 512
    data = gguf_file.read_bytes()
    key = b"llama.context_length" + (4).to_bytes(4, "little")  # then the number, an unsigned one of 4 bytes
    gguf_file.write_bytes(data.replace(key + (512).to_bytes(4, "little"), key + (256).to_bytes(4, "little")))
    assert inspect_model(spec, CPU).max_model_len == 256
