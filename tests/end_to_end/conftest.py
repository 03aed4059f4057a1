"""Fixtures of the end-to-end tests; what they give is in `harness.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchgen.stats import plots
from tests.end_to_end.harness import ModelFolders, TinyRunner


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    return ModelFolders(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def _quick_ends() -> Iterator[None]:
    """No plot is drawn (tests/stats draws them) and no disk is waited for: they take most of the time of a tiny job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "plot_blocks", lambda *_: plots.Plot("<svg></svg>", "<svg></svg>"))
        patch.setattr(plots, "plot_rows", lambda *_: plots.Plot("<svg></svg>", "<svg></svg>"))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def run_tiny(tmp_path: Path, model_folders: ModelFolders) -> TinyRunner:
    """Runs jobs on tiny models in `tmp_path`."""
    return TinyRunner(tmp_path, model_folders)
