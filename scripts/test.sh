#!/usr/bin/env bash
# All that a change must pass: lint, format, types, tests. Arguments go to pytest: scripts/test.sh tests/io -x
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

prepare gguf,report,structured,dev

say "ruff check" && python -m ruff check .
say "ruff format --check" && python -m ruff format --check .
say "mypy" && python -m mypy
# The models of the tests are tiny: threads that wait for each other cost more than they give.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" NUMBA_NUM_THREADS="${NUMBA_NUM_THREADS:-1}"
say "pytest" && python -m pytest "$@"
if [[ "$(uname)" == Linux ]]; then # elsewhere there is no Triton
    say "compile kernels" && PYTHONPATH=kernels python -m scripts.gpu.compile_kernels
fi
