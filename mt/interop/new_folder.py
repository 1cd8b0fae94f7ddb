"""The folder that an export writes: it appears whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mt.errors import CheckpointError
from mt.model.transformer import Transformer


@contextmanager
def new_folder(output: Path, model: Transformer) -> Iterator[Path]:
    """Give a folder to write into, which becomes `output` if nothing is raised inside.

    Raises CheckpointError if `output` exists, or if the weights of `model` cannot be written there.
    """
    if output.exists():
        raise CheckpointError(f"--output {output}: already exists; give another path, or remove it")
    partial = output.with_name(f".{output.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        partial.rename(output)
    except OSError as error:
        need = sum(weight.numel() * 4 for weight in model.parameters()) / 1e6
        raise CheckpointError(
            f"--output {output}: cannot be written ({error.strerror or error}); the export needs "
            f"{need:,.1f} MB: free some space there, or give a folder on another disk that you "
            "may write to"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
