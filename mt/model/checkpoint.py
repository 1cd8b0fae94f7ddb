"""Save and load model folders: atomic writes, checksums, no code executed on loading.

A model folder holds `model.safetensors` and `meta.json` (config, step, score, checksums), and a
checkpoint of a training run `state.pt`, from which it resumes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from mt.artefacts import whole_folder
from mt.config.schema import Config
from mt.data.tokens.tokenizer import Tokenizer
from mt.data.tokens.writing import WRITING
from mt.errors import CheckpointError
from mt.files import require_new, sha256_of
from mt.model.transformer import Transformer
from mt.runs import model_folder
from mt.runs.model_folder import REMEDY, STATE, WEIGHTS, ModelFolder, open_model, read_meta, step_of
from mt.runs.origin import HISTORY, history_of


@dataclass(frozen=True)
class LoadedModel(ModelFolder):
    """A model folder with its model, ready to translate."""

    model: Transformer

    @classmethod
    def of(cls, opened: ModelFolder, model: Transformer) -> LoadedModel:
        return cls(opened.folder, opened.meta, opened.config, opened.tokenizer, model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy `weights` into the model; CheckpointError where names or shapes are not the model's."""
    parameters = weights_of(model)
    faults = [f"{name} is missing" for name in parameters.keys() - weights.keys()]
    faults += [f"{name} is not part of this model" for name in weights.keys() - parameters.keys()]
    faults += [
        f"{name} must be {tuple(parameters[name].shape)}, found {tuple(weights[name].shape)}"
        for name in parameters.keys() & weights.keys()
        if parameters[name].shape != weights[name].shape
    ]
    if faults:
        raise CheckpointError(
            f"{where}: the weights do not fit the config: {'; '.join(sorted(faults)[:5])}; "
            "weights and config must come from the same run: copy both again"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def build_model(config: Config, tokenizer: Tokenizer) -> Transformer:
    return Transformer(config.model, tokenizer.src.size, tokenizer.tgt.size, tokenizer.joint)


# --- writing ----------------------------------------------------------------------------------


def save_model_folder(
    folder: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any],
    state: Mapping[str, Any] | None = None, tokenizer: Tokenizer | None = None,
    texts: Mapping[str, str] | None = None, replace: bool = False,
) -> None:  # fmt: skip
    """Write a model folder atomically: a failure leaves whatever was at `folder` untouched.

    `texts` maps the names of further files to their content. Raises CheckpointError if the folder
    cannot be written (disk full, read-only), or exists, unless `replace` is true.
    """
    # Imported here, because `scripts/gpu_check.py` trains without safetensors.
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with whole_folder(folder, replace) as partial:
            cpu = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
            save_file(cpu, partial / WEIGHTS, metadata={"format": "pt"})
            # Readable by others if folders are: safetensors makes a file that is not.
            (partial / WEIGHTS).chmod(partial.stat().st_mode & 0o666)
            if state is not None:
                # Into an open file, because torch's own writer hides the system's error.
                with (partial / STATE).open("wb") as file:
                    torch.save(dict(state), file)
            if tokenizer is not None:
                tokenizer.save(partial)
            for name, text in (texts or {}).items():
                (partial / name).write_text(text, encoding="utf-8")
            checksums = {path.name: sha256_of(path) for path in sorted(partial.iterdir())}
            content = {"format": model_folder.FORMAT, **meta, "sha256": checksums}
            text = json.dumps(content, indent=1, ensure_ascii=False)
            (partial / model_folder.META).write_text(text, encoding="utf-8")
    except FileExistsError as error:  # by now, or where `..` is in its name
        problem = "already exists; give another path, or remove it"
        raise CheckpointError(f"{folder}: {problem}") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        free = shutil.disk_usage(next(filter(Path.exists, folder.absolute().parents))).free / 1e6
        copies = 3 + ("weights" in state) if state else 1  # Adam's state has twice their size
        need = sum(tensor.nbytes for tensor in weights.values()) * copies / 1e6
        raise CheckpointError(
            f"{folder}: cannot be saved ({reason_of(error)}); it needs over {need:,.1f} MB, "
            f"{free:,.1f} MB are free there. Everything saved earlier is intact: free some space "
            "or choose another folder, then run the same command again"
        ) from error


def reason_of(error: BaseException) -> str:
    """The system's reason for a failed write, which torch hides and safetensors has as a number."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if number := re.search(r"\(os error (\d+)\)", str(cause)):
            return os.strerror(int(number[1]))
        cause = cause.__context__
    return "writing failed"


# --- reading ----------------------------------------------------------------------------------


def all_finite(weights: Iterable[Tensor]) -> bool:
    """Whether no weight is NaN or infinite; synchronises with the device once."""
    return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a model folder, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {REMEDY}") from error


def load_state(folder: Path) -> dict[str, Any]:
    """Read the training state of a checkpoint: tensors and plain values only, never code."""
    path = folder / STATE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a foreign file's pickle protocol
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        # torch's message recommends to load the file unsafely.
        raise CheckpointError(
            f"{path}: refused, mt did not write it: only tensors and plain values are loaded, "
            "anything else could run code; use the state.pt that the run wrote"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{path}: cannot be read ({reason}); {REMEDY}") from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:  # depends on the damage
        raise CheckpointError(f"{path}: damaged, torch cannot read it; {REMEDY}") from error
    return state


def load_model(path: Path | ModelFolder) -> LoadedModel:
    """Load the model at a run directory or checkpoint, an averaged, imported or opened one."""
    opened = open_model(path)
    opened.verify()
    model = build_model(opened.config, opened.tokenizer)
    put_weights(model, load_weights(opened.folder), str(opened.folder / WEIGHTS))
    return LoadedModel.of(opened, model.eval())


def average(folders: Sequence[Path], shares: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Average the weights of checkpoints of one model in float64, by their `shares` if any."""
    shares = shares or [1.0] * len(folders)
    total: dict[str, Tensor] = {}
    for folder, share in zip(folders, shares, strict=True):
        for name, tensor in load_weights(folder).items():
            total[name] = total.get(name, 0) + share * tensor.double()
    return {name: (tensor / sum(shares)).float() for name, tensor in total.items()}


def average_run(
    run_dir: Path, count: int | None, output: Path, by_score: bool = False
) -> list[int]:
    """Write the average of a run's newest (`by_score`: best) checkpoints to `output`.

    `count` checkpoints are averaged, 5 if it is None. Returns their updates. Raises CheckpointError
    if the run keeps fewer, or if `output` exists.
    """
    # That before the first update is the model that training started from.
    folders = [path for path in model_folder.checkpoints(run_dir) if step_of(path.name)]
    if not folders:
        reason = "it has no checkpoint" if run_dir.exists() else "nothing exists at this path"
        raise CheckpointError(f"{run_dir}: must be a run directory; {reason}")
    metas = {folder: read_meta(folder, []) for folder in folders}
    by_default = " (the default)" if count is None else ""
    count = 5 if count is None else count
    ranked = model_folder.ranked_checkpoints(metas) if by_score else folders[::-1]
    kind, kept = ("best", "with a score") if by_score else ("last", "in all")
    chosen = sorted(ranked[:count])
    if len(chosen) < count:
        raise CheckpointError(
            f"{run_dir}: --{kind} {count}{by_default} checkpoints asked for, the run keeps "
            f"{len(chosen)} {kept}; ask for fewer, or train longer, or with a larger "
            f"train.keep_{kind} or a smaller train.valid_every"
        )
    steps = [step_of(folder.name) for folder in chosen]
    about = {"step": steps[-1], "averaged": steps, HISTORY: _history(chosen[-1:])}
    _write_average(chosen, None, output, about, "average checkpoints of one run")
    return steps


def average_models(models: Sequence[Path], shares: Sequence[float], output: Path) -> list[Path]:
    """Write the average of several models, weighed by `shares`, to `output`; return their folders.

    Between a model and one that was fine-tuned from it, it keeps more of the first than the second
    does (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models"). The other settings are
    those of the last model. Raises CheckpointError if one does not fit, or `output` exists.
    """
    folders = [model_folder.find_model(model, "MODEL") for model in models]
    mixed = [[str(folder), share] for folder, share in zip(folders, shares, strict=True)]
    remedy = "average models of one shape and vocabulary, such as a model and its fine-tuned one"
    about = {"step": 0, "mixed": mixed, HISTORY: _history(folders)}
    _write_average(folders, shares, output, about, remedy)
    return folders


def _history(folders: Sequence[Path]) -> list[dict[str, Any]]:
    histories = [history_of(folder, read_meta(folder, [])) for folder in folders]
    starts = dict.fromkeys(start.model_dump_json() for history in histories for start in history)
    return [json.loads(start) for start in starts]


def _write_average(
    folders: Sequence[Path], shares: Sequence[float] | None, output: Path,
    about: Mapping[str, Any], remedy: str,
) -> None:  # fmt: skip
    def computation(opened: ModelFolder) -> list[object]:
        model = opened.config.model  # whose dropout, and number of sinusoids, may change in a run
        free = () if model.learned_positions else ("max_positions",)
        values = [value for name, value in model if "dropout" not in name and name not in free]
        return [opened.meta["tokenizer"], *values]

    require_new(output)
    *others, newest = map(open_model, folders)
    for opened in (*others, newest):
        opened.verify()
        # Matrices of other heads or pieces may have the same shapes.
        if computation(opened) != computation(newest):
            problem = f"not the same model as {opened.folder}"
            raise CheckpointError(f"{newest.folder}: {problem}; {remedy}")
    names = {"config", "settled", "tokenizer", model_folder.SEVERAL_SENTENCES}
    meta = {**{name: value for name, value in newest.meta.items() if name in names}, **about}
    texts = {WRITING: newest.styles.to_json()} if newest.styles else {}
    weights = average(folders, shares)
    save_model_folder(output, weights, meta, tokenizer=newest.tokenizer, texts=texts)
