"""Models on the Hugging Face hub: fetch one by its name to import it, push an exported folder.

The library huggingface_hub keeps each file that it has fetched in a cache of its own (HF_HOME), and
takes up a connection that breaks. A model named `hf:OWNER/NAME` is imported once, into the user's
cache, and used from there without a network.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mt.artefacts import beside, exclusive, user_cache
from mt.errors import CheckpointError, ConfigError, MtError, first_line
from mt.runs.model_folder import HUB, META
from mt.terminal import can_show_bar, say

_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@(.+))?")
# The cache of imported models.
CACHE = "models"


class HubModel(NamedTuple):
    """A model on the hub, OWNER/NAME, and a branch, tag or commit; None: the newest commit."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return HUB + self.repository + (f"@{self.revision}" if self.revision else "")


def hub_model(text: str, option: str) -> HubModel:
    """Read `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`; `option` names it in messages."""
    if match := _NAME.fullmatch(text.removeprefix(HUB)):
        return HubModel(*match.groups())
    raise ConfigError(
        f"{option} {text}: must be {HUB}OWNER/NAME or {HUB}OWNER/NAME@REVISION, such as "
        f"{HUB}Helsinki-NLP/opus-mt-de-en; correct the name"
    )


# --- import -----------------------------------------------------------------------------------


def cached_model(text: str, option: str) -> Path:
    """The model folder of `hf:OWNER/NAME` in the user's cache, imported first if need be."""
    model = hub_model(text, option)
    remedy = f"set XDG_CACHE_HOME to a folder of yours, or: mt import huggingface {model} -o FOLDER"
    try:
        place = user_cache(CACHE) / str(model).removeprefix(HUB).replace("/", "--")
        if (place / META).is_file():
            return place
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        waiting = f"waiting for another process, which imports {model}"
        with exclusive(beside(place, "lock"), lambda: say(waiting)):
            if not (place / META).is_file():
                report = import_from_hub(model, place)
                say(f"{model}: {report}\nkept in {place}; remove it to import a newer revision")
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        raise CheckpointError(
            f"{option} {model}: cannot be kept in the user's cache ({error}); {remedy}"
        ) from error
    return place


def import_named(name: str, revision: str | None, output: Path) -> str:
    """Import a folder, or a model on the hub, to `output`; return what to report."""
    from mt.interop.huggingface_import import import_model

    if name.startswith(HUB) or (_NAME.fullmatch(name) and not Path(name).exists()):
        model = hub_model(name, "MODEL")
        if revision and model.revision not in (None, revision):
            raise ConfigError(f"MODEL {name}: --revision {revision} is another one; leave one out")
        try:
            return import_from_hub(model._replace(revision=revision or model.revision), output)
        except ConfigError as error:
            from huggingface_hub.errors import RepositoryNotFoundError

            is_missing = isinstance(error.__cause__, RepositoryNotFoundError)
            if is_missing and not name.startswith(HUB):
                raise ConfigError(f"there is no folder {name} here; {error}") from error
            raise
    if revision is not None:
        raise ConfigError(f"--revision: only with a name on the hub, OWNER/NAME, found {name}")
    return import_model(Path(name), output)


def import_from_hub(model: HubModel, output: Path) -> str:
    """Fetch a Marian model and write it to `output`, a new model folder; return what to report.

    Raises ConfigError for one that is not there or that `mt` cannot represent, before its weights
    are fetched where config.json tells; CheckpointError as `import_model` does.
    """
    from mt.files import require_new
    from mt.interop.huggingface_folder import read_config
    from mt.interop.huggingface_import import import_model

    require_new(output)
    folder = _fetch_small_files(model)
    try:
        read_config(folder)
        say(f"{model}: fetching the weights of commit {folder.name}")
        _fetch_weights(model, folder.name)
        origin = {"hub": model.repository, "commit": folder.name}
        report = import_model(folder, output, origin)
    except MtError as error:  # the folder in the cache of the library tells the user nothing
        raise type(error)(str(error).replace(str(folder), str(model))) from error
    return f"{report}\nfrom {model.repository}, commit {folder.name}"


def _fetch_small_files(model: HubModel) -> Path:
    """Fetch all but the weights; return their folder, which is named by its commit."""
    from mt.interop.huggingface_layout import CARD, CONFIG, GENERATION_CONFIG
    from mt.interop.huggingface_tokenizer import TOKENIZER_FILES

    names = [CARD, CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES]
    with _library_to_fetch(model) as library:
        return Path(
            library.snapshot_download(
                model.repository, revision=model.revision, allow_patterns=names
            )
        )


def _fetch_weights(model: HubModel, commit: str) -> None:
    """Fetch the weights beside the small files, if the hub has any."""
    from mt.interop.huggingface_layout import PYTORCH, SAFETENSORS

    with _library_to_fetch(model, bar=can_show_bar()) as library:
        for name in (SAFETENSORS, PYTORCH):
            try:
                # Not in a thread, as `snapshot_download` does: Ctrl-C would wait for its end.
                library.hf_hub_download(model.repository, name, revision=commit)
                return
            except library.errors.EntryNotFoundError as error:
                missing = error
        if isinstance(missing, library.errors.LocalEntryNotFoundError):  # without a network
            raise missing


def _library_to_fetch(model: HubModel, bar: bool = False) -> AbstractContextManager[Any]:
    elsewhere = (
        f"fetch it on another machine (hf download {model.repository} --local-dir FOLDER), copy "
        "the folder here, and run: mt import huggingface FOLDER -o MODEL"
    )
    return _library(f"{model}: cannot be fetched", model.repository, elsewhere, bar)


# --- push -------------------------------------------------------------------------------------


def check_push(repository: str, folder: Path) -> None:
    """Raise ConfigError if `folder` cannot be pushed to a repository, OWNER/NAME, once exported."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ConfigError(
            f"--push {repository}: must be OWNER/NAME, where OWNER is your account on the hub or "
            "an organisation; correct the name"
        )
    later = f"leave out --push, and later run: hf upload {repository} {folder}"
    with _library(f"--push {repository}: nothing was exported", repository, later) as library:
        if library.get_token() is None:
            raise ConfigError(
                f"--push {repository}: needs a token of the hub that may write, found none; set "
                "HF_TOKEN, or run: hf auth login"
            )
        library.HfApi().whoami()


def push(folder: Path, repository: str, private: bool) -> str:
    """Upload an exported folder to a repository, made if there is none; return what to report.

    All files are one commit, so nobody fetches a part of them.
    """
    failed = f"--push {repository}: the export in {folder} is whole, but was not uploaded"
    later = f"later run: hf upload {repository} {folder}"
    with _library(failed, repository, later, can_show_bar()) as library:
        api = library.HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        files = [library.CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
        commit = api.create_commit(repository, files, commit_message="Export from mt")
        seen = "private" if api.model_info(repository).private else "public"
    return f"pushed to {_page(library, repository)} ({seen}), commit {commit.oid}"


# --- the library ------------------------------------------------------------------------------


@contextmanager
def _library(failed: str, repository: str, without: str, bar: bool = False) -> Iterator[Any]:
    """Give the library huggingface_hub; each of its errors becomes a ConfigError.

    `failed` begins its message; `without`: what to do without a network; `bar`: it shows progress.
    """
    import huggingface_hub
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    logging.getLogger(huggingface_hub.__name__).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of HF_HUB_DISABLE_PROGRESS_BARS
            (enable_progress_bars if bar else disable_progress_bars)()
            yield huggingface_hub
    except MtError:
        raise
    except Exception as error:  # the library passes on what its many parts raise
        reason = _reason(huggingface_hub, error, repository, without)
        raise ConfigError(f"{failed}: {reason}") from error


def _reason(library: Any, error: Exception, repository: str, without: str) -> str:
    """Why the library failed, and what to do."""
    errors, page = library.errors, _page(library, repository)
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # why it looked for local files alone
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return (
            f"it is gated; accept its licence at {page}, then set HF_TOKEN to a token of that "
            "account, or run: hf auth login"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        similar = _similar(library, repository)
        hint = f"; did you mean {' or '.join(similar)}?" if similar else "; correct the name"
        return f"there is no {page}, or it is private{hint} (a private one needs HF_TOKEN)"
    if isinstance(error, errors.HFValidationError):
        return f"{first_line(error).rstrip('.')}; correct the name"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no such revision; give a branch, tag or commit of {page}/commits/main"
    if status in (401, 403):
        return f"the hub refuses it (error {status}); check HF_TOKEN and its rights, or {without}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set; unset it, or {without}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; set HF_HOME to a folder of yours"
    hub, reason = library.constants.ENDPOINT, first_line(error)
    return (
        f"no usable answer from {hub} ({reason}); check the network and run the command again, "
        f"or {without}"
    )


def _page(library: Any, repository: str) -> str:
    return f"{library.constants.ENDPOINT}/{repository}"


def _similar(library: Any, repository: str) -> list[str]:
    """Models of this name of other owners."""
    with suppress(Exception):
        models = library.HfApi().list_models(search=repository.partition("/")[2], limit=3)
        return [model.id for model in models]
    return []
