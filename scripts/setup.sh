#!/usr/bin/env bash
# Makes .venv in the project's folder and installs mt there, so that the source is used in place.
#   bash scripts/setup.sh         mt and what it needs, also to clean corpora
#   bash scripts/setup.sh dev     and what its tests need
# PYTHON=/path/to/python chooses the interpreter of a new .venv. TORCH=cpu or TORCH=default chooses
# the build of PyTorch: without it, cpu on Linux where there is no NVIDIA GPU (0.2 GB instead of
# several), else what pip takes by default. pip's own settings (pip.conf and PIP_ variables) apply.
# quickstart.sh and test.sh source it and call prepare_environment.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv_python=.venv/bin/python

say() { printf '== %s\n' "$*" >&2; }
give_up() { printf 'error: %s\n' "$*" >&2; exit 2; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }
can_make_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Prints the first interpreter that will do.
find_python() {
    local candidate without_venv=""
    set -- python3 python3.13 python3.12 python3.11 python3.10 python
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; fi
    for candidate in "$@"; do
        is_new_enough "$candidate" || continue
        if can_make_venv "$candidate"; then
            echo "$candidate"
            return
        fi
        without_venv=$candidate
    done
    if [ -n "$without_venv" ]; then
        give_up "$without_venv has no module venv or ensurepip; install it (Debian and Ubuntu:" \
            "apt install python3-venv), or name another Python: PYTHON=/path/to/python bash $0"
    fi
    give_up "Python 3.10 or newer is required, found none as ${PYTHON:-python3}; install it, or" \
        "name one: PYTHON=/path/to/python bash $0"
}

# An environment that was interrupted in the making, or moved, or whose Python is gone, is made anew.
venv_works() { is_new_enough "$venv_python" && "$venv_python" -m pip --version >/dev/null 2>&1; }

# The build of PyTorch to install: cpu or default.
torch_build() {
    if [ -n "${TORCH:-}" ]; then
        echo "$TORCH"
    elif [ "$(uname)" = Linux ] && [ ! -e /proc/driver/nvidia ] && ! nvidia-smi -L >/dev/null 2>&1; then
        echo cpu
    else
        echo default
    fi
}

install_torch() {
    local build
    build=$(torch_build)
    case $build in
        default) return ;; # it comes with mt
        cpu) ;;
        *) give_up "TORCH must be cpu or default, found $build" ;;
    esac
    if "$venv_python" -c 'import torch' >/dev/null 2>&1; then return; fi
    say "installing PyTorch's build for CPUs (TORCH=default bash $0 takes the other)"
    # uv knows where PyTorch's builds are.
    { "$venv_python" -m pip install -q uv \
        && "$venv_python" -m uv pip install -q --python "$venv_python" --torch-backend=cpu \
            "$(grep -o 'torch>=[^"]*' pyproject.toml | head -1)"; } \
        || say "there is no such build to be had: taking what pip takes by default"
}

prepare_environment() {
    local extra=${1:-corpora} python stamp
    if ! venv_works; then
        python=$(find_python)
        say "making .venv with $("$python" --version 2>&1)"
        "$python" -m venv --clear .venv
    fi
    # The folder belongs to the stamp because the installed command holds its path.
    stamp=$(pwd; cat pyproject.toml)
    if [ "$(cat ".venv/installed-$extra" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    say "installing mt with its extra $extra into .venv (PyTorch is large: minutes)"
    rm -f .venv/installed-*
    # Older ones than this cannot install a folder so that it is used in place.
    "$venv_python" -m pip install -q 'pip>=21.3'
    # Until 0.3.0 mt had the name of another project on the package index.
    "$venv_python" -m pip uninstall -q -y mt 2>/dev/null || true
    install_torch
    # Python compiles the files that it imports. pip would compile all 15,000, for a minute.
    "$venv_python" -m pip install -q --no-compile -e ".[$extra]" \
        || give_up "installing failed, see pip's message above; mend that and run this again"
    printf '%s\n' "$stamp" >".venv/installed-$extra"
    if [ "$extra" = dev ]; then printf '%s\n' "$stamp" >.venv/installed-corpora; fi # dev has those
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    prepare_environment "$@"
    say "done: source .venv/bin/activate"
fi
