"""Follows one completion from its thinking to its answer. Knows tokens and tags; knows no request and no row.

BEGINNING  whether the completion thinks is not known yet: its tokens may still become the begin tag
THINKING   until the end tag is complete; at the budget the end tag is forced, one token a step
GAP        whitespace after the end tag, a few tokens at most
ANSWER     from the first token of the answer on, also in a completion that does not think
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from batchgen.plan.token_store import TokenIds
from batchgen.prompts.detokenize import Detokenizer, StopStringMatcher, TextSearch
from batchgen.prompts.grammar import GrammarConstraint
from batchgen.prompts.reasoning import MAX_WHITESPACE, Reasoning, TagAtBeginning

if TYPE_CHECKING:
    from batchgen.sampling_params import SamplingParams

TokensBefore: TypeAlias = Sequence[int] | TokenIds


class Phase(Enum):
    """The part of a completion that its next token belongs to."""

    BEGINNING = auto()
    THINKING = auto()
    GAP = auto()
    ANSWER = auto()


class AnswerConditions(NamedTuple):
    """What ends an answer, and what its tokens may be. The callables take the tokens whose text it follows."""

    model_end_token_ids: frozenset[int]  # they end its thinking too
    stop_token_ids: frozenset[int]
    make_stop: Callable[[TokensBefore], StopStringMatcher | None]
    make_constraint: Callable[[TokensBefore], GrammarConstraint | None]
    before: TokensBefore  # of a completion that does not think


class Texts(NamedTuple):
    """The texts of a completion."""

    completion: str | None  # None: no answer has begun
    reasoning: str | None = None  # None: it did not think


class Thinking:
    """Implements the engine's `Thinking`, and its `TokenConstraint` where tags may come or are forced.

    `is_open`: the prompt ends inside the thinking, so that the completion begins there.
    """

    def __init__(
        self, reasoning: Reasoning, params: SamplingParams, conditions: AnswerConditions, *, is_open: bool
    ) -> None:
        self._reasoning = reasoning
        self._params = params
        self._conditions = conditions
        self._is_open = is_open
        self._all_end_token_ids = conditions.model_end_token_ids | conditions.stop_token_ids
        self._phase = Phase.BEGINNING
        self._ids: list[int] = []  # the tokens before the answer
        self._candidates = [TagAtBeginning(tag, reasoning) for tag in (reasoning.begin, reasoning.direct) if tag]
        self._start: int | None = None  # of the thinking, in `_ids`; None: the completion does not think
        self._stop: int | None = None  # None: the text of the end tag is within the thinking
        self._num_opening = 0  # tokens before the first that counts as thinking
        self._gap_start = 0
        self._forced: Sequence[int] = ()  # tokens of the end tag still to come
        self._search: TextSearch | None = None  # for an end tag that various tokens may spell
        self._head = ""  # text of the answer in the token that completes the end tag
        self._form = conditions.make_constraint(conditions.before)
        self.stop_condition: StopStringMatcher | None = None  # of the answer, as soon as it has begun
        if is_open:
            self._begin_thinking(start=0)

    @property
    def is_over(self) -> bool:
        """Whether the answer has begun."""
        return self._phase is Phase.ANSWER

    @property
    def has_thought(self) -> bool:
        """Whether the thinking has begun; it may be empty."""
        return self._start is not None

    @property
    def num_tokens(self) -> int:
        """The number of tokens before the answer."""
        return len(self._ids)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end the completion if one of them comes next; whitespace before the answer does not."""
        if self._phase is Phase.THINKING:
            return self._conditions.model_end_token_ids
        if self._phase is not Phase.GAP:
            return self._all_end_token_ids
        return frozenset(token for token in self._all_end_token_ids if not self._reasoning.is_whitespace(token))

    @property
    def constraint(self) -> Thinking | GrammarConstraint | None:
        """What decides about the next token: the form, together with tags and whitespace as long as they may come."""
        if self._phase is Phase.ANSWER:
            return self._form
        return None if self._form is None and not self._forced else self

    @property
    def error(self) -> str | None:
        """Why no token is allowed; None: not known."""
        if self._forced:
            return "bad_words forbids the end tag of the thinking, which max_reasoning_tokens requires"
        return None if self._form is None else self._form.error

    def allowed(self) -> npt.NDArray[np.uint8]:
        """Return the forced token, or what the form allows together with the tag or whitespace that may precede it."""
        if self._forced:
            return self._reasoning.bitmask(self._forced[:1])
        assert self._form is not None, "nothing decides about the next token"
        if self._phase is Phase.BEGINNING:
            other = self._reasoning.bitmask(token for each in self._candidates for token in each.next_token_ids())
        else:
            other = self._reasoning.breaks if self._num_gap_tokens < MAX_WHITESPACE else self._reasoning.bitmask(())
        return other | self._form.allowed()[: len(other)]

    @property
    def needs_results(self) -> bool:
        """Whether what may come after the next token depends on which one it is."""
        if self._params.structured is not None:
            return True
        if self._phase is Phase.ANSWER:
            return False
        budget = self._params.max_reasoning_tokens
        is_at_budget = budget is not None and self._num_thought_tokens + 1 >= budget
        return self._params.min_tokens > 0 or (is_at_budget and self._phase is not Phase.GAP)

    def feed(self, token_id: int) -> bool:
        """Take the next token, which is no end token; return whether the completion ends with it."""
        if self._phase is Phase.GAP and not self._is_in_gap(token_id):
            self._begin_answer(self._ids)
        if self._phase is Phase.ANSWER:
            return self._feed_answer(token_id)
        self._ids.append(token_id)
        if self._phase is Phase.BEGINNING:
            return self._feed_beginning(token_id)
        return self._phase is Phase.THINKING and self._feed_thinking(token_id)

    def close(self, end_token_id: int | None) -> None:
        """Take note that the completion has ended: tokens that might have become a tag are its answer.

        `end_token_id`: the end token that ended it, if one did.
        """
        is_found = self._phase is Phase.BEGINNING and self._begin_answer_at_once()
        if end_token_id is not None and self.stop_condition is not None and not is_found:
            self.stop_condition.end(end_token_id)

    def texts(self, token_ids: Sequence[int], detokenizer: Detokenizer) -> Texts:
        """Return the texts of the first tokens of the completion; tags and the whitespace beside them are left out."""
        reasoning = None if self._start is None else self._reasoning_text(self._start, token_ids, detokenizer)
        if self._phase is Phase.THINKING or (self.has_thought and len(token_ids) < self._gap_start):
            return Texts(None, reasoning)
        before = self._ids or self._conditions.before
        answer = detokenizer.decode(token_ids[len(self._ids) :], detokenizer.preceding(before))
        return Texts(self.answer_text(answer), reasoning)

    def answer_text(self, text: str) -> str:
        """Return the answer, of which `text` is what its own tokens add."""
        text = self._head + text
        return text.lstrip() if self._ids else text

    # Beginning

    def _feed_beginning(self, token_id: int) -> bool:
        is_complete_form = self._form is not None and self._form.feed(token_id)
        for candidate in self._candidates:
            candidate.feed(token_id)
        self._candidates = [candidate for candidate in self._candidates if candidate.is_alive]
        found = next((candidate.tag for candidate in self._candidates if candidate.is_complete), None)
        if found is self._reasoning.begin:
            self._begin_thinking(start=len(self._ids) if found.is_exact else 0)
        elif found is not None:
            self._begin_gap()
        elif not self._candidates or is_complete_form or self._is_full_of_whitespace():
            return self._begin_answer_at_once() or is_complete_form
        return False

    def _is_full_of_whitespace(self) -> bool:
        """Whether the completion has `max_tokens` tokens, and no tag has begun among them."""
        is_full = self._params.max_tokens is not None and len(self._ids) >= self._params.max_tokens
        return is_full and not any(candidate.has_begun for candidate in self._candidates)

    def _begin_answer_at_once(self) -> bool:
        """Begin an answer without thinking, whose tokens are those so far; return whether it ends with them."""
        token_ids, self._ids = self._ids, []
        stop = self._begin_answer(self._conditions.before)
        return stop is not None and any(map(stop.feed, token_ids))

    # Thinking

    @property
    def _num_thought_tokens(self) -> int:
        return len(self._ids) - self._num_opening if self._phase is Phase.THINKING else 0

    def _begin_thinking(self, start: int) -> None:
        self._phase, self._start, self._num_opening, self._form = Phase.THINKING, start, len(self._ids), None
        if not self._reasoning.end.is_exact:
            self._search = TextSearch(self._reasoning.detokenizer, [self._reasoning.end.text])
            for token_id in self._ids[-1:]:  # it may have text behind the begin tag
                self._search.feed(token_id)
        self._force_at_budget()

    def _feed_thinking(self, token_id: int) -> bool:
        if self._forced:
            self._forced = self._forced[1:]
            return not self._forced and self._end_thinking()
        if self._search is not None:
            self._search.feed(token_id)
            if self._search.found is not None:
                text = self._search.text_of(self._search.ids)
                return self._end_thinking(text[self._search.found + len(self._reasoning.end.text) :].lstrip())
        elif self._num_end_tokens() == len(self._reasoning.end.token_ids):
            self._stop = len(self._ids) - len(self._reasoning.end.token_ids)
            return self._end_thinking()
        self._force_at_budget()
        return False

    def _force_at_budget(self) -> None:
        budget, end = self._params.max_reasoning_tokens, self._reasoning.end.token_ids
        if budget is not None and self._num_thought_tokens >= budget:
            num_there = 0 if self._search is not None else self._num_end_tokens()
            self._forced, self._stop = end[num_there:], len(self._ids) - num_there

    def _num_end_tokens(self) -> int:
        """Return how many tokens of the end tag the thinking ends with."""
        end, num_thought = self._reasoning.end.token_ids, len(self._ids) - (self._start or 0)
        lengths = range(min(len(end), num_thought), 0, -1)
        return next((length for length in lengths if tuple(self._ids[-length:]) == end[:length]), 0)

    def _end_thinking(self, head: str = "") -> bool:
        """End the thinking; return whether the answer is complete with `head`, its text in the token of the end tag."""
        self._begin_gap()
        if not head:
            return False
        self._head = head
        self._begin_answer(self._ids)
        return self._form is not None and [self._form.feed(token_id) for token_id in self._reasoning.encode(head)][-1]

    def _reasoning_text(self, start: int, token_ids: Sequence[int], detokenizer: Detokenizer) -> str:
        is_cut = self._stop is not None or self._phase is Phase.THINKING
        text = detokenizer.decode(token_ids[start : len(self._ids) if self._stop is None else self._stop])
        if self._num_opening and not self._reasoning.begin.is_exact:
            text = text.partition(self._reasoning.begin.text)[2]
        if not is_cut:
            text = text.partition(self._reasoning.end.text)[0]
        text = text.lstrip()
        if self._is_open:  # a model may repeat the tag that its prompt ends with
            text = text.removeprefix(self._reasoning.begin.text).lstrip()
        return text if self._phase is Phase.THINKING else text.rstrip()

    # Answer

    @property
    def _num_gap_tokens(self) -> int:
        return len(self._ids) - self._gap_start

    def _is_in_gap(self, token_id: int) -> bool:
        return self._num_gap_tokens < MAX_WHITESPACE and self._reasoning.is_whitespace(token_id)

    def _begin_gap(self) -> None:
        self._phase, self._gap_start = Phase.GAP, len(self._ids)
        self._form = self._conditions.make_constraint(self._ids)

    def _begin_answer(self, before: TokensBefore) -> StopStringMatcher | None:
        self._phase = Phase.ANSWER
        self.stop_condition = self._conditions.make_stop(before)
        return self.stop_condition

    def _feed_answer(self, token_id: int) -> bool:
        watchers = (self.stop_condition, self._form)
        return any(watcher.feed(token_id) for watcher in watchers if watcher is not None)
