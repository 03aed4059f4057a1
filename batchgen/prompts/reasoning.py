"""How thinking is marked in the tokens of one model: the tags around it, and where a prompt leaves it open.

Knows the tags of published models; knows no request and no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from batchgen.prompts.detokenize import Detokenizer, TokenTexts
from batchgen.prompts.sampling_encoder import WordEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from batchgen.plan.token_store import TokenIds

MAX_WHITESPACE = 4  # whitespace tokens before the first tag, and behind the last one, that are no part of the answer
_BREAKS = ("\n", "\n\n", " ")  # those of them that a row with a form may have


class ReasoningTags(NamedTuple):
    """The texts around the thinking of a model."""

    begin: str
    end: str
    direct: str | None = None  # what begins an answer without thinking, where that is marked too


_KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("◁think▷", "◁/think▷"),
    ReasoningTags("<thought>", "</thought>"),
    ReasoningTags(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
    ),
)


def find_tags(tokenizer: PreTrainedTokenizerFast, templates: Iterable[str]) -> ReasoningTags | None:
    """Return the known tags that occur in one of the chat templates or are tokens; None if none do."""
    templates, vocab = list(templates), tokenizer.get_vocab()
    in_template = (tags for tags in _KNOWN if any(_has_tags(template, tags) for template in templates))
    in_vocab = (tags for tags in _KNOWN if tags.begin in vocab and tags.end in vocab)
    return next(in_template, None) or next(in_vocab, None)


def given_tags(begin: str, end: str) -> ReasoningTags:
    """Return the tags that a job file gives, with what is known of them."""
    return next((tags for tags in _KNOWN if tags[:2] == (begin, end)), ReasoningTags(begin, end))


def _has_tags(template: str, tags: ReasoningTags) -> bool:
    return tags.begin in template and (tags.direct or tags.end) in template


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag in the tokens of one model."""

    text: str
    token_ids: tuple[int, ...]  # as the tokenizer encodes it inside a text
    is_exact: bool  # it begins and ends with added tokens, so that other tokens with the same text are not the tag


class Reasoning:
    """The tags of one model, which has `vocab_size` token ids. Raises ValueError for a tag that it cannot generate."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tags: ReasoningTags, vocab_size: int) -> None:
        self.tags = tags
        self.vocab_size = vocab_size
        self.detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        self._words = WordEncoder(tokenizer)
        self._added = {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
        self._texts = TokenTexts(tokenizer)
        self.begin, self.end = self._tag(tags.begin), self._tag(tags.end)
        self.direct = None if tags.direct is None else self._tag(tags.direct)
        breaks = (token_id for text in _BREAKS if (token_id := self._words.single_token(text)) is not None)
        self.breaks = self.bitmask(token_id for token_id in breaks if token_id < vocab_size)
        in_tags = "".join(text for text in tags if text is not None)
        self._borders = np.array([token_id for token_id, text in self._added.items() if text not in in_tags], np.int64)

    @property
    def num_extra_tokens(self) -> int:
        """The most tokens that a completion can have besides its thinking and its answer."""
        return len(self.begin.token_ids) + len(self.end.token_ids) + 2 * MAX_WHITESPACE

    def is_open_after(self, prompt: TokenIds) -> bool | None:
        """Return whether a prompt ends inside the thinking of its last turn; None if that has no tag.

        A turn begins behind the last added token that is no part of a tag.
        """
        borders = np.flatnonzero(np.isin(prompt, self._borders))
        turn = prompt[int(borders[-1]) + 1 if len(borders) else 0 :]
        closing = [self.end] if self.direct is None else [self.end, self.direct]
        if self.begin.is_exact and self.end.is_exact:
            begun, ended = _last(turn, self.begin), max(_last(turn, tag) for tag in closing)
        else:
            text = self.detokenizer.decode(turn.tolist())
            begun, ended = text.rfind(self.begin.text), max(text.rfind(tag.text) for tag in closing)
        return None if begun == ended else begun > ended

    def is_whitespace(self, token_id: int) -> bool:
        """Return whether the text of a token is whitespace."""
        return self._texts[token_id].isspace()

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text inside another one."""
        return self._words.token_sequences(text)[0]

    def bitmask(self, token_ids: Iterable[int]) -> npt.NDArray[np.uint8]:
        """Return the bit mask of these tokens, as long as the model's vocabulary."""
        is_in = np.zeros(self.vocab_size, np.bool_)
        is_in[list(token_ids)] = True
        return np.packbits(is_in, bitorder="little")

    def _tag(self, text: str) -> Tag:
        sequences = self._words.token_sequences(text)
        token_ids = sequences[0] if sequences else ()
        if not token_ids or max(token_ids) >= self.vocab_size:
            raise ValueError(f"the model has no tokens for {text!r}")
        if self.detokenizer.decode(token_ids, self.detokenizer.inside).strip() != text.strip():
            raise ValueError(f"the model has no tokens for {text!r}")
        return Tag(text, token_ids, is_exact=token_ids[0] in self._added and token_ids[-1] in self._added)


class TagAtBeginning:
    """Decides whether a completion begins with a tag, except for whitespace."""

    def __init__(self, tag: Tag, reasoning: Reasoning) -> None:
        self.tag = tag
        self.is_alive = True
        self.is_complete = False
        self._reasoning = reasoning
        self._num_whitespace = 0
        self._ids: list[int] = []  # of the tokens from the tag on

    @property
    def has_begun(self) -> bool:
        """Whether there is more than whitespace."""
        return bool(self._ids)

    def next_token_ids(self) -> Sequence[int]:
        """Return the token that continues the tag as the tokenizer encodes it, if the tokens so far are those."""
        num_tokens = len(self._ids)
        is_encoded = tuple(self._ids) == self.tag.token_ids[:num_tokens]
        return self.tag.token_ids[num_tokens : num_tokens + 1] if is_encoded else ()

    def feed(self, token_id: int) -> None:
        """Take the next token of the completion."""
        if not self._ids and self._num_whitespace < MAX_WHITESPACE and self._reasoning.is_whitespace(token_id):
            self._num_whitespace += 1
            return
        self._ids.append(token_id)
        if self.tag.is_exact:
            self.is_alive = tuple(self._ids) == self.tag.token_ids[: len(self._ids)]
            self.is_complete = tuple(self._ids) == self.tag.token_ids
        else:
            text = self._reasoning.detokenizer.decode(self._ids).lstrip()
            self.is_complete = text.startswith(self.tag.text)
            self.is_alive = self.is_complete or self.tag.text.startswith(text)


def _last(token_ids: TokenIds, tag: Tag) -> int:
    """Return where a tag begins for the last time; -1 if it does not occur."""
    starts = np.flatnonzero(token_ids == tag.token_ids[0])[::-1].tolist()
    length = len(tag.token_ids)
    return next((start for start in starts if tuple(token_ids[start : start + length]) == tag.token_ids), -1)
