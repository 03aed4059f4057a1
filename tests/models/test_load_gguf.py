"""A .gguf file through `load.py`: written here from a tiny Llama, read back by transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchgen.errors import ModelError
from batchgen.models import load
from batchgen.models.identity import model_identity
from batchgen.models.load import inspect_model, load_weights
from batchgen.spec.job_spec import ModelSpec
from tests.tiny_models import BOS, EOS, IM_END, PAD, byte_tokenizer, context_model

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


def _write_gguf(
    file: Path, model: PreTrainedModel, header: Mapping[str, int | str] | None = None, tensors_a_part: int = 0
) -> None:
    """Write a `context_model` and the byte tokenizer to a .gguf file in float32, with further keys in its header.

    `tensors_a_part`: split it into several files, as llama-gguf-split does.
    """
    gguf = pytest.importorskip("gguf")
    config, weights = model.config, model.state_dict()
    writer = gguf.GGUFWriter(file, "llama", split_max_tensors=tensors_a_part)
    for key, value in {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.eos_token_id": EOS, **(header or {})}.items():
        if value != "":
            (writer.add_uint32 if isinstance(value, int) else writer.add_string)(key, value)
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


def _saved(folder: Path, **header: int | str) -> ModelSpec:
    """Write a file with these keys (double underscores are dots), and "" for none; return how a job names it."""
    _write_gguf(folder / "m.gguf", context_model(), {key.replace("__", "."): value for key, value in header.items()})
    return ModelSpec(path=str(folder / "m.gguf"), dtype="float32")


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


def _refusal(spec: ModelSpec) -> str:
    with pytest.raises(ModelError) as refused:
        inspect_model(spec, CPU)
    return str(refused.value)


def test_every_end_token_of_the_header_counts_and_a_difference_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = {"tokenizer__ggml__eot_token_id": IM_END, "tokenizer__ggml__eom_token_id": PAD}
    with caplog.at_level("INFO", "batchgen"):
        assert inspect_model(_saved(tmp_path, **ends), CPU).eos_token_ids == {EOS, IM_END, PAD}
    (line,) = caplog.messages
    assert f"tokenizer.ggml.eos_token_id: <eos> {EOS}; tokenizer.ggml.eot_token_id: <|im_end|> {IM_END}" in line


def test_an_end_token_of_zero_counts(tmp_path: Path) -> None:
    spec = _saved(tmp_path, tokenizer__ggml__eos_token_id=0, tokenizer__ggml__eot_token_id=2)
    assert inspect_model(spec, CPU).eos_token_ids == {0, 2}


def test_the_default_of_the_config_class_is_no_end_token(tmp_path: Path) -> None:
    """LlamaConfig fills in 2; the bos token is none either."""
    spec = _saved(tmp_path, tokenizer__ggml__eos_token_id="", tokenizer__ggml__eot_token_id=IM_END)
    assert inspect_model(spec, CPU).eos_token_ids == {IM_END}
    assert BOS not in inspect_model(spec, CPU).eos_token_ids


def test_an_unknown_way_to_split_text_is_refused(tmp_path: Path) -> None:
    message = _refusal(_saved(tmp_path, tokenizer__ggml__pre="made-up"))
    assert "how its tokenizer splits text (tokenizer.ggml.pre: made-up) is not known here" in message


@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "smollm", "olmo"])
def test_known_ways_to_split_text_pass(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    inspect_model(_saved(tmp_path, tokenizer__ggml__pre=name), CPU)
    assert not caplog.messages


@pytest.mark.parametrize("name", ["default", ""])
def test_a_file_that_does_not_say_how_it_splits_text_is_read_like_gpt2_with_a_warning(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    inspect_model(_saved(tmp_path, tokenizer__ggml__pre=name), CPU)
    assert "tokenizer.ggml.pre" in caplog.text


def test_smollm_splits_off_every_digit_before_spaces_are_joined(tmp_path: Path) -> None:
    """The merges may join two spaces, but GPT-2 would keep the second one for the number."""
    text, splits = "a  12", {}
    for name in ("gpt-2", "smollm"):
        pre_tokenizer = inspect_model(_saved(tmp_path, tokenizer__ggml__pre=name), CPU).tokenizer.backend_tokenizer
        splits[name] = [piece.replace("\u0120", " ") for piece, _ in pre_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert splits == {"gpt-2": ["a", " ", " 12"], "smollm": ["a", "  ", "1", "2"]}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"general__type": "adapter"}, "is a LoRA adapter; merge it into its base model"),
        ({"general__type": "mmproj"}, "is no model: its header says general.type mmproj"),
        ({"llama__pooling_type": 3}, "does not generate text: it is an embedding or reranking model"),
    ],
)
def test_what_is_no_generator_is_refused(tmp_path: Path, header: dict[str, int | str], reason: str) -> None:
    assert reason in _refusal(_saved(tmp_path, **header))


def test_a_model_that_pools_nothing_passes(tmp_path: Path) -> None:
    inspect_model(_saved(tmp_path, llama__pooling_type=0, general__type="model"), CPU)


def test_all_parts_of_a_split_model_are_loaded_from_any_of_them(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "m.gguf", context_model(), tensors_a_part=8)
    first, *_, last = sorted(tmp_path.glob("*.gguf"))
    assert last.name == "m-00003-of-00003.gguf"
    expected = context_model().state_dict()
    for part in (first, last):
        spec = ModelSpec(path=str(part), dtype="float32")
        info = inspect_model(spec, CPU)
        model = load_weights(info, spec, CPU, "eager")
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.named_parameters())
        assert [key for key in model_identity(info, spec) if last.name in key]


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "m.gguf", context_model(), tensors_a_part=8)
    (tmp_path / "m-00001-of-00003.gguf").rename(tmp_path / "renamed.gguf")
    message = _refusal(ModelSpec(path=str(tmp_path / "renamed.gguf")))
    assert (
        "is a part of a split model under another name; restore the names that end in -00001-of-00003.gguf" in message
    )
