"""Shared by all exporters: packages, the new folder, and its model card from the run's record."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mt.artefacts import whole_folder
from mt.config.plan import HELD_OUT, Direction
from mt.data.reading.corpus_record import TrainedCorpus
from mt.data.tokens.sentencepiece_model import SPECIAL_PIECES
from mt.errors import CheckpointError, ConfigError
from mt.evaluation.metrics import METRICS
from mt.files import require_new
from mt.model.checkpoint import LoadedModel, reason_of
from mt.model.transformer import Transformer
from mt.package import VERSION
from mt.runs.model_folder import run_dir_of
from mt.runs.origin import Start, corpora_of, history_of, model_name
from mt.runs.records import metrics_lines, scored_step
from mt.runs.run_dir import read_manifest


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
    """A folder that becomes `output` if the block succeeds. CheckpointError if that cannot be."""
    require_new(output)
    try:
        with whole_folder(output, replace=False) as partial:
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


# --- the model card ----------------------------------------------------------------------------

UNKNOWN = {"src", "tgt", ""}  # codes that stand for no language: the config's defaults, and no code
HISTORY_COLUMNS = ["model", "updates", "began from", "corpora"]
CORPUS_COLUMNS = ["corpus", "version", "languages", "licence", "fetched", "files"]
SCORE_COLUMNS = ["text", "update", "metric", "score", "signature"]


def model_card(
    loaded: LoadedModel, usage: str, license_name: str | None = None, library: str | None = None
) -> str:
    """The card in Markdown, with the hub's header; `usage` says how to translate with `library`."""
    data = loaded.config.data
    pairs = loaded.data.directions or [Direction(data.src_lang, data.tgt_lang)]
    languages = [code for pair in pairs for code in pair if code not in UNKNOWN]
    title = ", ".join(f"{source} → {target}" for source, target in pairs)
    run_dir = run_dir_of(loaded.folder)
    manifest: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        manifest = read_manifest(run_dir) if run_dir else {}
    history = history_of(loaded.folder, loaded.meta)
    corpora = corpora_of(history)
    packages = manifest.get("packages")
    versions = packages if isinstance(packages, dict) else {"mt": VERSION}
    licences = dict.fromkeys(" ".join(corpus.licence.split()) for corpus in corpora)
    texts = dict.fromkeys(corpus.citation for corpus in corpora)
    cited = [f"```\n{text}\n```" for text in texts if not text.startswith("not stated")]
    coded = [f"- {json.dumps(code)}" for code in dict.fromkeys(languages)]
    header = ["---", *["language:"] * bool(coded), *coded]
    header += [f"license: {json.dumps(license_name)}"] * bool(license_name)
    header += [f"library_name: {library}"] * bool(library)
    sections = [
        "\n".join([*header, "tags:", "- translation", "---"]),
        f"# Translation model {title}",
        f"Licence: {license_name or 'not stated'}. Of the training data: {'; '.join(licences)}.",
        f"## Use\n\n{usage}{_literal_tokens(loaded)}",
        f"## Model\n\n{_shape(loaded)}",
        _table("## Data", ["file", "lines", "SHA-256"], _files(history, manifest)),
        _table("## Corpora", CORPUS_COLUMNS, map(_corpus, corpora)),
        "\n\n".join(["Citations, word for word:", *cited] if cited else []),
        _table("## History", HISTORY_COLUMNS, map(_start, history)),
        _table("## Scores", SCORE_COLUMNS, _scores(loaded, run_dir)),
        f"Made with {', '.join(f'{name} {number}' for name, number in versions.items())}.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _literal_tokens(loaded: LoadedModel) -> str:
    """Special tokens that SentencePiece gives for the same characters in a text, all unknown."""
    read = [f"`{piece}`" for piece in SPECIAL_PIECES if piece in loaded.tokenizer.src.pieces(piece)]
    text = (
        f"\n\nA text must not contain {', '.join(read)}: the vocabulary has none of these "
        "characters, so they are read as the special token."
    )
    return text if read else ""


def _shape(loaded: LoadedModel) -> str:
    config, tokenizer = loaded.config.model, loaded.tokenizer
    total = sum(parameter.numel() for parameter in loaded.model.parameters())
    sizes = f"{tokenizer.src.size:,} tokens for both languages"
    if not tokenizer.joint:
        sizes = f"{tokenizer.src.size:,} and {tokenizer.tgt.size:,} tokens"
    text = (
        f"Transformer (Vaswani et al., 2017) with {config.n_encoder_layers} encoder and "
        f"{config.n_decoder_layers} decoder layers, d_model {config.d_model}, {config.n_heads} "
        f"heads, d_ff {config.d_ff}, {config.norm}-norm, {config.activation}; {total:,} "
        f"parameters. Vocabulary: SentencePiece ({loaded.config.tokenizer.type}), {sizes}."
    )
    text += _weights(loaded.meta)
    if imported := loaded.meta.get("imported"):
        names = imported.get("hub"), imported.get("commit")
        source = " from {}, commit {}".format(*names) if all(names) else ""
        text += f" Imported{source} ({imported.get('format')})."
    return text


def _weights(meta: Mapping[str, Any]) -> str:
    """Of which update the weights are, or of which models the average, without their places."""
    if mixed := meta.get("mixed"):
        with suppress(TypeError, ValueError):  # damaged
            models = [f"{share:g} {model_name(Path(folder))}" for folder, share in mixed]
            return f" Weights: the average of several models, in the ratio {' : '.join(models)}."
    elif isinstance(step := meta.get("step"), int):
        averaged = meta.get("averaged")
        mean = f", the mean of updates {averaged}" if averaged else ""
        return f" Weights of update {step:,}{mean}."
    return ""


def _files(history: Sequence[Start], manifest: dict[str, Any]) -> Iterator[Sequence[object]]:
    """Each data file by its name alone: the folders of the training machine stay private."""
    files = [item for start in history for item in start.files.items()]
    others = manifest.get("valid_data", manifest.get("data"))  # of mt 0.3.0, all files
    files += others.items() if isinstance(others, dict) else ()
    shown = set()  # a file may have changed between two starts
    for path, file in files:
        if isinstance(file, dict) and (key := (path, file.get("sha256", ""))) not in shown:
            shown.add(key)
            lines = file.get("lines")
            name = Path(path).name
            if HELD_OUT in path:  # valid-0.src, which mt has written
                name = re.sub(r"(\w+)-(\d+)\.", r"data.\1[\2], held out, ", name)
            yield name, f"{lines:,}" if isinstance(lines, int) else "", f"`{key[1]}`"


def _corpus(corpus: TrainedCorpus) -> Sequence[object]:
    origin = f"{corpus.fetched} from {', '.join(corpus.url)}" if corpus.url else ""
    names = corpus.name, corpus.version, "-".join(corpus.languages)
    return *names, " ".join(corpus.licence.split()), origin, corpus.state


def _start(start: Start) -> Sequence[object]:
    names = "; ".join(corpus.name for corpus in start.corpora)
    return start.model, start.updates, start.began_from, names


def _scores(loaded: LoadedModel, run_dir: Path | None) -> Iterator[Sequence[object]]:
    """Scores of the validation at this checkpoint, and of the test sets: the last ones of each."""
    step = loaded.meta.get("step")
    if "averaged" in loaded.meta:  # its step is that of its newest checkpoint, which was scored
        return
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for values in metrics_lines(run_dir) if run_dir else ():
        if values is None:  # the last line of a run that was killed
            continue
        kind = values["kind"]
        if kind in ("valid", "test") and scored_step(values) == step:
            lines[kind, str(values.get("name", ""))] = values
    for (kind, text), values in lines.items():
        name = "validation" if kind == "valid" else Path(text).name
        for metric in METRICS:
            if isinstance(value := values.get(metric), float):
                signature = values.get("signature", "") if metric == "bleu" else ""
                yield name, f"{step:,}", metric, f"{value:.2f}", f"`{signature}`"


def _table(heading: str, columns: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    body = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
    table = [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *body)]
    return "\n".join([heading, "", *table]) if body else ""
