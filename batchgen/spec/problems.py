"""Problems of a job file: pydantic's validation errors in plain words. Knows the schema; opens no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml.nodes import MappingNode

from batchgen.spec.job_spec import BRANCHES, JobSpec
from batchgen.spec.yaml_tree import Key, Problem, dotted, find, quoted

# pydantic's error type -> what was expected; braces are filled from the error's context.
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "keys with values",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "is_instance_of": "a list",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model_type": "a section of keys",
    "string_too_short": "some text",
    "string_type": "text",
    "string_unicode": "text that can be written as UTF-8",
    "too_short": "at least one entry",
}

# Key -> what to write instead of a negative number, which other tools use for it.
_INSTEAD_OF_NEGATIVE = {
    "limit": "null reads all rows",
    "logprobs": "null turns them off",
    "max_errors": "null allows any number",
    "max_model_len": "null takes the model's own limit",
    "max_tokens": "null means up to the context limit",
    "num_blocks": "null takes as many as fit into memory",
    "prompt_logprobs": "null turns them off",
    "seed": "null draws one at random",
    "top_k": "0 turns it off",
}

_NO_BEAMS = "beam search is not supported; n samples at a temperature above 0 give several completions"
_THINKING = "write it under input.chat_template_kwargs, which the chat template reads"
# Name in other tools that no single key replaces -> what to do.
_FOREIGN_WAYS = {
    "best_of": "all n samples are written, so that the best can be chosen afterwards; set n",
    "do_sample": "remove it; temperature 0 is greedy, and any above 0 samples",
    "early_stopping": _NO_BEAMS,
    "enable_thinking": _THINKING,
    "length_penalty": _NO_BEAMS,
    "num_beams": _NO_BEAMS,
    "reasoning_effort": _THINKING,
    "use_beam_search": _NO_BEAMS,
}

# Name in other tools -> key here. Suggested only where the section has the key.
FOREIGN_NAMES = {
    "attention_backend": "attention",
    "attn_implementation": "attention",
    "batch_size": "max_num_seqs",
    "choice": "structured.choice",
    "column": "prompt",
    "context_length": "max_model_len",
    "data": "path",
    "dir": "path",
    "directory": "path",
    "enable_prefix_caching": "prefix_cache",
    "eos_token_id": "stop_token_ids",
    "file": "path",
    "files": "path",
    "folder": "path",
    "gpu_memory_utilization": "memory_fraction",
    "grammar": "structured.grammar",
    "guided_choice": "structured.choice",
    "guided_decoding": "structured",
    "guided_grammar": "structured.grammar",
    "guided_json": "structured.json_schema",
    "guided_regex": "structured.regex",
    "id_column": "id",
    "json_schema": "structured.json_schema",
    "logits_bias": "logit_bias",
    "max_batch_size": "max_num_seqs",
    "max_completion_tokens": "max_tokens",
    "max_gen_toks": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_num_batched_tokens": "max_batched_tokens",
    "max_output_tokens": "max_tokens",
    "max_rows": "limit",
    "max_seq_len": "max_model_len",
    "max_thinking_tokens": "max_reasoning_tokens",
    "max_seq_length": "max_model_len",
    "min_length": "min_tokens",
    "min_new_tokens": "min_tokens",
    "model": "path",
    "model_name_or_path": "path",
    "n_predict": "max_tokens",
    "name": "path",
    "num_gpu_blocks_override": "num_blocks",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "num_samples": "n",
    "page_size": "block_size",
    "pretrained": "path",
    "prompt_column": "prompt",
    "random_seed": "seed",
    "regex": "structured.regex",
    "rep_penalty": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
    "repo_id": "path",
    "response_format": "structured.json_schema",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "stop_words": "stop",
    "structured_outputs": "structured",
    "system_message": "system_template",
    "system_prompt": "system_template",
    "temp": "temperature",
    "thinking_budget": "max_reasoning_tokens",
    "thinking_token_budget": "max_reasoning_tokens",
    "top_logprobs": "logprobs",
    "torch_dtype": "dtype",
}


def schema_problems(error: ValidationError, root: MappingNode) -> list[Problem]:
    """Return the problems of a job file, each where the file or an override has it."""
    return [_problem(item, root) for item in error.errors(include_url=False)]


def values_problem(error: ValidationError, section: str) -> str:
    """Return the first problem of values for `section` that do not come from a job file."""
    item = error.errors(include_url=False)[0]
    key = _key(item)
    if item["type"] == "extra_forbidden":
        return f"{dotted(key)}: unknown key; {_advice((section, *key))}"
    if item["type"] == "value_error":
        return f"{dotted(key)}: {item['ctx']['error']}"
    got = repr(item["input"])
    got = got if len(got) <= 60 else f"{got[:60]}…"
    return f"{dotted(key)}: {_expectation(item)}, got {got}{_instead(key, item)}"


def section_keys(*sections: str) -> list[str]:
    """Return the keys of a section or subsection, or of the whole file without a name; empty for an unknown name."""
    model: type[BaseModel] = JobSpec
    for name in sections:
        kind = model.model_fields[name].annotation if name in model.model_fields else None
        models = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def _problem(item: Mapping[str, Any], root: MappingNode) -> Problem:
    key = _key(item)
    found = find(root, key)
    if item["type"] == "missing":
        return Problem(found.where, key, "missing, and it has no default; add it")
    if item["type"] == "extra_forbidden":
        return Problem(found.where, key, f"unknown key; {_advice(key)}")
    got = "" if found.node is None else f", got {quoted(found.node)}"
    if item["type"] == "value_error":  # raised in job_spec.py; messages about a section quote its values
        return Problem(found.where, key, f"{item['ctx']['error']}{'' if isinstance(found.node, MappingNode) else got}")
    return Problem(found.where, key, f"{_expectation(item)}{got}{_instead(key, item)}")


def _key(item: Mapping[str, Any]) -> Key:
    """Return pydantic's location of an error without the tags of a union's branches."""
    return tuple(part for part in item["loc"] if part not in BRANCHES)


def _expectation(item: Mapping[str, Any]) -> str:
    limits = {name: f"{value:g}" if isinstance(value, float) else value for name, value in item.get("ctx", {}).items()}
    return f"expected {_EXPECTED[item['type']].format_map(limits)}"


def _instead(key: Key, item: Mapping[str, Any]) -> str:
    """Return what to write instead of a number that stands for `off` or `all` in other tools, or nothing."""
    is_negative = item["type"].startswith("greater_than") and item["input"] < 0
    way = _INSTEAD_OF_NEGATIVE.get(str(key[-1])) if is_negative else None
    return f"; {way}" if way else ""


def _advice(key: Key) -> str:
    *sections, name = (str(part) for part in key)
    known = section_keys(*sections)
    near = FOREIGN_NAMES.get(name)
    if near and _is_key(near, sections):
        return f"did you mean {near}?"
    if name in _FOREIGN_WAYS:
        return _FOREIGN_WAYS[name]
    elsewhere = [section for section in section_keys() if name in section_keys(section)]
    if elsewhere:
        return f"did you mean {' or '.join(f'{section}.{name}' for section in elsewhere)}?"
    nearest = get_close_matches(name, known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"known here: {', '.join(known)}"


def _is_key(name: str, sections: Sequence[str]) -> bool:
    """Return whether a section has a key, which may be that of a subsection: `structured.regex`."""
    *inner, last = name.split(".")
    return last in section_keys(*sections, *inner)
