#!/usr/bin/env bash
# Sets mt up in .venv for development, then lints, type-checks and tests it.
#   bash scripts/test.sh [arguments for pytest, such as -m slow or tests/config]
# Tests run side by side, one process a core and one thread each (at most 8).

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
prepare_environment dev

say "ruff"
"$venv_python" -m ruff check .
"$venv_python" -m ruff format --check .
say "mypy"
"$venv_python" -m mypy & mypy_of_mt=$!
# In tests, an attribute of a torch module may be what the test knows it to be, pytest.approx equals
# a number, and what a module imports can be replaced.
"$venv_python" -m mypy tests --cache-dir .mypy_cache/tests --implicit-reexport \
    --allow-untyped-calls --no-warn-unused-ignores --disable-error-code union-attr \
    --disable-error-code operator --disable-error-code comparison-overlap || failed=1
wait "$mypy_of_mt" || failed=1
[ -z "${failed:-}" ]
say "pytest"
# A process starts with a row of neighbouring tests, which share what is slow to set up.
"$venv_python" -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal "$@"
