"""Scores worked out by hand, the signatures that go with them, and every message."""

from __future__ import annotations

import math
import unicodedata
from importlib.metadata import version
from unittest.mock import Mock

import pytest
from messages import raises_saying, says
from scores import score_corpus

from mt.errors import DataError
from mt.evaluation.metrics import CometMetric
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems

REF = "the cat sat on the mat"


# --------------------------------------------------------------------------------------------- BLEU


def test_bleu_from_precisions_and_brevity_penalty_and_details_in_the_order_asked_for() -> None:
    # Five words, all right; of the bigrams "on mat" is wrong: 3/4; trigrams 2/3; four-grams 1/2.
    # The reference has six words: brevity penalty exp(1 - 6/5).
    (score,) = score_corpus(["the cat sat on mat"], [[REF]], metrics=["bleu"])
    assert score.value == pytest.approx(100 * math.exp(-0.2) * (1 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert f"{score.value:.2f}" == "57.89"
    assert score.detail == (
        "precisions 100.0/75.0/66.7/50.0, brevity penalty 0.819, length 5 against 6"
    )
    assert score.note == ""
    ter, bleu = score_corpus(["a b c"], [["a b d"], ["a b c d e"]], ["ter", "bleu"])
    assert (ter.name, ter.detail) == ("TER", "1 edits, 4.0 reference words")
    assert bleu.note == "no hypothesis has four words, so BLEU is 0 whatever they are"


@pytest.mark.parametrize(
    ("metric", "hyps", "refs", "expected"),
    [
        # No bonus for length, and a word counts no more often than in the reference. Seven words
        # against six: "the" three times, two of them count. 6/7, 5/6, 4/5, 3/4.
        ("bleu", [REF + " the"], [[REF]], (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25),
        # Smoothed: 4/5 words, 2/4 bigrams (a b, b c), 1/3 trigrams, 0/2 four-grams: 1/4.
        ("bleu", ["a b c x e"], [["a b c d e"]], (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25),
        # Counts of the corpus: 4/5, 3/3, 2/2, 1/1; the mean over sentences would be 50.
        ("bleu", ["a b c d", "x"], [["a b c d", "y"]], 0.8**0.25),
        # 13a makes four tokens of it: Hello , world !
        ("bleu", ["Hello, world!"], [["Hello, world!"]], 1),
        # One of them differs in case: 3/4, 2/3, 1/2, and 0/1 smoothed to 1/2.
        ("bleu", ["hello, world!"], [["Hello, world!"]], (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25),
        # Matches from any reference: 4/4, 3/3 (a b, b c, c d), 2/2, and 0/1 smoothed to 1/2.
        ("bleu", ["a b c d"], [["a b c x"], ["x b c d"]], 0.5**0.25),
        # From the first alone: 3/4, 2/3, 1/2, 1/2.
        ("bleu", ["a b c d"], [["a b c x"]], 0.125**0.25),
        # Characters: P 2/2, R 2/3; pairs P 1/1, R 1/2; "ab" has no triple. Means P = 1, R = 7/12;
        # F2 = 5 P R / (4 P + R). The other way round recall weighs four times as much.
        ("chrf", ["ab"], [["abc"]], 5 * (7 / 12) / (4 + 7 / 12)),
        ("chrf", ["abc"], [["ab"]], 5 * (7 / 12) / (4 * 7 / 12 + 1)),
        ("chrf", ["a b"], [["ab"]], 1),  # blanks are no characters
        ("chrf", ["AB"], [["ab"]], 0),
        # chrF++: the words match as well (2 of 2, 1 of 1), in the mean of the eight orders.
        ("chrf++", ["a b"], [["a b"]], 1),
        # Half of the words and of the characters match, and no pair of either.
        ("chrf++", ["a b"], [["a c"]], (1 / 2 + 0 + 1 / 2 + 0) / 4),
        ("ter", ["the cat sat on mat"], [[REF]], 1 / 6),  # one insertion
        ("ter", ["on the mat the cat sat"], [[REF]], 1 / 6),  # one shift
        ("ter", ["dog dog dog dog"], [["cat"]], 4),  # can exceed 100
        ("ter", ["THE cat sat on the mat"], [[REF]], 0),  # case:lc
        # Fewest edits of any reference (1), over their mean length (4 + 6) / 2.
        ("ter", ["a b c x"], [["a b c d"], ["a b c d e f"]], 1 / 5),
    ],
)
def test_scores_worked_out_by_hand(
    metric: str, hyps: list[str], refs: list[list[str]], expected: float
) -> None:
    (score,) = score_corpus(hyps, refs, [metric])
    assert score.value == pytest.approx(100 * expected)


def test_identical_is_perfect_and_empty_hypotheses_are_fine() -> None:
    refs = [[REF, "Zwei junge weiße Männer."]]
    assert [score.value for score in score_corpus(refs[0], refs)] == pytest.approx([100, 100, 0])
    bleu, chrf, _ = score_corpus([REF], [[REF]])
    assert (bleu.value, chrf.value) == (100, 100)  # not 100.00000000000004
    assert [score.value for score in score_corpus(["", ""], refs)] == pytest.approx([0, 0, 100])
    with_gap = [score.value for score in score_corpus([REF, ""], refs)]
    assert 0 < with_gap[0] < 100
    assert 0 < with_gap[1] < 100
    assert with_gap[2] == pytest.approx(100 * 4 / 10)  # tercom leaves "Männer." one word: 4 of 10


# ------------------------------------------------------------------------- signatures, text, JSON


def test_a_line_with_fewer_references_is_scored_by_those_it_has() -> None:
    """A blank one of length 0 would hide that an output is too short."""
    hyps, refs = ["a b", "x y z w v u"], ["a b c d e f", "x y z w v q"]
    metrics = ["bleu", "chrf", "ter"]
    alone = score_corpus(hyps, [refs], metrics)
    for others in (["", " "], [refs[0], ""]):
        for both in ([refs, others], [others, refs]):
            scores = score_corpus(hyps, both, metrics)
            assert [one.value for one in scores] == [one.value for one in alone]
    assert scores[0].signature.startswith("nrefs:var|")
    comet = Mock(sentence_scores=lambda _, __, refs: [len(ref) for ref in refs])
    read = CometMetric([["", refs[1]], refs], hyps, comet=comet)
    assert read.statistics(hyps)[:, 0].tolist() == [11, 11]


def test_signatures_say_how_the_scores_came_about() -> None:
    release = version("sacrebleu")
    scores = score_corpus([REF], [[REF], [REF]])
    assert [(score.name, score.signature) for score in scores] == [
        ("BLEU", f"nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:{release}"),
        ("chrF2", f"nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{release}"),
        ("TER", f"nrefs:2|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{release}"),
    ]


def test_tokenised_hypotheses_are_noted_and_nothing_is_logged(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    tokenised = ["a cat sits here ."] * 120 + ["a cat sits here."] * 30
    bleu, *others = score_corpus(tokenised, [tokenised])
    assert says(bleu.note, '120 of 150 hypotheses end in " ."', "tokenised", "detokenised text")
    assert [score.note for score in others] == ["", ""]
    assert score_corpus(tokenised[21:], [tokenised[21:]], ["bleu"])[0].note == ""  # 99 of them
    assert caplog.records == []
    assert capfd.readouterr().err == ""


def test_letters_in_another_form_of_unicode_are_noted_and_normalised_if_asked() -> None:
    hyps = ["Ọjọ́ tó dára ni èyí jẹ́.", "Ile ni mo wa loni.", "", "যড় কয় বড় গাড়ি।"]
    refs = [[unicodedata.normalize("NFD", line) for line in hyps]]
    raw = EvaluationSet("", refs, hyps={"": [unicodedata.normalize("NFC", line) for line in hyps]})
    for nfc, sets in ((False, raw), (True, raw.in_nfc())):
        settings = Settings(["bleu", "chrf", "ter"], nfc=nfc)
        for metric in evaluate_systems(sets, sets.hyps, settings).systems[""]:
            score = metric.score
            assert (score.value in (0, 100)) == nfc
            assert score.note == "" if nfc else says(score.note, "25.0% of", "--normalize nfc")
            assert score.signature.endswith("|unicode:nfc") == nfc
    assert score_corpus(["la"], [["la\u0300"]], ["chrf"])[0].note == ""  # no letter in two forms


PLAIN, QUOTED = "le chat est assis", "le chat dit"
METRICS_OF_SPACES = ["bleu", "chrf", "chrf++", "ter"]


@pytest.mark.parametrize(
    ("hyp", "refs", "noting"),
    [  # which metrics have a note
        (f"{PLAIN}?", [f"{PLAIN}?"], []),
        (f"{PLAIN} ?", [f"{PLAIN}\u202f?"], []),  # white space, whichever
        *((f"{PLAIN}?", [f"{PLAIN}{space}?"], ["TER"]) for space in " \u00a0\u202f"),
        (f"{PLAIN}\u00a0: oui", [f"{PLAIN}: oui"], ["TER"]),
        (f"{PLAIN} ;", [f"{PLAIN};", f"{PLAIN} ;"], []),  # one reference agrees
        (f"{PLAIN} ;", [f"{PLAIN};", PLAIN], ["TER"]),
        (f"{PLAIN} ?", [PLAIN], []),
        (f"{PLAIN} à 10:30", [f"{PLAIN} à 10 : 30"], []),  # a time, not a mark
        (f"{QUOTED} «oui»", [f"{QUOTED} «\u00a0oui\u00a0»"], ["BLEU", "chrF2++", "TER"]),
        (f"{QUOTED} » oui", [f"{QUOTED} »oui«"], []),  # German, turned round
    ],
)
def test_other_spaces_beside_marks_are_noted_where_they_count(
    hyp: str, refs: list[str], noting: list[str]
) -> None:
    """Tokenisers split ? ! : ; from words, and sacreBLEU's 13a leaves the guillemets."""
    scores = score_corpus([hyp], [[ref] for ref in refs], METRICS_OF_SPACES)
    assert [score.name for score in scores if score.note] == noting
    assert all("1 of 1 lines with" in score.note for score in scores if score.note)
    # A note says that the value depends on the spaces, and is there only if it does.
    bare = score_corpus([hyp], [[hyp]], METRICS_OF_SPACES)
    for score, equal in zip(scores, bare, strict=True):
        if noting and len(refs) == 1:
            assert (score.value != equal.value) == (score.name in noting)


# ----------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("hyps", "refs", "metrics", "parts"),
    [
        (["a"] * 1200, [["a"] * 1200, ["a"] * 1199], ["bleu"], "ce 2 … 1,199 … 1,200 … check"),
        ([], [[]], ["bleu"], "hypotheses: … 0 lines … at least one"),
        (["a"], [], ["bleu"], "references: … none … give one"),
        ([REF], [[REF]], ["bleu", "mete", "BLUE"], "--metrics: … bleu, chrf … mete, BLUE … corr"),
        ([REF], [[REF]], [], "--metrics: … none … correct"),
    ],
)
def test_message(hyps: list[str], refs: list[list[str]], metrics: list[str], parts: str) -> None:
    with raises_saying(DataError, *parts.split(" … ")):
        score_corpus(hyps, refs, metrics)
