"""Fixtures of the end-to-end tests; what they give is in `harness.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.end_to_end.harness import ModelFolders, TinyRunner


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    return ModelFolders(tmp_path_factory.mktemp("models"))


@pytest.fixture
def run_tiny(tmp_path: Path, model_folders: ModelFolders) -> TinyRunner:
    """Runs jobs on tiny models in `tmp_path`, on one thread: their matrices are too small to be shared out."""
    torch.set_num_threads(1)
    return TinyRunner(tmp_path, model_folders)
