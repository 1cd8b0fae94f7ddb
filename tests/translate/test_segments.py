"""Long lines and those of several sentences are cut at the best places, and nothing is lost."""

from __future__ import annotations

import json
import random
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MonkeyPatch, Mt, write_lines
from messages import says
from model_files import changed_meta, copy_model
from odd_lines import odd_lines
from subwords import pairs_of

from mt.config.plan import plan_data
from mt.data.reading.languages import base_code
from mt.data.reading.words import join_sentences, split_sentences
from mt.errors import ConfigError
from mt.model.checkpoint import LoadedModel
from mt.runs.model_folder import open_model
from mt.search.options import EngineName, EngineOptions, SearchOptions
from mt.training.prepare import several_sentences
from mt.translate.load import load_translator
from mt.translate.loaded_engine import cuts_into_sentences
from mt.translate.segments import split_source


class Letters:
    """A stand-in tokenizer: each character but white space is a token.

    Every text begins with the tokens of `first`.
    """

    def __init__(self, first: str = "") -> None:
        self.first = first
        self.src = self.tgt = self

    def encode(self, lines: list[str], threads: int = 1) -> list[list[int]]:
        return [
            [ord(letter) for letter in self.first + line if not letter.isspace()] for line in lines
        ]

    def split_language(self, line: str) -> tuple[str, str]:
        return "", line

    def decode(self, ids: list[list[int]]) -> list[str]:
        return ["".join(map(chr, row)) for row in ids]


def segments(text: str, max_tokens: int) -> list[str]:
    tokenizer: Any = Letters()
    return ["".join(map(chr, part.source)) for part in split_source(text, tokenizer, max_tokens)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # As few pieces as fit, at sentence ends.
        ("Aaa bb. Ccc dd! Eee ff?", "Aaabb.Cccdd! Eeeff?"),
        # Never at a clause where a sentence will do.
        ("Aaa, bb. Ccc, dd. Eee, ff.", "Aaa,bb. Ccc,dd. Eee,ff."),
        # Quotes stay with their sentence.
        ("»Aaa bb.« „Ccc!“ (Ddd eee.) Ff", "»Aaabb.« „Ccc!“ (Dddeee.)Ff"),
        # No sentence end: clauses, and only those of one sentence.
        ("Aaa bbbb, ccc dd, ee fff", "Aaabbbb, cccdd,eefff"),
        ("Aa. Bbb bbbb, ccc dd; ee ff. Gg.", "Aa. Bbbbbbb, cccdd;eeff. Gg."),
        # Words; anywhere.
        ("aaa bbbb ccc dd ee fff", "aaabbbbcccdd eefff"),
        ("aaa bbb Donaudampfschiff ccc", "aaabbb Donaudampfsc hiff ccc"),
        # No spaces between sentences.
        ("你好吗。我很好！你呢？谢谢你们。", "你好吗。我很好！你呢？ 谢谢你们。"),
        ("他说：“你好吗。”我很好，谢谢你，再见", "他说：“你好吗。” 我很好，谢谢你，再见"),
        # Points and commas inside numbers end nothing.
        ("3.14 ist 1,5 mal 2.0 und 9", "3.14ist1,5 mal2.0und9"),
        # Nor does an ordinal, and other scripts have ends.
        ("Aa bb, am 3. Mai war.", "Aabb, am3.Maiwar."),
        ("अआ इई। उऊ, एऐ ओऔ।", "अआइई। उऊ,एऐओऔ।"),
        ("a...b...c...d...e", "a...b...c... d...e"),
    ],
)
def test_a_long_line_is_cut_at_the_best_place(text: str, expected: str) -> None:
    assert segments(text, 12) == expected.split()


def test_nothing_is_lost_or_too_long_wherever_it_is_cut() -> None:
    draw = random.Random(11)
    alphabet = "aaaabbbccc      ..,,;:!?…\"'”’»)]–—。！？，；：、」』）\u00a0\u3000\t\u2028"
    for _ in range(400):
        text = "".join(draw.choices(alphabet, k=draw.randint(1, 150)))
        limit = draw.randint(3, 25)
        found = segments(text, limit)
        assert "".join(found) == "".join(text.split())
        assert all(0 < len(piece) <= limit for piece in found)
        # A word that fits is whole; a run with East Asian punctuation is several.
        for word in text.split():
            if len(word) <= limit and not re.search("[。！？，；：、]", word):
                assert any(word in piece for piece in found)


# --- sentences -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("de", "Am 3. Mai z. B. um 5.30. |Sie?  |Nein!"),
        ("fr", "M. Dupont, c.-à-d. lui. |Et toi."),
        ("fr", "Voici Mme. Dupont (Mlle. Curie). |Le Prof. Dr. Roux est mon prof. |Oui."),
        ("nl", "Dat zei mevr. Jansen. |Mevr. De Vries ook."),
        ("de", "Frau Univ.-Prof. Dr. Maier und Prof. Dr. Huber. |Ja."),
        ("ja", "今日は。|元気ですか？|はい"),
        # In quotation marks and brackets, which stay with their sentence.
        ("de", "„Er kam. |Sie ging“, sagte er. |Ja."),
        ("de", "Ja (er kam. |Sie ging.) |Nein."),
        ("de", "»Er kam. |Sie ging.« |„Ja.“ |(So.)"),
        ("fr", "« Il vint. |Elle partit. » |Oui."),
        ("de", "Er fragte „Kommst du?“ und (vgl. Abb. 3) ging."),
        ("de", "1. Er kam. |2. Sie ging. |3. Wir."),
        ("en", "1) He came! |2) She left."),
        ("de", "1. „Ja.“ |2. „Nein.“"),
        ("hi", "१. सेब। |२. केला।"),
        ("zh", "1. 苹果。|2. 梨。"),
        ("de", "Er kam im Jahr 12. |Sie ging."),
        ("de", "👍 Ja. |🙂 Nein. 12. 🙂"),
        ("de", "1. ... !"),
        ("de", ""),
        # A small letter goes on, an ordinal too unless a word follows that begins sentences.
        ("de", "Ende des 19. Jahrhunderts kam er am 1. Oktober. |Sie ging am 2. |Sie kam."),
        ("de", "Er zog 1998. |Dann kam Karl XII. Ende."),
        ("hr", "Rat je trajao od 1914. do 1918. godine. |Pad 2. rujna, npr. pad 5. i 6. Da."),
        ("nb", "Den 3. oktober vant de 3–2. |Ja!"),
        ("lv", "Ir 1998. gads Rīgā. |21. gadsimts."),
        ("de", "„Ja!“, Laura lachte. |»Wie?« |Er kam."),
        ("hu", "„Igen!” – kiáltotta Anna. |Jó."),
        ("ja", "「元気です。」と言った。|「はい。」|「いいえ。」"),
        ("zh", "“是！”安娜喊道。|他说：“好。”|她走了。"),
        ("ko", '"네!" 하고 외쳤다. |"춥다."고 했다.'),
        # Other scripts: Burmese has commas and possessives, Thai and Lao have no mark.
        ("my", "သူ၊ သူမ သွား၏ အိမ်သည်။ |ကြီးသည်။"),
        ("km", "ខ្ញុំទៅសាលា។ |គាត់ជាគ្រូ៕"),
        ("bo", "ང་འགྲོ། །|ཁོང་ཡིན།"),
        ("th", "ดร. สมชาย มา 12.50 บาท เขาเป็นครู"),
        ("bn", "মো. আলী এলেন। |তিনি গেলেন।"),
        ("hi", "डॉ. शर्मा आए। |वे गए।"),
        ("ka", "ის მოვიდა. |NATO წავიდა."),
    ],
)
def test_a_line_is_cut_after_its_sentences(language: str, expected: str) -> None:
    """At each |."""
    found = split_sentences(expected.replace("|", ""), base_code(language), {"Sie"})
    assert found == expected.split("|")
    assert all("".join(split_sentences(line, language)) == line for line in odd_lines(20))


def test_each_sentence_is_a_segment_and_a_long_one_several() -> None:
    letters: Any = Letters()
    letters.split_language = lambda line: (line[:1], line[1:])  # of the target
    rows = split_source("§Aa. Bb ccc, dddd. E", letters, 8, lambda text: split_sentences(text, ""))
    assert ["".join(map(chr, row.source)) for row in rows] == ["§Aa.", "§Bbccc,", "§dddd.", "§E"]
    rows = split_source("§Aa!Bbb cc, dd.  E", letters, 5, lambda text: split_sentences(text, ""))
    assert [("".join(map(chr, row.source)), row.is_joined) for row in rows] == [
        *[("§Aa!", False), ("§Bbb", True), ("§cc,", False), ("§dd.", False), ("§E", False)]
    ]


def test_lines_are_whole_if_a_prefix_has_sentences(tiny_run: Path, mt: Mt, tmp_path: Path) -> None:
    write_lines(tmp_path / "prefixes", ["one. two", "one.", "one"])
    command = ("translate", "-m", tiny_run, "--prefix", tmp_path / "prefixes")
    done = mt(*command, "--split-sentences", "always", stdin=b"eins. Zwei. Drei.\n" * 3)
    for line, prefix in zip(done.lines, ("one. two", "one.", "one"), strict=True):
        assert line.startswith(prefix)
    assert says(done.err, "2 of several sentences, translated one by one")


def test_a_tag_is_that_of_each_segment() -> None:
    letters: Any = Letters()
    cut = partial(split_sentences, language="")
    rows = split_source(" #b Aa. Bb ccc, dd.", letters, 7, cut, {"#", "#b"})
    assert ["".join(map(chr, row.source)) for row in rows] == ["#bAa.", "#bBb", "#bccc,", "#bdd."]


def test_translations_are_joined_as_the_language_does() -> None:
    assert join_sentences(["Ja.", "", "Nein."]) == "Ja. Nein."
    assert join_sentences(["今日は。", "はい", "OK.", "ですか？"]) == "今日は。はいOK. ですか？"
    assert join_sentences(["สวัสดี", "ครับ"]) == "สวัสดี ครับ"
    assert join_sentences(["Der Name ist 名前。", "Ja."]) == "Der Name ist 名前。 Ja."


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_sentences_are_translated_as_if_alone(
    tiny_run: Path, engine: EngineName, mt: Mt, tmp_path: Path
) -> None:
    lines = ["eins zwei. Drei vier! Acht", "", "fünf", "neun neun? Null."]
    alone = ["eins zwei. ", "Drei vier! ", "Acht", "fünf", "neun neun? ", "Null."]
    options = EngineOptions(models=[tiny_run], engine=engine, precision="fp32", workers=2)
    search = SearchOptions(n_best=2, split_sentences="never")
    with load_translator(search, options) as translator:
        assert {one.segments for one in translator.translate(lines)} == {0, 1}
        parts = list(translator.translate(alone))
    write_lines(tmp_path / "in", [json.dumps({"text": line}) for line in lines])
    ended = mt(
        *["translate", "--model", tiny_run, "--split-sentences", "always", tmp_path / "in"],
        *["--format", "jsonl", "--n-best", 2, "--engine", engine, "--workers", 2],
        *["--precision", "fp32", "--length-penalty", 1],
    )
    assert says(ended.err, "2 of several sentences, translated one by one")
    found = [json.loads(line)["translations"] for line in ended.lines]
    for n in (0, 1):
        first, second, third, fifth, *last = (part.texts[n] for part in parts)
        for row, texts in zip(found, [[first, second, third], [], [fifth], last], strict=True):
            assert row[min(n, len(row) - 1)]["translation"] == " ".join(filter(None, texts))


def test_a_line_of_sentences_has_alignments_and_its_log_probability(tiny_run: Path) -> None:
    options = EngineOptions(models=[tiny_run], precision="fp32", workers=1)
    lines = ["eins zwei. Drei vier", "eins zwei. ", "Drei vier"]
    for penalty in (1.0, 0.0):
        search = SearchOptions(alignments=True, length_penalty=penalty, split_sentences="always")
        with load_translator(search, options) as translator:
            whole, *parts = translator.translate(lines)
        scores = sorted(part.scores[0] for part in parts)
        assert penalty == 0 or scores[0] <= whole.scores[0] <= scores[1]
    assert whole.scores[0] == pytest.approx(sum(scores), abs=1e-4)
    n_tgt = len(parts[0].texts[0].split())
    moved = [
        "-".join(str(int(number) + by) for number, by in zip(link.split("-"), add, strict=True))
        for part, add in zip(parts, ((0, 0), (2, n_tgt)), strict=True)
        for link in part.alignments[0].split()
    ]
    assert whole.alignments[0] == " ".join(moved)


def test_a_line_feed_ends_a_segment_and_comes_back(tiny_run: Path) -> None:
    options = EngineOptions(models=[tiny_run], workers=1)
    lines = ["eins zwei.\n\nDrei vier! Acht\n", "eins zwei.", "Drei vier!", "Acht", "12\n🙂 13"]
    lines.append("• eins zwei.\n12:30\nDrei vier! 😀")
    whole_lines = SearchOptions(split_sentences="never", alignments=True)
    for search, join in ((whole_lines, None), (SearchOptions(split_sentences="always"), " ")):
        with load_translator(search, options) as translator:
            whole, first, *rest, bare, marked = (
                row.texts[0] for row in translator.translate(lines)
            )
        assert (bare, marked) == (lines[-2], f"• {first}\n12:30\n{rest[0]} 😀")
        assert whole.startswith(f"{first}\n\n")
        assert join is None or whole == f"{first}\n\n{join.join(rest)}"


# --- auto ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "segments"), [(0.0, 2), (0.04, 2), (0.06, 1), (None, 1)])
def test_auto_cuts_where_the_model_has_learnt_from_single_sentences(
    tiny_run: Path, tmp_path: Path, share: float | None, segments: int
) -> None:
    folder = copy_model(tiny_run, tmp_path / "model")
    with changed_meta(folder) as meta:
        assert meta.pop("several_sentences") == 0.0  # the tiny corpus has one sentence a line
        if share is not None:
            meta["several_sentences"] = share
    with load_translator(SearchOptions(), EngineOptions(models=[folder], workers=1)) as translator:
        assert next(translator.translate(["eins zwei. Drei."])).segments == segments
        # An output depends on it, so a job is resumed with the same.
        assert translator.settings.get("--split-sentences") == {2: "always"}.get(segments)


def test_the_share_is_that_of_the_store(loaded: LoadedModel) -> None:
    lines = ["eins zwei. Drei.", "eins", "zwei drei.", "vier"]
    store = pairs_of(loaded.tokenizer, [(line, "one") for line in lines]).store
    data = plan_data(loaded.config.data)
    prepared: Any = SimpleNamespace(store=store, tokenizer=loaded.tokenizer, data=data)
    assert several_sentences(prepared)["several_sentences"] == pytest.approx(0.25, abs=0.04)


def test_without_the_library_lines_stay_whole(
    tiny_run: Path, monkeypatch: MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    model = open_model(tiny_run)
    assert not cuts_into_sentences("auto", model)
    assert says(capsys.readouterr().err, "--split-sentences", "sentencex", "pip install", "whole")
    with pytest.raises(ConfigError, match=r"--split-sentences.*sentencex.*pip install"):
        cuts_into_sentences("always", model)
    with pytest.raises(ConfigError, match=r"--split-sentences.*never.*'yes'"):
        SearchOptions(split_sentences="yes")  # type: ignore[arg-type]
