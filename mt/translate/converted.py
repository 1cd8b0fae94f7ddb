"""A model converted for CTranslate2, made once and kept beside the model.

It lies in the hidden folder `.ctranslate2` of the model folder, or in the user's cache where that
cannot be written. A record in it names the weights that it was made from and the checksums of its
files: a conversion of other weights, or a damaged one, is made again. It appears as a whole, so
that several processes may do this at the same time.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mt.errors import CheckpointError
from mt.files import sha256_of, sync_files, sync_folder
from mt.runs.model_folder import DamagedError, ModelFolder

FORMAT = 1
FOLDER = ".ctranslate2"
RECORD = "converted.json"
# Seconds after which a conversion that is not finished was interrupted.
ABANDONED = 3600
# Writes the model of a folder as CTranslate2 reads it, to a new folder; see `interop.ctranslate2`.
Convert = Callable[[Path, Path], object]


def converted_model(
    described: ModelFolder, convert: Convert | None, say: Callable[[str], None]
) -> Path:
    """Return the folder of the converted model; make it if there is none of these weights.

    Raises CheckpointError where it cannot be written anywhere, or without `convert`.
    """
    places = [described.folder / FOLDER]
    with suppress(RuntimeError):  # a user without a home directory
        places.append(user_cache() / described.weights_hash[:32])
    for place in places:
        if is_current(place, described):
            return place
    if convert is None:
        raise CheckpointError(f"{described.folder}: has not been converted for CTranslate2")
    errors: list[OSError] = []
    for place in places:
        try:
            partial = _new_folder(place)
        except OSError as error:
            errors.append(error)
            continue
        try:
            start = time.perf_counter()
            convert(described.folder, partial / "model")
            _publish(partial / "model", place, described)
            seconds = time.perf_counter() - start
            say(f"converted for CTranslate2 in {seconds:.1f} s, kept in {place}")
            return place
        except OSError as error:
            errors.append(error)
        except CheckpointError as error:
            if isinstance(error, DamagedError) or not isinstance(error.__cause__, OSError):
                raise
            errors.append(error.__cause__)  # such as a full disk
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    tried = (
        f"{place} ({error.strerror or error})" for place, error in zip(places, errors, strict=True)
    )
    raise CheckpointError(
        f"the model converted for CTranslate2 cannot be kept in {' or '.join(tried)}"
    )


def user_cache() -> Path:
    """The folder for converted models whose own folder cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "mt" / "ctranslate2"


def is_current(place: Path, described: ModelFolder) -> bool:
    """Whether a conversion is there, made from these weights and undamaged."""
    try:
        record = json.loads((place / RECORD).read_text(encoding="utf-8"))
        return (
            record["format"] == FORMAT
            and record["weights"] == described.weights_hash
            and record["tokenizer"] == described.tokenizer.fingerprint
            and all(sha256_of(place / name) == known for name, known in record["sha256"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _new_folder(place: Path) -> Path:
    """Make an empty folder beside `place`; remove those of interrupted conversions. OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for other in place.parent.glob(f"{place.name}.*"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > ABANDONED:
                shutil.rmtree(other)
    return Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))


def _publish(made: Path, place: Path, described: ModelFolder) -> None:
    """Add the record to a conversion and rename it to its place."""
    record = {
        "format": FORMAT,
        "weights": described.weights_hash,
        "tokenizer": described.tokenizer.fingerprint,
        "sha256": {path.name: sha256_of(path) for path in sorted(made.iterdir())},
    }
    (made / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    made.chmod(0o755)  # the folder around it is private
    sync_files(made)
    for _ in range(3):
        with suppress(OSError):  # there is one of other weights, or a damaged one, or a new one
            made.rename(place)
            break
        if is_current(place, described):
            return  # another process was faster
        with suppress(OSError):
            place.rename(made.parent / "before")
    else:
        raise CheckpointError(f"{place}: cannot be replaced; remove it")
    sync_folder(place.parent)
