"""Check and time batchgen on a GPU node: one command, 6 minutes at most. It has not run on a GPU yet.

    python scripts/gpu_check.py                all steps
    python scripts/gpu_check.py --minutes 3    fewer: steps that would pass the budget are skipped and named
    python scripts/gpu_check.py --dry-run      every step with tiny shapes on a CPU, in Triton's interpreter

Runs from a checkout without install; needs torch, triton, transformers and numpy. A step that fails is printed with its
reason, the others go on, and the exit code is 1. A table for people; the last line is JSON.

Knows the order of the steps, their time and how they are shown. `gpu_steps.py` knows what they do; it is imported
late, because triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Step:
    """One check or measurement: work to do with the seconds it may take."""

    name: str
    seconds: float  # what it is expected to take at most on a data-centre GPU; workloads stop there
    work: Callable[[float], dict[str, Any]]  # given the seconds it has


@dataclass(frozen=True, slots=True)
class Result:
    """How a step went: exactly one of figures, error and skipped."""

    name: str
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    skipped: str | None = None


def main() -> None:
    """Run what fits the budget, and end with 1 if anything failed."""
    options = parse()
    prepare_process(options.dry_run)
    steps, device = load_steps(options.dry_run)
    print(f"{device}, {' '.join(f'{name} {version}' for name, version in versions().items())}", flush=True)
    results = run_steps(steps, options.minutes * 60)
    print_summary(results)
    print(json.dumps(finite(document(results, device, options.dry_run)), allow_nan=False))
    sys.exit(any(result.error for result in results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check and time batchgen on a GPU.")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on a CPU, in Triton's interpreter")
    parser.add_argument("--minutes", type=float, default=6.0, help="budget; steps that would pass it are skipped")
    return parser.parse_args()


def prepare_process(is_dry: bool) -> None:
    """The checkout on the path, and the interpreter on or off before triton is imported."""
    sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
    os.environ.pop("TRITON_INTERPRET", None)
    if is_dry:
        os.environ["TRITON_INTERPRET"] = "1"


def load_steps(is_dry: bool) -> tuple[list[Step], str]:
    """The steps and the device's name; ends the process where there is no GPU and none is pretended."""
    import torch

    if not is_dry and not torch.cuda.is_available():
        sys.exit("gpu_check: torch finds no usable GPU here; --dry-run walks through the steps on a CPU")
    from scripts.gpu_steps import Bench

    bench = Bench.dry() if is_dry else Bench.real()
    device = platform.processor() or platform.machine() if is_dry else torch.cuda.get_device_name()
    return [
        Step("limits", 10, bench.limits),
        Step("draws equal the host's", 5, bench.draws),
        *(
            Step(f"{str(dtype).removeprefix('torch.')} kernels equal float32", 20, partial(bench.correctness, dtype))
            for dtype in bench.scale.dtypes
        ),
        Step("engine equals generate", 20, bench.parity),
        Step("graphs and lag equal the plain loop", 20, bench.loop),
        Step("decode attention", 15, bench.decode),
        Step("decode attention in a CUDA graph", 15, bench.decode_graph),
        Step("prefill attention", 10, bench.prefill),
        Step("memory of the largest steps", 5, bench.memory),
        Step("W1", 70, bench.w1),
        Step("W1 idle share", 15, bench.idle),
        Step("W3 shared path on", 35, bench.w3_shared),
        Step("W3 shared path off", 35, bench.w3_plain),
        Step("W1 transformers", 45, bench.peer),
    ], device


def run_steps(steps: list[Step], budget: float) -> list[Result]:
    """All that fit into `budget` seconds, in order; each is printed when it ends."""
    begin = time.perf_counter()
    results = []
    for step in steps:
        left = budget - (time.perf_counter() - begin)
        if step.seconds > left:
            result = Result(step.name, skipped=f"takes up to {step.seconds:.0f} s and {max(left, 0):.0f} s are left")
        else:
            result = run_step(step)
        print_result(result)
        results.append(result)
    return results


def run_step(step: Step) -> Result:
    """Whatever goes wrong in it is its result."""
    begin = time.perf_counter()
    try:
        figures, error = step.work(step.seconds), None
    except Exception as cause:  # the next step may still work
        figures, error = {}, f"{type(cause).__name__}: {' '.join(str(cause).split())[:500]}"
    gc.collect()  # models and pools of this step
    return Result(step.name, time.perf_counter() - begin, figures, error)


def print_result(result: Result) -> None:
    state = "FAILED" if result.error else "skipped" if result.skipped else "ok"
    print(f"{result.name:34} {state:8} {result.seconds:6.1f} s  {result.error or result.skipped or ''}", flush=True)
    for name, value in result.figures.items():
        print(f"    {name:44} {value:,.4g}" if isinstance(value, float) else f"    {name:44} {value}", flush=True)


def print_summary(results: list[Result]) -> None:
    for word, names in (
        ("failed", [result.name for result in results if result.error]),
        ("skipped", [result.name for result in results if result.skipped]),
    ):
        print(f"{word}: {', '.join(names) or 'none'}")


def document(results: list[Result], device: str, is_dry: bool) -> dict[str, Any]:
    """Everything, for the last line."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "dry_run": is_dry,
        "versions": {"python": platform.python_version(), **versions()},
        "steps": [asdict(result) for result in results],
    }


def finite(value: Any) -> Any:
    """JSON has no NaN: a share of a limit that could not be measured becomes null."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


if __name__ == "__main__":
    main()
