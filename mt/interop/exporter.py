"""Packages that exporters need, and the new folder that they write."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mt.artefacts import whole_folder
from mt.errors import CheckpointError, ConfigError
from mt.files import require_new
from mt.model.checkpoint import reason_of
from mt.model.transformer import Transformer


def import_package(name: str) -> Any:
    """Import the package that an export needs; ConfigError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"mt export: this export needs the package {name}, which cannot be imported ({error}); "
            f"run: pip install {name}"
        ) from error


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Keep progress bars and warnings of transformers off stderr."""
    logging = library.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


@contextmanager
def new_folder(output: Path, model: Transformer) -> Iterator[Path]:
    """Give a folder to write into, which becomes `output` if nothing is raised inside.

    Raises CheckpointError if `output` exists, or if the weights of `model` cannot be written there.
    """
    require_new(output)
    try:
        with whole_folder(output, "error") as partial:
            yield partial
    except FileExistsError as error:  # by now
        raise CheckpointError(
            f"--output {output}: was made meanwhile; give another path"
        ) from error
    except (OSError, SafetensorError) as error:
        need = sum(weight.numel() * 4 for weight in model.parameters()) / 1e6
        raise CheckpointError(
            f"--output {output}: cannot be written ({reason_of(error)}); the export needs "
            f"{need:,.1f} MB: free some space there, or give a folder on another disk that you "
            "may write to"
        ) from error
