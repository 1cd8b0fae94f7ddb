"""Model folders, read without torch: where one is, its config, tokenizer and checksums.

A model folder holds `model.safetensors` and `meta.json` (config, step, score, checksums), a
checkpoint also `state.pt`, from which training resumes. Nothing changes it once it is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

from mt.config.load import config_of_model
from mt.config.plan import HELD_OUT, DataPlan, plan_data, with_held_out_files
from mt.config.schema import Config
from mt.config.settled import Settled
from mt.data.tokens.sentencepiece_model import read_model
from mt.data.tokens.tokenizer import Tokenizer
from mt.data.tokens.writing import Styles
from mt.errors import CheckpointError
from mt.files import read_json, sha256_of
from mt.package import VERSION

FORMAT = 2
# Files of a model folder.
WEIGHTS = "model.safetensors"
STATE = "state.pt"
META = "meta.json"
# The key of `meta.json` for the share of training lines that hold several sentences.
SEVERAL_SENTENCES = "several_sentences"
SCORED = "scored"  # the validation of a checkpoint, see `Scored`
SCORED_ON = "scored_on"  # a fingerprint of the validation set, its metric and its tokenizer
# Where a run directory keeps its model folders, and the links to two of them.
CHECKPOINTS = "checkpoints"
LAST = "last"
BEST = "best"
# What some write before the name of a model on the Hugging Face hub.
HUB = "hf:"
REMEDY = "use another checkpoint, or copy this one again"


# Of a validation: the score, higher being better, its nll, and whether the score decides yet.
Scored: TypeAlias = tuple[float, float, bool]


class DamagedError(CheckpointError):
    """A model folder is incomplete, or its content differs from what was written."""


@dataclass(frozen=True)
class ModelFolder:
    """A model folder with everything but its weights."""

    folder: Path
    meta: dict[str, Any]
    config: Config
    tokenizer: Tokenizer

    @cached_property
    def data(self) -> DataPlan:
        return plan_data(self.config.data)

    @cached_property
    def styles(self) -> Styles | None:
        return Styles.load(_tokenizer_folder(self.folder))

    @property
    def weights_hash(self) -> str:
        return str(self.meta["sha256"][WEIGHTS])

    def verify(self) -> None:
        read_meta(self.folder, [WEIGHTS])


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; other files beside them are ignored."""
    paths = (run_dir / CHECKPOINTS).glob("step-*")
    return sorted(path for path in paths if re.fullmatch(r"step-\d{8,}", path.name))


def run_dir_of(folder: Path) -> Path | None:
    """The run directory that a checkpoint belongs to; None for any other model folder."""
    return folder.parent.parent if folder.parent.name == CHECKPOINTS else None


def read_meta(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read `meta.json` and verify the SHA-256 of the files `names`. Raises CheckpointError."""
    try:
        meta = read_json(folder / META)
        _require(meta, format=int, sha256=dict)
        if meta["format"] > FORMAT:
            raise CheckpointError(
                f"{folder}: was written by a newer mt (format {meta['format']}, this version reads "
                f"up to {FORMAT}); install that version"
            )
        if meta["format"] < FORMAT:
            raise CheckpointError(
                f"{folder}: was made by mt 0.2 or before, and this is mt {VERSION}, which does "
                "not read it; train anew, or use that version"
            )
        _require(meta, config=dict, tokenizer=str)
        for name in names:
            if sha256_of(folder / name) != meta["sha256"].get(name):
                reason = f"damaged, its checksum differs from the one in {META}"
                raise DamagedError(f"{folder / name}: {reason}; {REMEDY}")
    except (OSError, ValueError) as error:  # json raises ValueError
        reason = f"{META}: {error}"
        if isinstance(error, OSError):
            reason = f"{error.filename}: {error.strerror}"
        raise DamagedError(f"{folder}: not a complete model folder ({reason}); {REMEDY}") from error
    return cast("dict[str, Any]", meta)


def _require(meta: Any, **kinds: type) -> None:
    """Raise ValueError if `meta.json` lacks one of the keys, or its value has another type."""
    if not isinstance(meta, dict):
        raise ValueError("not a JSON object")
    if missing := [key for key, kind in kinds.items() if not isinstance(meta.get(key), kind)]:
        raise ValueError(f"{', '.join(missing)} missing")


def sort_key(scored: Scored) -> tuple[bool, float, float]:
    """A key to sort validations by, the greatest of which is the best.

    By score, then by the lower nll. Where the score does not decide yet, by nll, and below those.
    """
    score, nll, decides = scored
    return (True, score, -nll) if decides else (False, -nll, score)


def ranked_checkpoints(metas: Mapping[Path, dict[str, Any]]) -> list[Path]:
    """A run's checkpoints with a score, best first; not those scored before a change of scores."""
    scored_on = [*metas.values()][-1].get(SCORED_ON)
    scores = {
        folder: scored
        for folder, meta in metas.items()
        if meta.get(SCORED_ON) == scored_on and (scored := _scored(meta)) is not None
    }
    return sorted(scores, key=lambda folder: sort_key(scores[folder]), reverse=True)


def _scored(meta: Mapping[str, Any]) -> Scored | None:
    match meta.get(SCORED), meta.get("score"):
        case [int() | float() as score, int() | float() as nll, bool() as decides], _:
            return score, nll, decides
        case None, int() | float() as score:  # of an earlier mt
            return score, 0.0, True
    return None


def find_model(path: Path, option: str = "--model") -> Path:
    """The model folder that `option` names; of a run its best checkpoint, else its last one."""
    if (name := str(path)).startswith(HUB):
        raise CheckpointError(
            f"{option} {name}: must be a folder; to use a model of the hub, first run: mt import "
            f"huggingface {name.removeprefix(HUB)} -o FOLDER"
        )
    try:
        for folder in (path, path / CHECKPOINTS / BEST, path / CHECKPOINTS / LAST):
            if (folder / META).is_file():
                return folder.resolve()
        if not path.exists():
            problem = "nothing exists at this path"
        elif (path / CHECKPOINTS).is_dir():
            problem = "this run has not saved a checkpoint yet; wait for its first validation"
        else:
            problem = f"it contains neither {META} nor {CHECKPOINTS}/{BEST}"
            if (config := path / "config.json").is_file():
                problem += ". It is for another program: give the model that mt export made it of"
                if re.search(r'"model_type":\s*"marian"', config.read_text(errors="replace")):
                    problem += ", or bring it in by mt import huggingface"
    except OSError as error:  # a name too long, a folder that the user may not enter
        problem = str(error.strerror)
    raise CheckpointError(
        f"{option} {path}: must be a run directory, a checkpoint, or an averaged or imported "
        f"model; {problem}"
    )


def folders_of(model: Path) -> list[Path]:
    """The folders that are read for `--model`, links resolved: a model folder, and its run."""
    folders = [Path(os.path.realpath(model))]  # unlike resolve, also for a link to itself
    with suppress(CheckpointError):  # reported when the model is loaded
        folder = find_model(model)
        folders.append(folder)
        if run_dir := run_dir_of(folder):
            folders.append(run_dir)
    return folders


def open_model(model: Path | ModelFolder, option: str = "--model") -> ModelFolder:
    """Read the model folder that `option` names, but for its weights, unless it is open."""
    if isinstance(model, ModelFolder):
        return model
    folder = find_model(model, option)
    meta = read_meta(folder, [])
    config = config_of_model(meta["config"], str(folder / META))
    try:
        config = Settled(**meta.get("settled", {})).apply(config)
    except (TypeError, ValueError, LookupError) as error:
        raise CheckpointError(f"{folder / META}: settled: damaged ({error}); {REMEDY}") from None
    if run_dir := run_dir_of(folder):  # the sets that it has held out of its text are there
        config = with_held_out_files(config, run_dir / HELD_OUT)
    tokenizer = Tokenizer.load(_tokenizer_folder(folder))
    if tokenizer.fingerprint != meta["tokenizer"]:
        raise CheckpointError(
            f"{folder}: its tokenizer is not the one it was trained with; put the run's tokenizer "
            "files there"
        )
    return ModelFolder(folder, meta, config, tokenizer)


def _tokenizer_folder(folder: Path) -> Path:
    return folder if Tokenizer.exists_in(folder) else run_dir_of(folder) or folder


def open_tokenizer(path: Path, option: str = "--model") -> Tokenizer:
    """The tokenizer of a `.model` file, run directory or model folder."""
    if path.is_file():
        return Tokenizer(read_model(path, option))
    if Tokenizer.exists_in(path):
        return Tokenizer.load(path)
    return open_model(path, option).tokenizer
