#!/usr/bin/env bash
# From nothing to answers: installs batchgen, fetches a small model, runs jobs/quickstart.yaml and shows what came out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

prepare gguf,report

say "batchgen run jobs/quickstart.yaml"
batchgen run jobs/quickstart.yaml

say "the first three of the rows in out/quickstart/completions"
python - <<'PYTHON'
import pyarrow.parquet as pq

for row in pq.read_table("out/quickstart/completions").slice(0, 3).to_pylist():
    print(f"\n{row['id']}: {row['finish_reason']}, {row['cached_tokens']} of {row['prompt_tokens']} prompt tokens reused")
    print(f"  {row['completion']!r}")
PYTHON
