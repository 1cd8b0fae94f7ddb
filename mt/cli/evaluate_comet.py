"""The metric comet of `mt evaluate`: its option, and the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli.evaluate_models import Texts
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.evaluation.comet import Comet

OPTION = "--comet-model"


def check_comet_options(wanted: bool, folder: Path | None) -> None:
    """Refuse the metric without package or model, and the model without the metric."""
    if wanted:
        from mt.evaluation.comet import check_comet

        check_comet(folder, OPTION)
    elif folder is not None:
        raise DataError(f"{OPTION}: only with the metric comet; add it to --metrics")


def load_comet(folder: Path | None, texts: Sequence[Texts], device: str) -> Comet:
    """Load the model. Raises DataError for a test set without sources, which COMET reads."""
    if any(one.data.sources is None for one in texts):
        raise DataError(
            "metric comet: reads the source too; give --src FILE, or --test-set NAME=SRC,REF"
        )
    from mt.evaluation.comet import Comet
    from mt.runtime.devices import choose_device

    return Comet(folder, OPTION, gpu=choose_device(device).is_cuda)
