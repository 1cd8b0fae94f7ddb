"""A folder for a dry run: as the run directory is, and gone afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mt.errors import DataError, MtError
from mt.model import checkpoint
from mt.training.manifest import MANIFEST
from mt.training.run_dir import CONFIG, LOCK, check_is_run

if TYPE_CHECKING:
    from mt.runtime.distributed import World


@contextmanager
def dry_run_dir(run: Path, fresh: bool, world: World) -> Iterator[Path]:
    """A folder in which a start can be tried as if in the run directory, with `fresh` in an empty one; then removed.

    It lies in the run directory, or in the nearest folder above it that exists, so that all ranks see it.
    Raises DataError where it cannot be made.
    """
    with ExitStack() as until_the_end:

        def make() -> Path:
            check_is_run(run)
            try:
                place = next(path for path in (run, *run.absolute().parents) if path.exists())
                made = TemporaryDirectory(prefix=".dry-run-", dir=place, ignore_cleanup_errors=True)
                folder = Path(until_the_end.enter_context(made))
                if not fresh:
                    _fill(folder, run)
            except OSError as error:
                raise DataError(
                    f"run directory {run}: must be a folder that can be written, but {error.strerror} "
                    f"({error.filename}); give another one with --run-dir"
                ) from error
            return folder

        folder = world.on_main(make)
        try:
            yield folder
        except MtError as error:  # a folder that is gone would tell the user nothing
            error.args = (str(error).replace(str(folder), str(run)),)
            raise
        world.all_gather(None)  # all have read what is removed now


def _fill(folder: Path, run: Path) -> None:
    """All that a start reads. What is large is linked, and replaced, never written to, where it is made anew."""
    for path in (run / CONFIG, run / MANIFEST, run / LOCK, *run.glob("tokenizer*.model")):
        if path.exists():
            shutil.copy(path, folder)
    (folder / checkpoint.CHECKPOINTS).mkdir()
    for path in checkpoint.checkpoints(run.absolute()):
        (folder / checkpoint.CHECKPOINTS / path.name).symlink_to(path)
    with suppress(OSError):  # on a file system without hard links it is made anew
        shutil.copytree(run / "store", folder / "store", copy_function=os.link)
