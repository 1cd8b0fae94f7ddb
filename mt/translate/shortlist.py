"""A lexical shortlist: for each source piece the target pieces that may translate it.

CTranslate2 calls it a vocabulary map. With it, the output layer computes only the candidates of the
pieces in a batch, and those that are always candidates: less work, but an output may lack a word,
and depends on what else is in its batch. The candidates come from IBM Model 1 (Brown et al., 1993,
section 4.2), trained on token ids with expectation maximisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mt.data.tokens.directions import DirectedPairs, tokens_before
from mt.data.tokens.store import open_built
from mt.data.tokens.tokenizer import EOS, Tokenizer
from mt.errors import ConfigError, DataError
from mt.files import write_whole
from mt.runs.model_folder import open_model, run_dir_of
from mt.runs.run_dir import STORE

SHORTLIST = "vmap.txt"  # by the name that CTranslate2 gives it
CANDIDATES = 30  # of each source piece, in each target language
ALWAYS = 150  # most frequent target pieces of a language, candidates of every source
ITERATIONS = 5
PAIRS_PER_CHUNK = 10_000  # whose target pieces are counted at once
# Links between a source and a target position that are kept in memory, about 30 bytes each.
MOST_LINKS = 20_000_000

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def store_of(folder: Path) -> Path:
    """Return the token store that the model was trained on; DataError without.

    `folder`: a checkpoint, or an average that lies in the run directory.
    """
    store = (run_dir_of(folder) or folder.parent) / STORE / "train"
    if not store.exists():
        raise DataError(
            f"--shortlist: is learned from the token store of the run, but there is no {store}; "
            "give the run directory, or a model in it, to --model, or leave out --shortlist"
        )
    return store


def write_shortlist(store: Path, tokenizer: Tokenizer, path: Path) -> int:
    """Write the shortlist of a run's token store to `path`; return the number of source pieces.

    It is for the directions of the last stage of training.
    """
    data = open_model(store.parents[1]).data
    flows = [flow for flow in data.stages[-1].flows if flow.weight]
    pairs = DirectedPairs.of(open_built(store), flows, tokens_before(flows, tokenizer))
    n_languages = len({flow.direction.tgt for flow in flows})
    lines = [f"{line}\n" for line in shortlist(pairs, tokenizer, n_languages)]
    write_whole(path, "".join(lines))
    return len(lines) - 1


def read_shortlist(path: Path, tokenizer: Tokenizer) -> bytes:
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


def shortlist(pairs: DirectedPairs, tokenizer: Tokenizer, n_languages: int) -> Iterator[str]:
    """Yield the lines of the file: a source piece, a tab, its candidates; no piece: always.

    There are as many candidates for each of the `n_languages` that the pairs are translated into.
    """
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
    """Train IBM Model 1: return source ids, target ids and p(target | source), side by side.

    The source's eos stands for the empty word. Of a large corpus, every n-th pair is used.
    """
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
