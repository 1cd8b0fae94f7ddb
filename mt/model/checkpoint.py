"""Weights and state become files, atomically, and back.

A model folder holds `model.safetensors` and `meta.json` (config, step, score, checksums); a
checkpoint of a run also `state.pt`, from which training goes on. Nothing in them runs code when loaded.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.data.tokenizer import Tokenizer
from mt.errors import CheckpointError
from mt.files import sha256_of, sync_files, sync_folder
from mt.model.transformer import Transformer

FORMAT = 1
WEIGHTS, STATE, META = "model.safetensors", "state.pt", "meta.json"
CHECKPOINTS, LAST, BEST = "checkpoints", "last", "best"


class DamagedError(CheckpointError):
    """A model folder that is not as it was written."""


@dataclass(frozen=True)
class LoadedModel:
    """All that translating takes."""

    model: Transformer
    tokenizer: Tokenizer
    config: Config
    meta: dict[str, Any]
    folder: Path


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, a tied matrix once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy `weights` into the model; CheckpointError where names or shapes differ."""
    own = weights_of(model)
    faults = [f"{name} is missing" for name in own.keys() - weights.keys()]
    faults += [f"{name} is not of this model" for name in weights.keys() - own.keys()]
    faults += [
        f"{name} must be {tuple(own[name].shape)}, found {tuple(weights[name].shape)}"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    if faults:
        raise CheckpointError(
            f"{where}: the weights do not fit the config: {'; '.join(sorted(faults)[:5])}; weights and config must "
            "come from one run: copy them again"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def build_model(config: Config, tokenizer: Tokenizer) -> Transformer:
    """The model of a config, with fresh weights."""
    sizes = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
    return Transformer(config.model, *sizes, tokenizer.joint)


# --- writing ----------------------------------------------------------------------------------


def save_model_folder(
    folder: Path,
    weights: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write a model folder; it is at `folder` whole, or not at all and what was there before still is.

    Raises CheckpointError where it cannot be written (a full disk, a read-only folder).
    """
    partial, before = _beside(folder, "partial"), _beside(folder, "before")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        cpu = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
        save_file(cpu, partial / WEIGHTS, metadata={"format": "pt"})
        if state is not None:
            torch.save(dict(state), partial / STATE)
        if tokenizer is not None:
            tokenizer.save(partial)
        checksums = {path.name: sha256_of(path) for path in sorted(partial.iterdir())}
        content = {"format": FORMAT, **meta, "sha256": checksums}
        (partial / META).write_text(
            json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8"
        )
        sync_files(partial)
        if folder.exists():  # a process killed here leaves it to `tidy`
            shutil.rmtree(before, ignore_errors=True)
            folder.rename(before)
        partial.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(before, ignore_errors=True)
    # torch reports a full disk as RuntimeError, safetensors as its own error.
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)  # it takes room too
        free = shutil.disk_usage(_existing_parent(folder)).free / 1e6
        need = sum(tensor.nbytes for tensor in weights.values()) * (1 if state is None else 3) / 1e6
        raise CheckpointError(
            f"{folder}: cannot be saved ({error}); it needs {need:,.1f} MB or more, {free:,.1f} MB are free there. "
            "What was saved before is whole: make room or give another place, then run the same command again"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}")


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


def point(run: Path, name: str, folder: Path) -> None:
    """Let `checkpoints/last` or `checkpoints/best` name a checkpoint, at one stroke."""
    link = run / CHECKPOINTS / name
    beside = link.with_name(f".{name}.partial")
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder.name)
    beside.replace(link)


def prune(run: Path, keep: set[str]) -> None:
    """Delete the checkpoints of a run whose names are not in `keep`."""
    for folder in checkpoints(run):
        if folder.name not in keep:
            # Renamed first: half deleted it must not pass for a damaged checkpoint.
            shutil.rmtree(_beside(folder, "partial"), ignore_errors=True)
            folder.rename(_beside(folder, "partial"))
            shutil.rmtree(_beside(folder, "partial"), ignore_errors=True)


def prune_after(run: Path, step: int) -> None:
    """Delete the checkpoints of a run after update `step`."""
    prune(run, {folder.name for folder in checkpoints(run) if step_of(folder.name) <= step})


def tidy(run: Path) -> None:
    """Clear away what a process left that was killed while it saved; only for who holds the run directory."""
    for path in (run / CHECKPOINTS).glob(".*.before"):
        folder = path.with_name(path.name[1:].removesuffix(".before"))
        if not folder.exists():
            path.rename(folder)
        shutil.rmtree(path, ignore_errors=True)
    for path in (run / CHECKPOINTS).glob(".*.partial"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


# --- reading ----------------------------------------------------------------------------------


def step_name(step: int) -> str:
    """Folder of the checkpoint after update `step`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """The update that `step_name` made a name of."""
    return int(name.removeprefix("step-"))


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; nothing that somebody else has put beside them."""
    return sorted(
        path
        for path in (run / CHECKPOINTS).glob("step-*")
        if re.fullmatch(r"step-\d{8,}", path.name)
    )


def read_meta(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """`meta.json` of a model folder whose files `names` are all there with their right checksums.

    Raises DamagedError where they are not, CheckpointError where a newer mt wrote them.
    """
    remedy = "use another checkpoint, or copy this one again"
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        _need(meta, format=int, sha256=dict)
        if meta["format"] > FORMAT:
            raise CheckpointError(
                f"{folder}: was written by a newer mt (format {meta['format']}, this one reads up to {FORMAT}); "
                "install that version"
            )
        for name in names:
            if sha256_of(folder / name) != meta["sha256"].get(name):
                raise DamagedError(
                    f"{folder / name}: damaged, its checksum differs from the one in {META}; {remedy}"
                )
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        raise DamagedError(f"{folder}: is no whole model folder ({reason}); {remedy}") from error
    except (ValueError, TypeError) as error:  # also what json makes of a damaged file
        raise DamagedError(
            f"{folder}: is no whole model folder ({META}: {error}); {remedy}"
        ) from error
    return cast("dict[str, Any]", meta)


def _need(meta: Any, **kinds: type) -> None:
    """ValueError where `meta.json` lacks a key, or holds something of another kind there."""
    if not isinstance(meta, dict):
        raise ValueError("it is no JSON object")
    if lacking := [key for key, kind in kinds.items() if not isinstance(meta.get(key), kind)]:
        raise ValueError(f"it lacks {', '.join(lacking)}")


def whole_checkpoints(
    run: Path, log: Callable[[str], None]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The undamaged checkpoints of a run and their metas, newest first; says which ones are passed over."""
    for folder in reversed(checkpoints(run)):
        try:
            yield folder, read_meta(folder, [WEIGHTS, STATE])
        except DamagedError as error:
            log(f"{error}. Passed over for the checkpoint before it")


def all_finite(weights: Iterable[Tensor]) -> bool:
    """Whether all of them are numbers, nan and infinities being none; waits for their device once."""
    return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())


def latest_good(run: Path, log: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The newest undamaged checkpoint of a run whose weights are all numbers, and its meta."""
    for folder, meta in whole_checkpoints(run, log):
        if all_finite(load_weights(folder).values()):
            return folder, meta
        log(
            f"{folder}: holds weights that are no numbers. Passed over for the checkpoint before it"
        )
    return None


def find_model(path: Path, option: str = "--model") -> Path:
    """The model folder that `--model` (or a key) names: itself, or the best (else the last) checkpoint of a run."""
    if (path / META).is_file():
        return path.resolve()
    for name in (BEST, LAST):
        link = path / CHECKPOINTS / name
        if (link / META).is_file():
            return link.resolve()
    if not path.exists():
        problem = "there is nothing at this path"
    elif (path / CHECKPOINTS).is_dir():
        problem = "this run has saved no checkpoint yet; wait for its first validation"
    else:
        problem = f"neither {META} nor {CHECKPOINTS}/{BEST} is in it"
    raise CheckpointError(
        f"{option} {path}: must be a run directory, a checkpoint or an exported folder; {problem}"
    )


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The weights in a model folder, on the CPU."""
    try:
        return load_file(folder / WEIGHTS)
    except Exception as error:
        raise CheckpointError(f"{folder / WEIGHTS}: cannot be read: {error}") from error


def load_state(folder: Path) -> dict[str, Any]:
    """The training state of a checkpoint. Only tensors and plain values are accepted, never code."""
    try:
        state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{folder / STATE}: cannot be read: {error}") from error
    return state


def load_model(path: Path) -> LoadedModel:
    """The model at a run directory, checkpoint or exported folder, with its tokenizer and config."""
    folder = find_model(path)
    meta = read_meta(folder, [WEIGHTS])
    try:
        _need(meta, config=dict, tokenizer=str)
    except ValueError as error:
        raise DamagedError(
            f"{folder}: is no whole model folder ({META}: {error}); copy it again"
        ) from error
    config = config_from_mapping(meta["config"], str(folder / META))
    # A checkpoint of a run shares the tokenizer of the run.
    of_run = not Tokenizer.is_in(folder) and folder.parent.name == CHECKPOINTS
    tokenizer = Tokenizer.load(folder.parent.parent if of_run else folder)
    if tokenizer.fingerprint != meta["tokenizer"]:
        raise CheckpointError(
            f"{folder}: its tokenizer is not the one it was trained with; put the run's tokenizer files there"
        )
    model = build_model(config, tokenizer)
    put_weights(model, load_weights(folder), str(folder / WEIGHTS))
    return LoadedModel(model.eval(), tokenizer, config, meta, folder)


def average(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints of one model, summed in float64."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        read_meta(folder, [WEIGHTS])
        weights = load_weights(folder)
        if total and {n: w.shape for n, w in weights.items()} != {
            n: w.shape for n, w in total.items()
        }:
            raise CheckpointError(
                f"{folder}: is not of the same model as {folders[0]}; average one run's checkpoints"
            )
        for name, tensor in weights.items():
            total[name] = total.get(name, 0) + tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


def average_run(run: Path, count: int, output: Path, by_score: bool = False) -> list[int]:
    """Write the mean of a run's newest (or, `by_score`, best) `count` checkpoints as a model folder; their updates.

    Raises CheckpointError if the run keeps fewer, or if something is at `output` already.
    """
    folders = checkpoints(run)
    if not folders:
        found = "there is no checkpoint in it" if run.exists() else "there is nothing at this path"
        raise CheckpointError(f"{run}: must be a run directory, {found}")
    metas = {folder: read_meta(folder, []) for folder in folders}
    if by_score:
        scored = [folder for folder in folders if metas[folder].get("score") is not None]
        # Of equally good ones the earlier is the better one, as in training.
        folders = sorted(scored, key=lambda folder: -metas[folder]["score"])
    chosen = sorted(folders[:count] if by_score else folders[-count:])
    if len(chosen) < count:
        option, kept, key = (
            ("--best", "with a score", "keep_best")
            if by_score
            else ("--last", "in all", "keep_last")
        )
        raise CheckpointError(
            f"{run}: {option} {count} checkpoints asked for, the run keeps {len(chosen)} {kept}; ask for fewer, or "
            f"train with a larger train.{key}"
        )
    if output.exists():
        raise CheckpointError(
            f"--output {output}: is there already; give another place, or remove it"
        )
    steps = [int(metas[folder]["step"]) for folder in chosen]
    kept_keys = {key: metas[chosen[-1]][key] for key in ("config", "tokenizer", "step")}
    save_model_folder(
        output, average(chosen), {**kept_keys, "averaged": steps}, tokenizer=Tokenizer.load(run)
    )
    return steps
