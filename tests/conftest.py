"""What every test runs with: no network, a fixed seed, one thread. Imports torch only where a test already has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import torch

    from batchgen.io.remote import RemotePath

# Before transformers or tokenizers are imported by a test file: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Before triton is imported: its kernels run in its interpreter, on the CPU. Tests that compile start a fresh process.
os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("full", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=10)  # of 100: see examples.py
settings.load_profile("full")


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    """Seed torch and hold it to one thread, in the tests that use torch: two wait for each other over tiny matrices."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(0)
        torch.set_num_threads(1)


@pytest.fixture
def nan_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory nobody wrote is noticed: `torch.empty` and `torch.empty_like` give NaN (integers: the smallest value)."""
    import torch

    def filled(make: Any) -> Any:
        def make_filled(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor: torch.Tensor = make(*args, **kwargs)
            if tensor.dtype is torch.bool:
                return tensor
            unwritten = float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min
            return tensor.fill_(unwritten)

        return make_filled

    monkeypatch.setattr(torch, "empty", filled(torch.empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemotePath]:
    """An empty bucket of a store that can rename objects, and of one that cannot."""
    from batchgen.io.remote import RemotePath, locate
    from tests.object_store import install

    install(tmp_path / "store")
    path = locate(f"{request.param}://bucket")
    assert isinstance(path, RemotePath)
    yield path
    path.remove()
