"""A .gguf file's header parsed once and quickly, where transformers asks the gguf package for it again and again.

transformers has the package parse the file for the config, for the tokenizer and for the weights, and make its table of
tensor names for every module of the model. Knows these questions; knows nothing of what is in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from batchgen.models.checkpoint import Checkpoint


@contextmanager
def parsed_once(checkpoint: Checkpoint) -> Iterator[None]:
    """In the block the gguf package answers each question once; of a checkpoint in other files nothing is asked."""
    if checkpoint.gguf_file is None:
        yield
        return
    import gguf  # an extra, and not quick to import

    reader, table = cache(_quick_reader(gguf.GGUFReader)), cache(gguf.get_tensor_name_map)
    with replaced(gguf, "GGUFReader", reader), replaced(gguf, "get_tensor_name_map", table):
        yield


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """In the block `module.name` is `value`."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _quick_reader(reader: Any) -> Any:
    class QuickReader(reader):  # type: ignore[misc]
        """Slices the mapped file as a plain array: two thirds of the time went into numpy's bookkeeping of maps."""

        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._data = np.asarray(mapped)

    return QuickReader
