"""What transformers prints while it reads a model: its bars, warnings, and its report of tensors. Knows no model."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from transformers import modeling_gguf_pytorch_utils, modeling_utils
from transformers.utils import logging as transformers_logging

from batchgen.models.gguf_file import patched

log = logging.getLogger("batchgen")


@contextmanager
def as_loud_as_the_log() -> Iterator[None]:
    """Show bars on a terminal only, and clear them at the end; with --quiet show neither bars nor warnings."""
    is_quiet = not log.isEnabledFor(logging.INFO)
    options = {"disable": True if is_quiet else None, "leave": False}  # None: tqdm asks whether stderr is a terminal

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return factory(*args, **{**kwargs, **options})

    gguf_loader: Any = modeling_gguf_pytorch_utils  # transformers' hook does not reach its bar
    previous, verbosity = transformers_logging.set_tqdm_hook(hook), transformers_logging.get_verbosity()
    if is_quiet:
        transformers_logging.set_verbosity(max(verbosity, logging.ERROR))
    try:
        with patched(gguf_loader, "tqdm", partial(gguf_loader.tqdm, **options)):
            yield
    finally:
        transformers_logging.set_tqdm_hook(previous)
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def load_report_only_if_it_fails() -> Iterator[None]:
    """Hold back transformers' report of tensors, to which the message of a failed conversion refers."""
    logger, reports = logging.getLogger(modeling_utils.__name__), []
    verbosity, level = transformers_logging.get_verbosity(), logger.level

    def hold_back(record: logging.LogRecord) -> bool:
        if "LOAD REPORT" not in record.getMessage():
            return record.levelno >= verbosity
        reports.append(re.sub("\x1b\\[[0-9;]*m", "", record.getMessage()))
        return False

    logger.addFilter(hold_back)
    # The report is made even if warnings are not to be shown. With a level of its own above this one, transformers
    # would also verify a plan for tensor parallelism.
    logger.setLevel(logging.INFO)
    try:
        yield
    except Exception:
        for report in reports:
            log.warning("%s", report)
        raise
    finally:
        logger.removeFilter(hold_back)
        logger.setLevel(level)
