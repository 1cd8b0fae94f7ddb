"""Models on the Hugging Face hub, fetched by their name to import them.

The library huggingface_hub keeps what it has fetched (HF_HOME) and continues what has broken off.
"""

from __future__ import annotations

import re
from pathlib import Path

from mt.errors import ConfigError, MtError
from mt.files import require_new
from mt.interop.huggingface_folder import read_config
from mt.interop.huggingface_import import import_model
from mt.interop.huggingface_layout import CARD, CONFIG, GENERATION_CONFIG, PYTORCH, SAFETENSORS
from mt.interop.huggingface_tokenizer import TOKENIZER_FILES
from mt.runs.model_folder import HUB
from mt.terminal import can_show_bar, say


def import_named(name: str, revision: str | None, output: Path) -> str:
    """Import a folder, or a model on the hub, to `output`; return what to report.

    Raises ConfigError for one that is not there, cannot be fetched or cannot be represented,
    CheckpointError as `import_model` does.
    """
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    require_new(output)
    model = name.removeprefix(HUB)
    if Path(name).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        if revision is not None:
            raise ConfigError(f"--revision: only with a name on the hub, OWNER/NAME, found {name}")
        return import_model(Path(name), output)
    if not can_show_bar():
        disable_progress_bars()
    small = [CARD, CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES]
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=small))
        read_config(folder)  # before the weights of a model that mt cannot represent
        say(f"{model}: fetching the weights of commit {folder.name}")
        _fetch_weights(model, folder.name)
        report = import_model(folder, output, {"hub": model, "commit": folder.name})
    except MtError as error:  # the folder in the cache of the library tells the user nothing
        raise type(error)(str(error).replace(str(folder), model)) from error
    except (OSError, ValueError, errors.EntryNotFoundError) as error:
        hint = "" if name.startswith(HUB) else f"there is no folder {name} here, and "
        raise ConfigError(
            f"{model}: {hint}it cannot be fetched from the hub; correct the name, or on a machine "
            f"with a network run: hf download {model} --local-dir FOLDER, and import FOLDER "
            f"({' '.join(str(error).split())})"
        ) from error
    return f"{report}\nfrom {model}, commit {folder.name}"


def _fetch_weights(model: str, commit: str) -> None:
    """Fetch the weights, if there are any. Unlike `snapshot_download`, Ctrl-C ends it at once."""
    from huggingface_hub import errors, hf_hub_download

    for weights in (SAFETENSORS, PYTORCH):
        try:
            hf_hub_download(model, weights, revision=commit)
            return
        except errors.LocalEntryNotFoundError:  # without a network
            raise
        except errors.EntryNotFoundError:
            continue
