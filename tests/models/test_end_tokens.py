"""What declares an end token; `test_load.py` and `test_load_gguf.py` read the files themselves."""

from __future__ import annotations

from batchgen.models.end_tokens import describe_difference, folder_end_tokens
from tests.tiny_models import EOS, byte_tokenizer


def test_the_text_config_of_a_multimodal_model_declares_too() -> None:
    config = {"eos_token_id": [1, 2], "text_config": {"eos_token_id": 3}}
    assert folder_end_tokens(config, {}, byte_tokenizer()) == {"config.json": {1, 2, 3}, "the tokenizer": {EOS}}


def test_an_end_token_that_the_tokenizer_lacks_is_none() -> None:
    """Its id would be that of the unknown token."""
    tokenizer = byte_tokenizer()
    tokenizer._special_tokens_map["eos_token"] = "</s>"
    assert folder_end_tokens({}, {}, tokenizer) == {}


def test_the_same_tokens_in_two_files_are_no_difference() -> None:
    declared = {"config.json": frozenset([258]), "generation_config.json": frozenset([258])}
    assert describe_difference(declared, byte_tokenizer()) is None


def test_a_difference_names_every_source_with_its_tokens() -> None:
    declared = {"config.json": frozenset([258, 263]), "the tokenizer": frozenset([260])}
    assert describe_difference(declared, byte_tokenizer()) == (
        "the end tokens differ, so a completion ends at any of them "
        "(config.json: <eos> 258, (no text) 263; the tokenizer: <|im_end|> 260)"
    )
