"""BPE-dropout and unigram sampling: other tokens for the same text, drawn as the papers say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
import pytest
from subwords import NASTY, STRONG, made_lines, rows, sampling_of, store_of, trained

from mt.data.reading.text_files import normalize_line
from mt.data.tokens import subword_regularisation
from mt.data.tokens.subword_regularisation import BpeDropout, Segmenter, UnigramSampling
from mt.data.tokens.tokenizer import UNK, Tokenizer


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(kind: str) -> Tokenizer:
    return trained(kind)


# --- the same text ------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("factor", [0.1, 1, 2])
def test_sampled_tokens_are_other_tokens_for_the_same_text(
    kind: str, joint: bool, factor: float
) -> None:
    tokenizer = trained(kind, joint)
    lines = NASTY + made_lines(200)
    # One way round and the other, so that both vocabularies meet what they have never seen.
    pairs = [*zip(lines, lines, strict=True), *zip(reversed(lines), lines, strict=True)]
    store = store_of(tokenizer, pairs)
    sampled = sampling_of(store, tokenizer, kind, factor * STRONG[kind], max_tokens=1000)(0)
    src, tgt = rows(sampled)
    src_model = Tokenizer(tokenizer.models[0])  # decodes source ids
    assert src_model.tgt.decode(src) == [normalize_line(line) for line, _ in pairs]
    assert tokenizer.tgt.decode(tgt) == [normalize_line(line) for _, line in pairs]
    assert sum(a != b for a, b in zip(src + tgt, chain(*rows(store)), strict=True)) > 100
    assert (sampled.src.dtype, sampled.kept, len(sampled)) == (
        store.src.dtype,
        store.kept,
        len(store),
    )


def test_without_randomness_it_is_the_best_segmentation(kind: str, tokenizer: Tokenizer) -> None:
    """BPE that skips nothing, and the best unigram segmentation, are what SentencePiece gives."""
    lines = NASTY + made_lines(300)
    store = store_of(tokenizer, [(line, line) for line in lines])
    alpha = 1e-300 if kind == "bpe" else 1e300
    assert rows(sampling_of(store, tokenizer, kind, alpha, max_tokens=1000)(0)) == rows(store)


def test_bpe_that_skips_nearly_all_spells_characters() -> None:
    tokenizer = trained("bpe")
    store = store_of(tokenizer, [("Hunde schlafen", "Häuser")])
    ((src,), _) = rows(sampling_of(store, tokenizer, "bpe", 1 - 1e-12)(0))
    assert tokenizer.src.pieces_of(src) == list("▁Hunde▁schlafen")


def test_unknown_characters_stay_unknown_and_the_rest_is_sampled(kind: str) -> None:
    tokenizer = trained(kind, byte_fallback=False)
    store = store_of(tokenizer, [("Hunde 水 schlafen", "HUNDE")] * 50)
    seen = {tuple(row) for row in rows(sampling_of(store, tokenizer, kind, STRONG[kind])(0))[0]}
    assert len(seen) > 3
    assert all(row.count(UNK) == 1 for row in seen)
    assert {"".join(tokenizer.src.pieces_of([i for i in row if i != UNK])) for row in seen} == {
        "▁Hunde▁▁schlafen"
    }


def test_rows_that_would_become_too_long_keep_their_tokens(kind: str, tokenizer: Tokenizer) -> None:
    store = store_of(tokenizer, [(line, line) for line in made_lines(300)])
    longest = int(np.median(store.src_lengths))
    sampled = sampling_of(store, tokenizer, kind, STRONG[kind], max_tokens=longest)(0)
    before, after = rows(store)[0], rows(sampled)[0]
    assert all(len(new) <= longest or new == old for old, new in zip(before, after, strict=True))
    assert all(new == old for old, new in zip(before, after, strict=True) if len(old) > longest)
    assert sum(new != old for old, new in zip(before, after, strict=True)) > 20
    assert tokenizer.tgt.decode(after) == tokenizer.tgt.decode(before)


# --- drawn as the papers say --------------------------------------------------------------------


def drawn(segmenter: Segmenter, row: Sequence[int], n: int) -> Counter[tuple[int, ...]]:
    """How often each segmentation of a row came in `n` draws."""
    ids, lengths = segmenter.sample(np.tile(row, n), np.full(n, len(row)), np.random.default_rng(3))
    return Counter(tuple(part.tolist()) for part in np.split(ids, lengths.cumsum()[:-1]))


def check_shares(seen: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> None:
    """Within 4.5 standard deviations of what is expected, each; and nothing else."""
    n = seen.total()
    assert sum(expected.values()) == pytest.approx(1)
    assert seen.keys() <= expected.keys()
    for tokens, share in expected.items():
        assert abs(seen[tokens] - n * share) <= 4.5 * (n * share) ** 0.5 + 1, tokens


def dropout(merges_of: Mapping[str, int], word: str, alpha: float) -> dict[tuple[str, ...], float]:
    """The probability of each outcome of BPE-dropout, by following both fates of every merge."""
    ended: dict[tuple[str, ...], float] = {}

    def follow(tokens: tuple[str, ...], skipped: frozenset[int], probability: float) -> None:
        """`skipped`: number of the left token of the merges that were skipped."""
        merges = [
            (merges_of[a + b], i)
            for i, (a, b) in enumerate(pairwise(tokens))
            if a + b in merges_of and i not in skipped
        ]
        if not merges:
            ended[tokens] = ended.get(tokens, 0.0) + probability
            return
        _, i = min(merges)
        follow(tokens, skipped | {i}, probability * alpha)
        joined = (*tokens[:i], tokens[i] + tokens[i + 1], *tokens[i + 2 :])
        # The merges of its neighbours with it are new ones.
        kept = frozenset(j if j < i else j - 1 for j in skipped if j not in (i - 1, i, i + 1))
        follow(joined, kept, probability * (1 - alpha))

    follow(tuple(word), frozenset(), 1.0)
    return ended


@pytest.mark.parametrize("word", ["▁Hunde", "▁schläft", "▁12", "▁Häuser"])
@pytest.mark.parametrize("alpha", [0.1, 0.6])
def test_each_merge_is_skipped_with_probability_alpha(word: str, alpha: float) -> None:
    tokenizer = trained("bpe")
    vocabulary = tokenizer.src.scored_pieces()
    ids = {text: number for number, (text, _) in enumerate(vocabulary)}
    best_first = sorted(
        (text for text, _ in vocabulary if len(text) > 1),
        key=lambda text: -vocabulary[ids[text]][1],
    )
    outcomes = dropout({text: rank for rank, text in enumerate(best_first)}, word, alpha)
    expected = {tuple(ids[text] for text in tokens): share for tokens, share in outcomes.items()}
    row = tokenizer.src.encode([word.removeprefix("▁")])[0]
    check_shares(drawn(BpeDropout(vocabulary, alpha), row, 20_000), expected)


def segmentations(word: str, known: Mapping[str, int]) -> list[tuple[str, ...]]:
    if not word:
        return [()]
    cuts = [cut for cut in range(1, len(word) + 1) if word[:cut] in known]
    return [(word[:cut], *rest) for cut in cuts for rest in segmentations(word[cut:], known)]


@pytest.mark.parametrize("word", ["▁Hunde", "▁schläft", "▁x12"])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_segmentations_come_as_often_as_their_smoothed_probability_says(
    word: str, alpha: float
) -> None:
    tokenizer = trained("unigram")
    vocabulary = tokenizer.src.scored_pieces()
    ids = {text: number for number, (text, _) in enumerate(vocabulary)}
    byte = tokenizer.src.pieces("x")[-1]  # never seen: spelled as a byte, which has no other form
    spelled = tokenizer.tgt.piece_id(byte)
    all_of = [tuple(ids[text] for text in way) for way in segmentations(word.replace("x", ""), ids)]
    if "x" in word:
        all_of = [(way[0], spelled, *way[1:]) for way in all_of if vocabulary[way[0]][0] == "▁"]
    mass = np.exp([alpha * sum(vocabulary[i][1] for i in way if i != spelled) for way in all_of])
    expected = dict(zip(all_of, (mass / mass.sum()).tolist(), strict=True))
    row = tokenizer.src.encode([word.removeprefix("▁")])[0]
    check_shares(drawn(UnigramSampling(vocabulary, alpha), row, 20_000), expected)


def test_words_of_a_line_and_lines_of_a_text_are_drawn_apart(
    kind: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No draw is that of its neighbour, of the other side, or of the chunk before."""
    monkeypatch.setattr(subword_regularisation, "LINES_PER_CHUNK", 20)
    store = store_of(tokenizer, [("schlafen schlafen", "schlafen schlafen")] * 100)
    src, tgt = (
        [" ".join(tokenizer.src.pieces_of(row)).removeprefix("▁").split("▁") for row in side]
        for side in rows(sampling_of(store, tokenizer, kind, STRONG[kind])(0))
    )
    assert sum(a.strip() != b.strip() for a, b in src) > 30
    assert sum(a != b for a, b in zip(src, tgt, strict=True)) > 30
    assert sum(a != b for a, b in zip(src, src[20:], strict=False)) > 30
    assert sum(a != b for a, b in pairwise(src)) > 30
