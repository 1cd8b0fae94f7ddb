# Sourced by quickstart.sh and test.sh, not run: goes to the project's folder and makes .venv there.
#   source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
#   prepare_environment        mt and what it needs
#   prepare_environment dev    and what its tests need
# PYTHON=/path/to/python chooses the interpreter of a new .venv; pip's own settings (pip.conf and
# PIP_ variables) apply.

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

prepare_environment() {
    local extra=${1:-} python stamp
    if ! venv_works; then
        python=$(find_python)
        say "making .venv with $("$python" --version 2>&1)"
        "$python" -m venv --clear .venv
    fi
    # The folder belongs to the stamp because the installed command holds its path.
    stamp=$(pwd; cat pyproject.toml)
    if [ "$(cat ".venv/installed-${extra:-plain}" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    say "installing mt${extra:+ with its $extra extra} into .venv (PyTorch is large: minutes)"
    rm -f .venv/installed-*
    # Older ones than this cannot install a folder so that it is used in place.
    "$venv_python" -m pip install -q 'pip>=21.3'
    "$venv_python" -m pip install -q -e ".${extra:+[$extra]}" \
        || give_up "installing failed, see pip's message above; mend that and run this again"
    printf '%s\n' "$stamp" >.venv/installed-plain
    printf '%s\n' "$stamp" >".venv/installed-${extra:-plain}"
}
