# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh. Needs Python 3.11 or newer with pip, and nothing else: no compiler, no GPU.
#
#   prepare EXTRAS    installs batchgen[EXTRAS] into .venv, puts that environment first and fetches the embedded model
#
# Safe to run again, also after a run that was cut off: what is complete is kept, what is not is made again.
# PYTHON chooses the interpreter (default: python3). pip's own settings (index, proxy, cache) hold.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$PWD/.venv"

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

prepare() {
    local extras=$1
    have_pip || make_venv
    export PATH="$venv/bin:$PATH"
    is_installed "$extras" || install "$extras"
    python scripts/fetch_model.py
}

have_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

make_venv() {
    local python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$python is missing or older than Python 3.11; name another one: PYTHON=/path/to/python3 $0"
    say "making a virtual environment in .venv"
    "$python" -m venv --clear "$venv" || die "'$python -m venv' failed; its message above says what this Python lacks"
}

# An install is complete when its stamp names the folder and the requirements as they are now.
requirements() { { echo "$venv"; cat pyproject.toml constraints.txt; } | cksum; }

is_installed() {
    local extra
    for extra in ${1//,/ }; do
        [[ "$(cat "$venv/.installed-$extra" 2>/dev/null)" == "$(requirements)" ]] || return 1
    done
}

install() {
    local extra
    say "installing batchgen[$1] into .venv (torch and transformers; a few minutes the first time)"
    pip_install torch # first, so that all that needs torch takes this one
    pip_install --editable ".[$1]"
    for extra in ${1//,/ }; do requirements >"$venv/.installed-$extra"; done
}

pip_install() {
    local log="$venv/pip.log" # shown only where it explains a failure
    python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$@" 2>"$log" ||
        { cat "$log" >&2; die "pip could not install $*; its messages are above. Run $0 again to go on from here"; }
}
