"""Check and time batchgen on a GPU machine with one command, in 6 minutes at most. It has not run on a GPU yet.

    python scripts/gpu_check.py                all steps
    python scripts/gpu_check.py --minutes 3    only the steps that fit this budget; the others are named as skipped
    python scripts/gpu_check.py --dry-run      every step with tiny shapes on a CPU, in Triton's interpreter

Runs from a checkout without an install, also as `python -m scripts.gpu_check`; needs torch, triton, transformers,
numpy and numba. A step that fails is printed with its reason, the others go on, and the exit code is 1. The last line
is JSON.

Knows the order of the steps, their time and how they are printed. The modules of scripts/gpu know what they do; they
are imported late, because triton reads TRITON_INTERPRET when it is imported.
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
    """One check or measurement, and the seconds that it may take."""

    name: str
    seconds: float  # at most, on a data-centre GPU; workloads stop there
    work: Callable[[float], dict[str, Any]]  # seconds -> figures by name


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a step: exactly one of figures, error and skipped."""

    name: str
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    skipped: str | None = None


def main() -> None:
    """Run the steps that fit the budget; exit with 1 if one failed."""
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
    """Put the checkout on the import path, and turn the interpreter on or off before triton is imported."""
    sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
    os.environ.pop("TRITON_INTERPRET", None)
    if is_dry:
        os.environ["TRITON_INTERPRET"] = "1"


def load_steps(is_dry: bool) -> tuple[list[Step], str]:
    """Return the steps and the device's name. Raises SystemExit without a GPU, unless the run is dry."""
    import torch

    if not is_dry and not torch.cuda.is_available():
        sys.exit("gpu_check: torch finds no usable GPU here; --dry-run walks through the steps on a CPU")
    from scripts.gpu import kernel_checks, kernel_times, memory, parity, throughput
    from scripts.gpu.machine import Machine, measure_limits

    machine = Machine.dry() if is_dry else Machine.real()

    def step(name: str, seconds: float, work: Callable[..., dict[str, Any]], **options: Any) -> Step:
        return Step(name, seconds, partial(work, machine, **options))

    return [
        step("limits", 10, measure_limits),
        step("draws equal the host's", 5, kernel_checks.check_draws),
        *(
            step(f"{name} kernels equal float32", 20, kernel_checks.check_kernels, dtype=getattr(torch, name))
            for name in machine.scale.dtypes
        ),
        step("engine equals generate", 20, parity.check_parity),
        step("graphs and lag equal the plain loop", 20, parity.check_loop),
        step("decode attention", 15, kernel_times.time_decode),
        step("decode attention in a CUDA graph", 15, kernel_times.time_decode_graph),
        step("prefill attention", 10, kernel_times.time_prefill),
        step("memory of the largest steps", 5, memory.measure_memory),
        step("W1", 70, throughput.time_w1),
        step("W1 idle share", 15, throughput.time_idle),
        step("W3 shared path on", 35, throughput.time_w3_shared),
        step("W3 shared path off", 35, throughput.time_w3_plain),
        step("W1 transformers", 45, throughput.time_transformers),
    ], platform.processor() or platform.machine() if is_dry else torch.cuda.get_device_name()


def run_steps(steps: list[Step], budget: float) -> list[Result]:
    """Run the steps that fit into `budget` seconds, in order; print each when it ends."""
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
    """Run a step; an exception becomes its result."""
    begin = time.perf_counter()
    try:
        figures, error = step.work(step.seconds), None
    except Exception as cause:  # the next step may still work
        figures, error = {}, f"{type(cause).__name__}: {' '.join(str(cause).split())[:500]}"
    gc.collect()  # frees models and KV pools of this step
    return Result(step.name, time.perf_counter() - begin, figures, error)


def print_result(result: Result) -> None:
    """Print a line for the step and one for each figure."""
    state = "FAILED" if result.error else "skipped" if result.skipped else "ok"
    print(f"{result.name:34} {state:8} {result.seconds:6.1f} s  {result.error or result.skipped or ''}", flush=True)
    for name, value in result.figures.items():
        print(f"    {name:44} {value:,.4g}" if isinstance(value, float) else f"    {name:44} {value}", flush=True)


def print_summary(results: list[Result]) -> None:
    """Print which steps failed and which were skipped."""
    for word, names in (
        ("failed", [result.name for result in results if result.error]),
        ("skipped", [result.name for result in results if result.skipped]),
    ):
        print(f"{word}: {', '.join(names) or 'none'}")


def document(results: list[Result], device: str, is_dry: bool) -> dict[str, Any]:
    """Return everything that the last line has."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "dry_run": is_dry,
        "versions": {"python": platform.python_version(), **versions()},
        "steps": [asdict(result) for result in results],
    }


def finite(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by None: a share of a limit that could not be measured."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return {name: metadata.version(name) for name in PACKAGES}


if __name__ == "__main__":
    main()
