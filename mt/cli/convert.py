"""Converting a model for the engine that decodes with CTranslate2."""

from __future__ import annotations

from pathlib import Path


def convert_model(model: Path, output: Path) -> None:
    """Write the model of a folder to `output`, a new folder, proved to agree. Raises MtError."""
    from mt.interop.ctranslate2 import export
    from mt.model.checkpoint import load_model

    export(load_model(model), output)
