"""BLEU's tokenizer follows the target language wherever a score is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from conftest import Mapped, Mt, config_of, lines_of, log_of, metrics_of, refused, write_lines
from messages import raises_saying, says
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER
from scores import score_corpus

from mt.config.schema import BleuTokenizer
from mt.errors import ConfigError
from mt.evaluation import bleu_tokenizer
from mt.evaluation.bleu_tokenizer import TOKENIZERS, choose_tokenizer
from mt.evaluation.metrics import METRICS
from mt.training import validation
from mt.training.launch import train
from mt.translate.lines import Translation

JAPANESE = ["吾輩は猫である。名前はまだ無い。", "どこで生れたかとんと見当がつかぬ。"]
NEARLY = ["吾輩は犬である。名前はまだ無い。", "どこで生れたかとんと見当がつかぬ。"]


@pytest.fixture(params=[True, False], ids=["extras installed", "no extras"])
def extras(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the packages for Japanese and Korean seem to be installed."""
    found = "found" if request.param else None
    monkeypatch.setattr(bleu_tokenizer, "find_spec", lambda _: found)
    return bool(request.param)


@pytest.fixture
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bleu_tokenizer, "find_spec", lambda _: None)


def test_auto_follows_the_language(extras: bool) -> None:
    for languages, expected, without_extras in [
        (("en", "de-AT", "tgt", "", "no", "mya1"), "13a", "13a"),
        (("ja", "JA", "jpn_Jpan", "ja-JP"), "ja-mecab", "char"),
        (("ko", "kor", "ko_KR"), "ko-mecab", "13a"),
        (("zh", "zh-Hans", "zho_Hant", "yue", "cmn"), "zh", "zh"),
        (("th", "lo", "km", "my", "tha_Thai"), "char", "char"),
    ]:
        said: list[str] = []
        for language in languages:
            tokenizer = choose_tokenizer(language, "auto", said.append)
            assert tokenizer == (expected if extras else without_extras)
        is_substitute = not extras and expected != without_extras
        assert len(said) == (len(languages) if is_substitute else 0)


@pytest.mark.usefixtures("no_extras")
def test_a_substitute_is_reported_and_a_given_tokenizer_is_taken_or_refused() -> None:
    said: list[str] = []
    choose_tokenizer("ja", "auto", said.append)
    assert says(said[0], "BLEU of ja", "char", "ja-mecab is not installed", "sacrebleu[ja]")
    assert choose_tokenizer("ja", "13a") == "13a"
    assert choose_tokenizer("en", "char") == "char"
    with raises_saying(ConfigError, "train.bleu_tokenize: ko-mecab", "sacrebleu[ko]", "char"):
        choose_tokenizer("en", "ko-mecab")
    with pytest.raises(ConfigError, match=r"must be auto, 13a, intl, .* none, found 'moses'"):
        choose_tokenizer("en", "moses")


def test_every_choice_of_the_config_is_a_tokenizer_of_sacrebleu() -> None:
    assert get_args(BleuTokenizer) == ("auto", *TOKENIZERS)
    assert set(TOKENIZERS) <= set(BLEU.TOKENIZERS)


def test_japanese_by_characters_is_not_zero() -> None:
    """13a sees one word a line: no 4-gram at all."""
    (by_words,) = score_corpus(NEARLY, [JAPANESE], ["bleu"])
    assert by_words.value == 0
    assert says(by_words.note, "look Japanese", "--tgt-lang ja")
    (by_characters,) = score_corpus(NEARLY, [JAPANESE], ["bleu"], "char")
    assert 80 < by_characters.value < 100
    assert by_characters.signature.split("|")[3] == "tok:char"
    assert by_characters.note == ""


# --- mt evaluate ------------------------------------------------------------------------------


def tokenizer_and_bleu(output: bytes) -> tuple[str, float]:
    """From the JSON of one system."""
    ((bleu,),) = json.loads(output).values()
    signature = dict(part.split(":") for part in bleu["signature"].split("|"))
    return signature["tok"], bleu["value"]


@pytest.mark.usefixtures("no_extras")
def test_evaluate_of_a_file_takes_the_language_or_the_tokenizer(mt: Mt, tmp_path: Path) -> None:
    write_lines(tmp_path / "hyp", NEARLY)
    write_lines(tmp_path / "ref", JAPANESE)
    files = ["--hyp", tmp_path / "hyp", "--ref", tmp_path / "ref", "--metrics", "bleu", "--json"]
    assert tokenizer_and_bleu(mt("evaluate", *files).out) == ("13a", 0)
    by_language = mt("evaluate", *files, "--tgt-lang", "ja")
    tokenizer, bleu = tokenizer_and_bleu(by_language.out)
    assert tokenizer == "char"
    assert 80 < bleu < 100
    assert "because ja-mecab is not installed" in by_language.err
    by_name = mt("evaluate", *files, "--tokenize", "char", "--tgt-lang", "en")
    assert tokenizer_and_bleu(by_name.out) == ("char", bleu)
    message = refused(mt("evaluate", *files, "--tokenize", "moses"))
    assert message.startswith("--tokenize: must be auto, 13a")


@pytest.mark.parametrize(("language", "asian"), [("ja", True), ("zh-Hans", True), ("ko", False)])
def test_ter_follows_the_language_as_the_flags_of_sacrebleu_do(
    language: str, asian: bool, mt: Mt, tmp_path: Path
) -> None:
    write_lines(tmp_path / "hyp", NEARLY)
    write_lines(tmp_path / "ref", JAPANESE)
    files = ["--hyp", tmp_path / "hyp", "--ref", tmp_path / "ref", "--metrics", "ter", "--json"]
    ((ter,),) = json.loads(mt("evaluate", *files, "--tgt-lang", language).out).values()
    theirs = TER(normalized=asian, asian_support=asian)
    assert ter["value"] == theirs.corpus_score(NEARLY, [JAPANESE]).score
    assert ter["signature"] == str(theirs.get_signature())
    assert ter["value"] == pytest.approx(100 / 19 if asian else 50)  # one of 19 characters
    assert bool(ter["note"]) == (not asian)


LOOKS = {
    "ja": "今日は晴れでした", "zh": "他们说过「の」是日文字母表里的一个字",
    "ko": "오늘은 날씨가 좋네요 그렇죠", "th": "วันนี้อากาศดี",
    "lo": "ມື້ນີ້ອາກາດດີ", "km": "ថ្ងៃនេះអាកាសធាតុល្អ", "my": "ဒီနေ့ ရာသီဥတု",
}  # fmt: skip


@pytest.mark.parametrize("code", LOOKS)
def test_a_script_without_spaces_asks_for_the_language(code: str) -> None:
    """Also where the lines are short, and where Chinese quotes kana."""
    lines = [LOOKS[code], "BLEU 2"]
    note = METRICS["bleu"]([lines]).score(lines).note
    assert note.endswith(f"give --tgt-lang {code} (in a config data.tgt_lang)")
    given = METRICS["bleu"]([lines], tgt_lang=code).score(lines).note
    assert ("choose the tokenizer" in given) == (code != "ko")  # which has spaces
    by_ter = METRICS["ter"]([lines], tgt_lang="en").score(lines).note
    remedy = {"ja": "--tgt-lang ja", "zh": "--tgt-lang zh", "ko": ""}.get(code, "read chrf")
    assert says(by_ter, remedy) if remedy else not by_ter


# --- training ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_extras")
def test_validation_tests_and_evaluate_follow_the_config(
    tiny_mapping: Mapped, mt: Mt, tiny_corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A perfect translation of a text without spaces has BLEU 100, not 0."""
    unspaced = [line.replace(" ", "") for line in lines_of(tiny_corpus / "train.src")]
    for split, lines in (("train", unspaced), ("valid", unspaced[:20]), ("test", unspaced[:20])):
        write_lines(tmp_path / f"{split}.src", lines)
        write_lines(tmp_path / f"{split}.tgt", lines)

    def copied(*arguments: Any) -> list[Translation]:
        return [Translation((line,), (0.0,)) for line in arguments[2]]

    monkeypatch.setattr(validation, "translate", copied)
    config = config_of(
        tiny_mapping,
        data={"root": str(tmp_path), "tgt_lang": "ja"},
        train={"max_steps": 2, "valid_every": 2},
    )
    run_dir = tmp_path / "run"
    assert train(config, run_dir, "cpu").exit_code == 0
    for kind in ("valid", "test"):
        (line,) = metrics_of(run_dir, kind)
        assert line["bleu"] == 100
        assert "tok:char" in line["signature"]
    assert log_of(run_dir).count("because ja-mecab is not installed") == 1
    files = ["--src", tmp_path / "test.src", "--ref", tmp_path / "test.tgt"]
    ended = mt("evaluate", "--model", run_dir, *files, "--metrics", "bleu", "--json")
    assert tokenizer_and_bleu(ended.out)[0] == "char"
    given = mt("evaluate", "-m", run_dir, *files, "--metrics", "bleu", "--json", "--tgt-lang", "en")
    assert tokenizer_and_bleu(given.out)[0] == "13a"


@pytest.mark.usefixtures("no_extras")
def test_a_tokenizer_that_is_not_installed_is_refused_before_training(
    tiny_mapping: Mapped, tmp_path: Path
) -> None:
    config = config_of(tiny_mapping, train={"bleu_tokenize": "ja-mecab"}, data={"valid": None})
    with pytest.raises(ConfigError, match=r"pip install 'sacrebleu\[ja\]'"):
        train(config, tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("choice", "installed", "recorded", "then"),
    [
        ("auto", (False, True), "char", "char"),  # it was installed since: the scores stay
        ("auto", (True, False), "intl", "char"),  # it is gone: all are scored again
        ("13a", (True, True), "13a", "intl"),  # auto would not have chosen it
    ],
)
def test_a_resumed_run_has_one_tokenizer(
    choice: str, installed: tuple[bool, bool], recorded: str, then: str,
    tiny_mapping: Mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """intl in the place of ja-mecab, whose package is not there when tests run."""
    monkeypatch.setitem(bleu_tokenizer.BY_LANGUAGE, "ja", "intl")
    monkeypatch.setitem(bleu_tokenizer.NEEDS, "intl", ("MeCab", "ja"))
    monkeypatch.setitem(bleu_tokenizer.SUBSTITUTES, "intl", "char")
    for tokenize, is_installed in zip((choice, "auto"), installed, strict=True):
        found = "found" if is_installed else None
        monkeypatch.setattr(bleu_tokenizer, "find_spec", lambda _, found=found: found)
        quick = {"max_steps": 2, "valid_every": 2, "bleu_tokenize": tokenize}
        train(config_of(tiny_mapping, data={"tgt_lang": "ja"}, train=quick), tmp_path, "cpu")
    expected = [recorded] if recorded == then else [recorded, then]
    for kind in ("valid", "test"):
        lines = metrics_of(tmp_path, kind)
        assert [line["signature"].split("|")[3] for line in lines] == [f"tok:{x}" for x in expected]
    log = log_of(tmp_path)
    assert ("BLEU keeps the tokenizer char of the scores so far" in log) == (then == recorded)
    assert log.count("because intl is not installed") == (choice == "auto")
