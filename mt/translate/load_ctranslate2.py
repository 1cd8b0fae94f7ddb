"""A model → a translator that decodes with CTranslate2, on a CPU.

The model is converted once and kept in the hidden folder `.ctranslate2` of the model folder, or in
the user's cache where that cannot be written. A record there has the hash of the weights and the
checksums of the files: a conversion of other weights, or a damaged one, is made again. The folder
appears as a whole, so that several processes may do this at the same time.

Loads no torch where the model has been converted before.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import CheckpointError, ConfigError
from mt.files import sha256_of, sync_files, sync_folder
from mt.runs.model_folder import ModelFolder
from mt.runtime.machine import usable_cores
from mt.search.options import EngineOptions, SearchOptions
from mt.translate.translator import Translator

# CTranslate2's name for each precision that its engine takes. The search is exact in float32, and
# that is what `auto` gives.
COMPUTE_TYPES = {"auto": "float32", "fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
# The name of a vocabulary map in a model folder of CTranslate2.
VOCABULARY_MAP = "vmap.txt"
# A converted model, and the record in it.
FORMAT = 1
FOLDER = ".ctranslate2"
RECORD = "converted.json"
# Seconds after which a conversion that is not finished was interrupted.
ABANDONED = 3600


def load_ctranslate2(
    described: ModelFolder,
    search: SearchOptions,
    options: EngineOptions,
    report: Callable[[str], None],
) -> Translator:
    """Load the converted model; convert it first if that was not done. Raises MtError."""
    import ctranslate2

    from mt.search.engine_ctranslate2 import CTranslate2Engine

    config = described.config
    threads = options.workers or available_cores()
    precision = "fp32" if options.precision == "auto" else options.precision
    decode = search.decode_config(config)
    folder = converted_model(described, report)
    files = None
    if options.shortlist is not None:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        files[VOCABULARY_MAP] = _read_shortlist(options.shortlist, described.tokenizer)
    model = ctranslate2.Translator(
        str(folder),
        files=files,
        device="cpu",
        compute_type=COMPUTE_TYPES[precision],
        inter_threads=threads,
        intra_threads=1,
    )
    engine = CTranslate2Engine(
        model,
        described.tokenizer,
        decode,
        config.model.max_positions,
        precision,
        threads,
        search,
        shortlist=options.shortlist is not None,
    )
    translator = Translator(
        engine,
        described.tokenizer,
        max_source=config.data.max_tokens,
        max_ratio=config.data.max_length_ratio,
        batch_tokens=options.batch_tokens,
    )
    translator.settings = {
        "--engine": "ctranslate2",
        "--precision": precision,
        "--model": described.weights_hash,
    }
    translator.tally.engine = (
        f"CTranslate2 {ctranslate2.__version__} on CPU in {precision}, "
        f"{threads} thread{'s' * (threads != 1)}"
    )
    return translator


def why_not_in_precision(precision: str) -> list[str]:
    """Return why CTranslate2 does not work here in this precision; nothing if it does."""
    try:
        import ctranslate2
    except (ImportError, OSError) as error:  # installed, but not for this system
        # A signal that arrives while compiled code is imported comes as an ImportError.
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt | SystemExit):
            raise
        return [f"CTranslate2 cannot be imported ({error})"]
    known: set[str] = ctranslate2.get_supported_compute_types("cpu")
    if COMPUTE_TYPES.get(precision) in known:
        return []
    return [f"CTranslate2 has no {precision} on this CPU"]


def available_cores() -> int:
    """Cores to decode with: OMP_NUM_THREADS if it is set, as for torch, else all."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return usable_cores()


def _read_shortlist(path: Path, tokenizer: Tokenizer) -> bytes:
    """Read a vocabulary map; ConfigError if it has pieces that this vocabulary lacks.

    CTranslate2 ignores pieces that it does not know: with a wrong file every output would be empty.
    """
    remedy = "mt export ctranslate2 --shortlist writes such a file, vmap.txt"
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(
            f"--shortlist {path}: cannot be read ({error.strerror}); {remedy}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--shortlist {path}: must be UTF-8; {remedy}") from error
    known = set(tokenizer.tgt_pieces_of(list(range(tokenizer.tgt_vocab_size))))
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


def converted_model(described: ModelFolder, report: Callable[[str], None]) -> Path:
    """Return the folder of the converted model; make it if there is none of these weights.

    Raises CheckpointError where it cannot be written anywhere, and if CTranslate2 does not find the
    same probabilities with it.
    """
    places = [described.folder / FOLDER]
    with suppress(RuntimeError):  # a user without a home directory
        places.append(user_cache() / described.weights_hash[:32])
    for place in places:
        if is_current(place, described):
            return place
    errors = []
    for place in places:
        try:
            start = time.perf_counter()
            with _new_folder(place) as partial:
                convert(described.folder, partial)
                _publish(partial, place, described)
            seconds = time.perf_counter() - start
            report(f"converted for CTranslate2 in {seconds:.1f} s, kept in {place}")
            return place
        except OSError as error:  # such as a full disk
            errors.append(f"{place} ({error.strerror or error})")
    raise CheckpointError(
        f"the model converted for CTranslate2 cannot be kept in {' or '.join(errors)}"
    )


def convert(model: Path, output: Path) -> None:
    """Convert the model of a folder into an empty folder, and prove that both agree."""
    import ctranslate2

    from mt.model.checkpoint import load_model
    from mt.search.ctranslate2_model import scorer, specification
    from mt.search.parity import prove

    loaded = load_model(model)
    specification(loaded.model, loaded.tokenizer).save(str(output))
    translator = ctranslate2.Translator(str(output), device="cpu", compute_type="float32")
    prove(loaded, "ctranslate2", scorer(loaded.tokenizer, translator))


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


@contextmanager
def _new_folder(place: Path) -> Iterator[Path]:
    """Give an empty folder near `place`, and remove it at the end. Raises OSError.

    Folders of interrupted conversions are removed, too.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    for other in place.parent.glob(f"{place.name}.*"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > ABANDONED:
                shutil.rmtree(other)
    private = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
    try:
        (private / "model").mkdir()
        yield private / "model"
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _publish(converted: Path, place: Path, described: ModelFolder) -> None:
    """Add the record to a conversion and rename it to its place."""
    record = {
        "format": FORMAT,
        "weights": described.weights_hash,
        "tokenizer": described.tokenizer.fingerprint,
        "sha256": {path.name: sha256_of(path) for path in sorted(converted.iterdir())},
    }
    (converted / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    sync_files(converted)
    for _ in range(3):
        with suppress(OSError):  # there is one of other weights, or a damaged one, or a new one
            converted.rename(place)
            break
        if is_current(place, described):
            return  # another process was faster
        with suppress(OSError):
            place.rename(converted.parent / "before")
    else:
        raise CheckpointError(f"{place}: cannot be replaced; remove it")
    sync_folder(place.parent)
