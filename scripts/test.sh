#!/usr/bin/env bash
# Sets mt up in .venv for development, then lints, type-checks and tests it.
#   bash scripts/test.sh [arguments for pytest, such as -m slow or tests/test_config.py]
# Tests run side by side, one process a core and one thread each (at most 8).

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
prepare_environment dev

say "ruff"
"$venv_python" -m ruff check .
"$venv_python" -m ruff format --check .
say "mypy"
"$venv_python" -m mypy
say "pytest"
"$venv_python" -m pytest --numprocesses auto --maxprocesses 8 --dist loadgroup "$@"
