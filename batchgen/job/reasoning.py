"""Decides which tags mark the thinking of a job's model. Knows the job file and the model; knows no row."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from batchgen.errors import SpecError
from batchgen.models.load import ModelInfo
from batchgen.prompts.reasoning import Reasoning, find_tags, given_tags
from batchgen.spec.chat_template import is_template
from batchgen.spec.load import Job

log = logging.getLogger("batchgen")


def resolve_reasoning(job: Job, model: ModelInfo) -> Reasoning | None:
    """Return the tags of the model's thinking; None for a job that keeps it in the completions. Raises SpecError."""
    output = job.spec.output
    if output.reasoning == "keep":
        return None
    given = output.reasoning_tags
    tags = find_tags(model.tokenizer, _templates(job, model)) if given is None else given_tags(*given)
    if tags is None:
        raise SpecError(
            [
                f"{job.path}: output.reasoning: {output.reasoning}: it is not known how this model marks its thinking, "
                "as neither its chat template nor its tokenizer has a known pair of tags; "
                "give both with output.reasoning_tags, or set output.reasoning: keep"
            ]
        )
    log.info("thinking is what stands between %s and %s", *tags[:2])
    try:
        return Reasoning(model.tokenizer, tags, model.vocab_size)
    except ValueError as error:
        raise SpecError([f"{job.path}: output.reasoning_tags: {error}"]) from None


def _templates(job: Job, model: ModelInfo) -> Iterator[str]:
    """Yield the template that the job file has, if it has one, and those of the checkpoint."""
    given, own = job.spec.input.chat_template, model.tokenizer.chat_template
    if given is not None and is_template(given):
        yield given
    yield from own.values() if isinstance(own, dict) else [own] if own else []
