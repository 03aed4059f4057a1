"""Where the time goes from process start to the first token: python -m scripts.bench.start jobs/quickstart.yaml

`batchgen run` is started a few times and interrupted at its first token; its log events mark the end of each part.
`--fresh` compiles the kernels in every run, as after installing. The output goes to a temporary folder, not to that of
the job. The fastest run is shown; the last line is JSON. On a busy machine set OMP_NUM_THREADS=1 and read the processor
time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

# event that ends a part -> the part
PARTS = {
    "job_started": "Python, imports, the job file",
    "model_inspected": "model, tokenizer and settings inspected",
    "input_read": "rows read and tokenised",
    "plan": "rows planned",
    "weights_loaded": "weights loaded",
    "first_token": "steps to the first token",
}


def measure(job_file: Path, *, fresh: bool) -> dict[str, float]:
    """Return seconds since the event before, by event, of one run. Raises SystemExit if it ends without a token."""
    with tempfile.TemporaryDirectory() as folder:
        override = f"output.path={folder}/out"
        command = [sys.executable, "-m", "batchgen", "run", str(job_file), "--log-format", "json", "--set", override]
        environment = {**os.environ, "NUMBA_CACHE_DIR": f"{folder}/kernels"} if fresh else None
        begin = time.time()
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if '"first_token"' in line:
                    process.send_signal(signal.SIGINT)
    if process.returncode != 128 + signal.SIGINT:
        sys.exit("".join(lines))
    return seconds_by_event(begin, lines)


def seconds_by_event(begin: float, lines: list[str]) -> dict[str, float]:
    """Return, for the events of PARTS in a JSON log, the seconds since the one before, or since `begin` (epoch)."""
    seconds = {}
    for record in map(json.loads, lines):
        if record["event"] in PARTS:
            now = datetime.fromisoformat(record["time"]).timestamp()
            seconds[record["event"]], begin = now - begin, now
    return seconds


def main() -> None:
    """Print a line for each part of the fastest run, and JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job_file", type=Path)
    parser.add_argument("--repeat", type=int, default=3, metavar="RUNS")
    parser.add_argument("--fresh", action="store_true", help="compile the kernels in every run")
    arguments = parser.parse_args()
    runs = [measure(arguments.job_file, fresh=arguments.fresh) for _ in range(arguments.repeat)]
    best = min(runs, key=lambda run: sum(run.values()))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = (used.ru_utime + used.ru_stime) / len(runs)
    for event, seconds in best.items():
        print(f"{PARTS[event]:42} {seconds:6.2f} s")
    print(f"{'process start to the first token':42} {sum(best.values()):6.2f} s, the fastest of {len(runs)}")
    print(f"{'processor time of a run':42} {processor:6.2f} s, on average")
    totals = [sum(run.values()) for run in runs]
    print(json.dumps({"fresh": arguments.fresh, "seconds": best, "totals": totals, "processor": processor}))


if __name__ == "__main__":
    main()
