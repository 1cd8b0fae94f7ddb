"""A model → an engine that decodes with CTranslate2, on a CPU.

The model is converted once and kept in the user's cache, never in the model folder: whoever hands a
model on could put other weights there. A conversion is named by a hash of all that it depends on,
and used only if it is undamaged, belongs to this user and is writable by nobody else. Loads no
torch where the model has been converted before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from mt.artefacts import content_key, make, user_cache
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import CheckpointError, ConfigError
from mt.files import sha256_of
from mt.runs.model_folder import ModelFolder
from mt.runtime.machine import usable_cores
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import say
from mt.translate.loaded_engine import LoadedEngine

# CTranslate2's name for each precision that its engine takes. The search is exact in float32, and
# that is what `auto` gives.
COMPUTE_TYPES = {"auto": "float32", "fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
# Of the way in which models are converted: another number, and all are converted again.
FORMAT = 2
# The file of a lexical shortlist, by the name that CTranslate2 gives it.
SHORTLIST = "vmap.txt"
# The user's cache of converted models.
CACHE = "ctranslate2"
# Conversions in it. One of a base model (60 million parameters) takes 0.25 GB.
KEPT = 10
Loaded = TypeVar("Loaded")


def load_ctranslate2(
    described: ModelFolder, search: SearchOptions, options: EngineOptions
) -> LoadedEngine:
    """Load the converted model; convert it first if that was not done. Raises MtError."""
    import ctranslate2

    from mt.search.engine_ctranslate2 import CTranslate2Engine

    described.verify()
    config, tokenizer = described.config, described.tokenizer
    threads = options.workers or available_cores()
    precision = "fp32" if options.precision == "auto" else options.precision
    settings = {"--engine": "ctranslate2", "--precision": precision}
    settings |= {"--model": described.weights_hash}
    vmap: dict[str, bytes] = {}
    if options.shortlist is not None:
        vmap[SHORTLIST] = content = read_shortlist(options.shortlist, tokenizer)
        settings["--shortlist"] = hashlib.sha256(content).hexdigest()

    def load(folder: Path) -> Any:
        files = {path.name: path.read_bytes() for path in folder.iterdir()} if vmap else {}
        how = {"compute_type": COMPUTE_TYPES[precision], "files": files | vmap or None}
        side_by_side = {"inter_threads": threads, "intra_threads": 1}
        return ctranslate2.Translator(str(folder), device="cpu", **how, **side_by_side)

    model, decode = load_converted(described, load), search.decode_config(config)
    about = (decode, config.model.max_positions, precision, threads, search, bool(vmap))
    where = f"CPU in {precision}, {threads} thread{'s' * (threads != 1)}"
    return LoadedEngine.of_model(
        described, CTranslate2Engine(model, tokenizer, *about), batch_tokens=options.batch_tokens,
        settings=settings, name=f"CTranslate2 {ctranslate2.__version__} on {where}",
    )  # fmt: skip


def why_not_in_precision(precision: str) -> list[str]:
    """Return why CTranslate2 does not work here in this precision; nothing if it does."""
    try:
        import ctranslate2
    except (ImportError, OSError) as error:  # installed, but not for this system
        # A signal that arrives while compiled code is imported comes as an ImportError.
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt | SystemExit):
            raise
        return [f"CTranslate2 cannot be imported ({error})"]
    lacks = COMPUTE_TYPES.get(precision) not in ctranslate2.get_supported_compute_types("cpu")
    return [f"CTranslate2 has no {precision} on this CPU"] * lacks


def available_cores() -> int:
    """Cores to decode with: OMP_NUM_THREADS if it is set, as for torch, else all."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return (int(given) if given.isdecimal() else 0) or usable_cores()


def read_shortlist(path: Path, tokenizer: Tokenizer) -> bytes:
    """Read a vocabulary map; ConfigError for unknown pieces, which would make all outputs empty."""
    remedy = "mt export ctranslate2 --shortlist writes such a file, vmap.txt"
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").split("\n")
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise ConfigError(f"--shortlist {path}: {problem}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--shortlist {path}: must be UTF-8; {remedy}") from error
    known = set(tokenizer.tgt.all_pieces())
    for number, line in enumerate(lines, 1):
        _, tab, candidates = line.partition("\t")
        unknown = [piece for piece in candidates.split(" ") if piece and piece not in known]
        if unknown or (line and not tab):
            problem = repr(unknown[0]) if unknown else "no tab"
            raise ConfigError(
                f"--shortlist {path}, line {number:,}: must be a source piece, a tab, and target "
                f"pieces of this model, found {problem}; {remedy}"
            )
    return content


# --- the converted model ------------------------------------------------------------------------


def load_converted(described: ModelFolder, load: Callable[[Path], Loaded]) -> Loaded:
    """Return what `load` makes of the folder of the converted model, converted first if need be."""
    settings = described.config.model.model_dump(mode="json")
    # A version of CTranslate2 may not load what another has written.
    depends_on = [FORMAT, version("ctranslate2"), described.weights_hash]
    key = content_key([*depends_on, described.tokenizer.fingerprint, settings])
    said: list[str] = []

    def build(folder: Path) -> None:
        start = time.perf_counter()
        folder.chmod(0o700)
        convert(described, folder)
        said.append(f"converted for CTranslate2 in {time.perf_counter() - start:.1f} s")

    waiting = "waiting for another process, which converts the model for CTranslate2"
    remedy = "set XDG_CACHE_HOME to a folder of yours, or give --engine torch"
    try:
        place = user_cache(CACHE) / key[:32]
    except RuntimeError as error:
        raise CheckpointError(f"CTranslate2: there is no home directory; {remedy}") from error
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.exists() and not is_mine(place):
            shutil.rmtree(place)
        make(place, key, build, lambda: say(waiting), sha256_of)
        loaded = load(place)
        with suppress(OSError):
            os.utime(place)  # used now, so it is removed late
        if said:
            say(f"{said[-1]}, kept in {place}")
            _make_room(place.parent)
        return loaded
    except OSError as error:  # such as a full disk
        raise CheckpointError(
            f"the model cannot be converted for CTranslate2: {place.parent} "
            f"({error.strerror or error}); free some space there, {remedy}"
        ) from error


def convert(described: ModelFolder, output: Path) -> None:
    """Convert a model into an empty folder, and prove that both agree. Raises CheckpointError."""
    import ctranslate2

    from mt.model.checkpoint import load_model
    from mt.search.ctranslate2_model import scorer, specification
    from mt.search.scoring import prove

    loaded = load_model(described.folder)
    # Else its conversion would be kept under the name of what was there before.
    if any(loaded.meta[key] != described.meta[key] for key in ("sha256", "config", "tokenizer")):
        problem = "was replaced while it was being read; run the command again"
        raise CheckpointError(f"{described.folder}: {problem}")
    specification(loaded.model, loaded.tokenizer).save(str(output))
    translator = ctranslate2.Translator(str(output), device="cpu", compute_type="float32")
    prove(loaded, "ctranslate2", scorer(loaded.tokenizer, translator))


def is_mine(place: Path) -> bool:
    """Whether a conversion belongs to this user, and nobody else may write there."""
    status = place.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _make_room(cache: Path) -> None:
    """Keep the conversions that were used last, also those that are being written."""
    used = {}
    for path in cache.iterdir():
        with suppress(OSError):  # another process removes it
            if path.is_dir():
                used[path] = path.stat().st_mtime
    for path in sorted(used, key=used.__getitem__)[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
