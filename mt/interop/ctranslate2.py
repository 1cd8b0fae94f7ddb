"""Export a model to CTranslate2, check that both assign the same probabilities; a shortlist for it.

Shapes: V vocabulary, D d_model. CTranslate2 stores matrices as torch does, (outputs, inputs).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mt.data.tokens.directions import DirectedPairs, tokens_before
from mt.data.tokens.store import open_built
from mt.data.tokens.tokenizer import EOS, Tokenizer
from mt.errors import ConfigError, DataError
from mt.files import write_whole
from mt.interop.exporter import import_package, model_card, new_folder
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import Transformer
from mt.runs.model_folder import open_model, run_dir_of
from mt.runs.run_dir import STORE
from mt.search.ctranslate2_model import QUANTIZATIONS, scorer, specification
from mt.search.scoring import TOLERANCE, Parity, prove
from mt.terminal import say
from mt.translate.load_ctranslate2 import SHORTLIST

# Where both have weights rounded to int8: a weight halfway between two steps may go either way.
INT8_TOLERANCE = 1e-2
# How to translate with the folder, for its model card.
USAGE = Path(__file__).with_name("usage_ctranslate2.txt").read_text(encoding="utf-8").rstrip("\n")


def export(
    loaded: LoadedModel,
    output: Path,
    quantization: str | None = None,
    shortlist: bool = False,
    language: str | None = None,
) -> Parity:
    """Write the model to `output`, a new folder, with SentencePiece models and a model card.

    `quantization`: of `QUANTIZATIONS`; None: fp32. `shortlist`: learned from the run's token store.
    `language`: the one to translate into, of several. Raises ConfigError without ctranslate2, and
    CheckpointError as `huggingface_export` does; then nothing is left at `output`.
    """
    quantization = quantization or "fp32"
    store = store_of(loaded.folder) if shortlist else None
    data = loaded.data
    first_ids = loaded.tokenizer.before_source(language, data) if language else []
    with new_folder(output, loaded.model) as partial:
        parity = write_model(loaded, partial, quantization, first_ids)
        notes = [f"{output}: {parity}"]
        loaded.tokenizer.save(partial)
        source, *_, target = sorted(path.name for path in partial.glob("*.model")) * 2
        usage = USAGE.replace("FOLDER", output.name)
        usage = usage.replace("SOURCE", source).replace("TARGET", target)
        if first_ids:
            usage += (
                f"\n\nIt translates into {language}: its language token is put before each source."
            )
        elif ids := loaded.tokenizer.languages_of(data).values():
            tokens = loaded.tokenizer.src.pieces_of([*ids])
            usage += f"\n\nOne of {', '.join(tokens)} before the pieces names the target language."
        write_whole(partial / "README.md", model_card(loaded, usage))
        if store is not None:
            pieces = write_shortlist(store, loaded.tokenizer, partial / SHORTLIST)
            notes.append(f"{output / SHORTLIST}: candidates of {pieces:,} source pieces")
    for note in notes:
        say(note)
    return parity


def write_model(
    loaded: LoadedModel, folder: Path, quantization: str, first_ids: Sequence[int] = ()
) -> Parity:
    """Write what CTranslate2 reads to a folder, then prove it; raises as `export` does.

    Computations in float32 with equal weights are compared; then what rounding changes is measured.
    `first_ids`: the token of a language that CTranslate2 puts before each source.
    """
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ConfigError(f"--quantization: must be one of {known}, found {quantization!r}")
    library = import_package("ctranslate2")
    specification(loaded.model, loaded.tokenizer, quantization, first_ids).save(str(folder))
    score = scorer(loaded.tokenizer, library.Translator(str(folder), compute_type="float32"))
    if quantization == "fp32":
        return prove(loaded, "ctranslate2", score, first_ids=first_ids)
    same = replace(loaded, model=rounded(loaded.model, quantization))
    tolerance = INT8_TOLERANCE if quantization == "int8" else TOLERANCE
    parity = prove(same, "ctranslate2", score, tolerance, first_ids)
    if quantization == "int8":  # as it runs: activations are rounded, too
        score = scorer(loaded.tokenizer, library.Translator(str(folder), compute_type="int8"))
    changed = prove(loaded, "ctranslate2", score, math.inf, first_ids)
    return replace(parity, quantization=quantization, change=changed.mean_difference)


def rounded(model: Transformer, quantization: str) -> Transformer:
    """Return a copy whose float32 weights have only values that the precision can store.

    fp16 and bf16 round everything. int8 rounds embeddings and matrices, each row with a scale of
    its own: 127 over its largest absolute value.
    """
    copied = copy.deepcopy(model)
    if quantization != "int8":
        dtype = getattr(torch, QUANTIZATIONS[quantization])
        for tensor in (*copied.parameters(), *copied.buffers()):
            tensor.data = tensor.data.to(dtype).float()
        return copied
    layers = (each for each in copied.modules() if isinstance(each, nn.Linear | nn.Embedding))
    for matrix in {layer.weight for layer in layers}:
        largest = matrix.data.abs().amax(1, keepdim=True)  # (rows, 1)
        scale = 127 / torch.where(largest == 0, 127.0, largest)
        matrix.data = (matrix.data * scale).round() / scale
    return copied


# --- a lexical shortlist ------------------------------------------------------------------------

# For each source piece the target pieces that may translate it: CTranslate2's vocabulary map. The
# output layer computes only the candidates of the pieces in a batch, and those that always are:
# less work, but an output may lack a word, and depends on what else is in its batch. The candidates
# come from IBM Model 1 (Brown et al., 1993, section 4.2), trained by expectation maximisation.
CANDIDATES = 30  # of each source piece, in each target language
ALWAYS = 150  # most frequent target pieces of a language, candidates of every source
ITERATIONS = 5
PAIRS_PER_CHUNK = 10_000  # whose target pieces are counted at once
# Links between a source and a target position that are kept in memory, about 30 bytes each.
MOST_LINKS = 20_000_000

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def store_of(folder: Path) -> Path:
    """Return the token store that a checkpoint, or average in a run directory, was trained on."""
    store = (run_dir_of(folder) or folder.parent) / STORE / "train"
    if not store.exists():
        raise DataError(
            f"--shortlist: is learned from the token store of the run, but there is no {store}; "
            "give the run directory, or a model in it, to --model, or leave out --shortlist"
        )
    return store


def write_shortlist(store: Path, tokenizer: Tokenizer, path: Path) -> int:
    """Write the shortlist for the last stage's directions; return the number of source pieces."""
    flows = [flow for flow in open_model(store.parents[1]).data.stages[-1].flows if flow.weight]
    pairs = DirectedPairs.of(open_built(store), flows, tokens_before(flows, tokenizer))
    n_languages = len({flow.direction.tgt for flow in flows})
    lines = [f"{line}\n" for line in shortlist(pairs, tokenizer, n_languages)]
    write_whole(path, "".join(lines))
    return len(lines) - 1


def shortlist(pairs: DirectedPairs, tokenizer: Tokenizer, n_languages: int) -> Iterator[str]:
    """Yield the lines: a source piece, a tab, its candidates in each language; no piece: always."""
    src_texts = tokenizer.src.all_pieces()
    tgt_texts = tokenizer.tgt.all_pieces()
    counts = np.zeros(len(tgt_texts), np.int64)
    for start in range(0, len(pairs), PAIRS_PER_CHUNK):
        chunk = pairs.pairs(np.arange(start, min(start + PAIRS_PER_CHUNK, len(pairs))))
        counts += np.bincount(np.concatenate([tgt for _, tgt in chunk]), minlength=len(counts))
    frequent = np.argsort(-counts, kind="stable")[: ALWAYS * n_languages]
    yield "\t" + " ".join(tgt_texts[i] for i in frequent.tolist() if i > EOS and counts[i])
    source, target, probability = translation_table(pairs, len(tgt_texts))
    order = np.lexsort((target, -probability, source))
    source, target = source[order], target[order]
    starts = np.searchsorted(source, np.arange(len(src_texts) + 1))
    known = set(tgt_texts)
    for piece in range(EOS + 1, len(src_texts)):
        likely = target[starts[piece] : starts[piece + 1]][: CANDIDATES * n_languages].tolist()
        texts = [tgt_texts[i] for i in likely]
        if src_texts[piece] in known and src_texts[piece] not in texts:
            texts.append(src_texts[piece])  # names and numbers are copied
        if texts:
            yield f"{src_texts[piece]}\t{' '.join(texts)}"


def translation_table(pairs: DirectedPairs, tgt_size: int) -> tuple[Indices, Indices, Floats]:
    """IBM Model 1: source ids (eos: empty word), target ids, p(target | source), side by side."""
    links = (pairs.src_lengths.astype(np.int64) + 1) * pairs.tgt_lengths
    step = 1 + int(links.sum()) // MOST_LINKS
    keys: list[Indices] = []
    places: list[Indices] = []
    n_places = 0
    for number in range(0, len(pairs), step):
        src, tgt = (ids.astype(np.int64) for ids in pairs.pair(number))
        src = np.append(src, EOS)
        keys.append((src[:, None] * tgt_size + tgt).ravel())  # (S, T)
        places.append(np.tile(np.arange(n_places, n_places + len(tgt)), len(src)))
        n_places += len(tgt)
    unique, link = np.unique(np.concatenate(keys), return_inverse=True)
    place = np.concatenate(places)
    source, target = unique // tgt_size, unique % tgt_size
    probability = np.full(len(unique), 1.0 / tgt_size)
    for _ in range(ITERATIONS):
        weight = probability[link]
        weight /= np.bincount(place, weight, n_places)[place]  # of the link, given the target word
        expected = np.bincount(link, weight, len(unique))
        probability = expected / np.bincount(source, expected)[source]
    return source, target, probability
