#!/usr/bin/env bash
# All that a change must pass: lint, format, types, tests, and kernels that compile for every GPU.
#
#   scripts/test.sh            everything
#   scripts/test.sh --fast     without the tests marked slow, with a tenth of Hypothesis' examples
#   scripts/test.sh tests/io -x    other arguments go to pytest; without any, the tests run in two processes
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

is_fast=false
if [[ "${1:-}" == --fast ]]; then
    is_fast=true
    shift
fi
arguments=("$@")
# A module stays in one process, so that what its tests share is made once.
[[ $# -gt 0 ]] || arguments=(--numprocesses 2 --dist loadfile)
! $is_fast || arguments+=(-m "not slow" --hypothesis-profile fast)

prepare gguf,report,structured,dev

say "ruff check" && python -m ruff check .
say "ruff format --check" && python -m ruff format --check .
say "mypy" && python -m mypy
# The models of the tests are tiny: threads that wait for each other cost more than they give.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" NUMBA_NUM_THREADS="${NUMBA_NUM_THREADS:-1}"
say "pytest" && python -m pytest "${arguments[@]}"
if ! $is_fast && [[ "$(uname)" == Linux ]]; then # elsewhere there is no Triton
    say "compile kernels" && PYTHONPATH=kernels python -m scripts.gpu.compile_kernels
fi
