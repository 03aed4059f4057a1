"""batchgen: offline batch generation over shared prefixes. Importing it loads no other room, so it is quick."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgen.job.run import run_job
    from batchgen.sampling_params import SamplingParams
    from batchgen.spec.job_spec import JobSpec
    from batchgen.spec.load import load_job

__all__ = ["JobSpec", "SamplingParams", "__version__", "load_job", "run_job"]
__version__ = "0.1.0"

_ROOMS = {
    "JobSpec": "batchgen.spec.job_spec",
    "SamplingParams": "batchgen.sampling_params",
    "load_job": "batchgen.spec.load",
    "run_job": "batchgen.job.run",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ROOMS[name]), name)
