"""Reads `input.chat_template`: a template's text, a file with it, or a name. Knows no tokenizer and no row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from batchgen.errors import SpecError

_MARKUP = re.compile(r"\{[{%#]")
# Set by other keys or by the chat itself, or an argument of transformers' `apply_chat_template`.
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"}
    | {"conversation", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"}
    | {"return_assistant_tokens_mask", "sanitize_control_tokens", "tokenizer_kwargs", "self"}
)


def is_template(text: str) -> bool:
    """Return whether the value of `input.chat_template` is a template itself: any Jinja markup makes it one."""
    return _MARKUP.search(text) is not None


def is_file_name(text: str, folder: Path) -> bool:
    """Return whether it names a file: a path with `/`, the suffix `.jinja`, or a file in `folder`."""
    return not is_template(text) and ("/" in text or text.endswith(".jinja") or (folder / text).is_file())


def read_template(path: Path) -> str:
    """Return the template in a file. Raises SpecError if there is none."""
    try:
        template = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError([f"no such file: {path}"]) from None
    except UnicodeDecodeError:
        raise SpecError([f"{path} is not UTF-8 text; save it as UTF-8"]) from None
    except OSError as error:
        raise SpecError([f"{path} cannot be read: {error.strerror}"]) from None
    if not is_template(template):
        raise SpecError([f"{path} is not a Jinja template: it has neither {{{{ nor {{%"])
    return template


def reserved_variables(names: Iterable[str]) -> list[str]:
    """Return the names that `input.chat_template_kwargs` may not set."""
    return sorted(_RESERVED.intersection(names))
