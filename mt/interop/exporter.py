"""Shared by all exporters, beside the proof: writing a new folder, comparing translations.

The proof of equal probabilities is `prove` in search/parity.py. What they come to is shown on the
validation text: how many translations are the same, and both BLEU scores.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mt.artefacts import whole_folder
from mt.config.plan import Corpus, DataPlan, plan_data
from mt.config.schema import DataConfig, DecodeConfig
from mt.data.reading.corpus import read_pairs
from mt.errors import CheckpointError, ConfigError, MtError
from mt.evaluation.bleu_tokenizer import choose_tokenizer
from mt.evaluation.metrics import Bleu
from mt.files import require_new
from mt.model.checkpoint import LoadedModel, reason_of
from mt.model.transformer import Transformer
from mt.runtime.devices import Device
from mt.search.engine import TorchEngine
from mt.search.engine_contract import Engine
from mt.search.inference import Inference
from mt.translate.assemble import make_translator
from mt.translate.loaded_engine import LoadedEngine

# Sentence pairs of the validation text that are translated.
LINES = 200
# Translates lines with these settings of the search.
Translate = Callable[[Sequence[str], DecodeConfig], Sequence[str]]


def import_package(name: str) -> Any:
    """Import the package that an export needs; ConfigError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"mt export: this export needs the package {name}, which cannot be imported ({error}); "
            f"run: pip install {name}"
        ) from error


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Keep progress bars and warnings of transformers off stderr."""
    logging = library.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


@contextmanager
def new_folder(output: Path, model: Transformer) -> Iterator[Path]:
    """Give a folder to write into, which becomes `output` if nothing is raised inside.

    Raises CheckpointError if `output` exists, or if the weights of `model` cannot be written there.
    """
    require_new(output)
    try:
        with whole_folder(output, "error") as partial:
            yield partial
    except FileExistsError as error:  # by now
        raise CheckpointError(
            f"--output {output}: was made meanwhile; give another path"
        ) from error
    except (OSError, SafetensorError) as error:
        need = sum(weight.numel() * 4 for weight in model.parameters()) / 1e6
        raise CheckpointError(
            f"--output {output}: cannot be written ({reason_of(error)}); the export needs "
            f"{need:,.1f} MB: free some space there, or give a folder on another disk that you "
            "may write to"
        ) from error


def validation_text(data: DataPlan, to: str | None = None) -> tuple[Corpus | None, str | None]:
    """The validation text, of several the first one `to` a language; that, if a token names it."""
    for text in data.valid:
        into = text.direction.tgt
        if to in (None, into):
            return text, into if data.has_tokens else to
    return None, None


def translate_plainly(
    loaded: LoadedModel, engine: Engine, to: str | None, lines: Sequence[str]
) -> list[str]:
    """Translate lines as they are; `to`: the language whose token begins them, None: no token."""
    data = loaded.config.data
    plain = LoadedEngine(
        engine=engine,
        tokenizer=loaded.tokenizer,
        max_source=data.max_tokens,
        data=plan_data(DataConfig() if to is None else data),
    )
    return [translation.texts[0] for translation in make_translator(plain, to).translate(lines)]


def compare_translations(
    loaded: LoadedModel,
    translate: Translate,
    search: DecodeConfig | None = None,
    to: str | None = None,
) -> str:
    """Translate the validation text with mt in fp32 and with `translate`; return what to report.

    `search`: settings for both; None means those of the model's config. `to`: the language, of a
    model that knows several; None: that of the text. A model may be exported far
    from where it was trained: if that text cannot be read, the reason is returned.
    """
    data = plan_data(loaded.config.data)
    valid, into = validation_text(data, to)
    if valid is None:
        missing = f" into {to}" if to else ""
        return f"the model's config has no data.valid{missing}, so no translations were compared"
    try:
        pairs = list(itertools.islice(read_pairs(valid.source, data.root, valid.name), LINES))
    except MtError as error:
        return f"no translations were compared: {error}"
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    search = search or loaded.config.decode
    engine = TorchEngine(Inference(loaded.model, Device(torch.device("cpu"), "fp32")), search)
    ours = translate_plainly(loaded, engine, into, sources)
    theirs = list(translate(sources, search))
    same = sum(line == other for line, other in zip(ours, theirs, strict=True))
    tokenize = choose_tokenizer(valid.direction.tgt, loaded.config.train.bleu_tokenize)
    bleu = Bleu([references], tokenize=tokenize)
    our_bleu, their_bleu = (bleu.score(texts).value for texts in (ours, theirs))
    return (
        f"first {len(pairs):,} lines of data.valid: {same:,} translations are the same, BLEU "
        f"{their_bleu:.2f}, of mt {our_bleu:.2f} (difference {their_bleu - our_bleu:+.2f})"
    )
