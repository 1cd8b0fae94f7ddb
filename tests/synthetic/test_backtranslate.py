"""`mt backtranslate`: what becomes a pair, what is left out, and a job that resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, lines_of, refused, write_lines
from messages import says
from model_files import changed_meta, copy_model

from mt.config import yaml_text
from mt.config.plan import Limits
from mt.config.schema import Source
from mt.data.reading.corpus import read_pairs
from mt.data.tokens.tokenizer import Tokenizer
from mt.synthetic.make_corpus import PairFilter
from mt.translate import resume
from mt.translate.translator import Translator

GREEDY = ("--beam-size", 1, "--precision", "fp32")
ODD = ["eins zwei", "", "drei", " eins  zwei ", "\u3000", "vier\tfünf", "sechs\r", "😀"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mono"
    path.write_bytes("".join(line + "\n" for line in ODD).encode())
    return path


def rows_of(path: Path) -> list[tuple[str, str]]:
    """The pairs that training reads from a corpus."""
    return list(read_pairs(Source(src="1", tgt="2", path=str(path)), Path(), "data.train[0]"))


def test_each_line_becomes_the_target_of_its_translation(
    mt: Mt, tiny_run: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bt.tsv"
    ended = mt("backtranslate", "-m", tiny_run, text, "-o", out, *GREEDY)
    assert ended.code == 0
    kept = ["eins zwei", "drei", "vier fünf", "sechs"]
    stdin = "\n".join(kept).encode()
    translations = mt("translate", "-m", tiny_run, *GREEDY, stdin=stdin).lines
    pairs = rows_of(out)
    assert pairs[:4] == list(zip(translations, kept, strict=True))
    assert pairs[4:] in ([], [(pairs[-1][0], "😀")])  # by what the model makes of it
    (entry,) = yaml_text.parse(ended.out.decode())
    assert list(read_pairs(Source(**entry), Path(), "data.train[0]")) == pairs
    summary = next(line for line in ended.err.splitlines() if "pairs kept" in line)
    assert f"{out}: {len(pairs)} of 8 pairs kept; dropped: 2 with an empty side, 1 dup" in summary


def test_a_tag_precedes_each_source(mt: Mt, tiny_run: Path, text: Path, tmp_path: Path) -> None:
    plain, tagged = tmp_path / "plain.tsv", tmp_path / "tagged.tsv"
    mt("backtranslate", "-m", tiny_run, text, "-o", plain, *GREEDY)
    ended = mt("backtranslate", "-m", tiny_run, text, "-o", tagged, *GREEDY, "--tag", "<BT>")
    assert rows_of(tagged) == [(f"<BT> {src}", tgt) for src, tgt in rows_of(plain)]
    assert "tokenizer:\n  user_defined_symbols:\n  - <BT>\n" in ended.out.decode()


def test_an_interrupted_job_resumes_to_the_same_corpus_and_counts(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "SECONDS_BETWEEN_RECORDS", 0.0)
    monkeypatch.setattr(Translator, "_window_size", lambda *_: 10)
    lines = lines_of(tiny_corpus / "test.src")
    lines[7] = lines[33] = ""  # one is read by the first start, one by the second
    lines[25] = lines[35] = lines[3]
    for number, word in ((4, "eins"), (36, "zwei")):
        lines[number] = " ".join([word] * 40)  # longer than the model's 32 tokens
    text = tmp_path / "mono"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ("backtranslate", "-m", tiny_run, text, *GREEDY, "-o")
    whole = mt(*command, tmp_path / "whole.tsv")

    real = PairFilter.keep_pairs
    calls = []

    def interrupted(self: PairFilter, *arguments: object) -> list[bool]:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PairFilter, "keep_pairs", interrupted)
    out = tmp_path / "out.tsv"
    first = mt(*command, out)
    assert first.code == 130
    assert "20 lines are finished" in first.err
    assert not out.exists()
    assert "--resume" in refused(mt(*command, out))
    assert "made with another --tag" in refused(mt(*command, out, "--resume", "--tag", "<BT>"))
    second = mt(*command, out, "--resume")
    assert second.code == 0
    assert out.read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    counted = "2 with an empty side, 2 duplicates, 2 longer than 32 tokens"
    for ended in (whole, second):
        assert counted in ended.err.split("pairs kept; dropped: ")[1]


def test_the_entry_names_the_languages(mt: Mt, tiny_run: Path, text: Path, tmp_path: Path) -> None:
    """The lines are the target of the new model."""
    for way in (("--from", "de"), ("--to", "en"), ("--from", "de", "--to", "en")):
        command = ("backtranslate", "-m", tiny_run, text, *GREEDY, *way, "--overwrite")
        (entry,) = yaml_text.parse(mt(*command, "-o", tmp_path / "bt.tsv").out.decode())
        assert (entry["src_lang"], entry["tgt_lang"]) == ("en", "de")
    texts = [{"src": "a", "tgt": "b", "src_lang": code} for code in ("de", "fr")]
    with changed_meta(copy_model(tiny_run, tmp_path / "model")) as meta:
        meta["config"]["data"]["train"] = texts
    several = ("backtranslate", "-m", tmp_path / "model", text, "-o", tmp_path / "a.tsv")
    assert says(refused(mt(*several, "--to", "en")), "--to en", "by --from")


class Words:
    """A tokenizer whose tokens are words."""

    def __init__(self) -> None:
        self.src = self.tgt = self

    def encode(self, lines: list[str]) -> list[list[int]]:
        return [[1] * len(line.split()) for line in lines]


def test_what_the_filter_drops() -> None:
    tokenizer: Tokenizer = Words()  # type: ignore[assignment]
    pair_filter = PairFilter(tokenizer, Limits(30, 2.0, dedupe=True))
    looping = "well " * 9 + "then"
    rows = [
        ("a b c", "x y z", False, True),
        ("a b c", "x y z", False, False),  # duplicate
        ("a b d", "x", False, False),  # ratio 3
        ("a b e", "", False, False),  # empty
        ("a b c d", "a b c d", False, False),  # copied
        ("a b f", "a b f", False, True),  # too short to be a copy: names, numbers
        ("a b c d e f g h", looping, False, False),
        ("a " * 31, "x " * 31, False, False),  # too long
        ("a b g", "x y z", True, False),  # truncated
        ("", "x", False, False),  # empty
    ]
    texts, outputs, truncated, wanted = zip(*rows, strict=True)
    texts = tuple(pair_filter.keep_lines(texts))
    assert texts[1] == ""
    assert pair_filter.keep_pairs(texts, outputs, truncated) == list(wanted)
    assert pair_filter.summary() == (
        "2 of 10 pairs kept; dropped: 2 with an empty side, 1 duplicate, 1 longer than 30 tokens, "
        "1 with one side over 2 times the other, 1 copied (equal to the source), 1 looping "
        "(repeats itself again and again), 1 truncated (stopped at the length limit)"
    )


def test_messages(
    mt: Mt, tiny_run: Path, text: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for options, message in [
        (["-o", "bt.txt"], "--output bt.txt: must be a file whose name ends in .tsv, as "),
        (["-o", "bt.tsv", "--tag", "B T"], "--tag: must be a word without white space, such as "),
        (["-o", "bt.tsv", "--tag", ""], "--tag: must be a word without white space, such as "),
        (["-o", "bt.tsv", "--top-k", "3"], "--top-k: only with --sample"),
    ]:
        assert refused(mt("backtranslate", "-m", tiny_run, text, *options)).startswith(message)
        assert sorted(tmp_path.iterdir()) == before


def test_the_text_is_not_overwritten(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "mono.tsv"
    text.write_text("eins\n", encoding="utf-8")
    message = refused(mt("backtranslate", "-m", tiny_run, text, "-o", text))
    assert message.startswith(f"--output {text}: is the same file as the input ({text})")
    assert text.read_text(encoding="utf-8") == "eins\n"


def test_a_corpus_is_replaced_only_if_asked_for(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "valid.tsv"
    text = tmp_path / "mono"
    for path in (corpus, text):
        path.write_text("eins\tone\n", encoding="utf-8")
    command = ["-m", tiny_run, "-o", corpus, *GREEDY]
    for made in (["backtranslate", text], ["distill", "--src", text]):
        assert says(refused(mt(*made, *command)), "--output", corpus, "exists", "--overwrite")
        assert corpus.read_text(encoding="utf-8") == "eins\tone\n"
    (tmp_path / "valid.yaml").write_text("# mine\n")
    message = refused(mt("distill", "--src", text, *command, "--overwrite"))
    assert says(message, "replace", tmp_path / "valid.yaml", "another path")
    assert mt("backtranslate", text, *command, "--overwrite").code == 0
    assert [target for _, target in rows_of(corpus)] == ["eins one"]


def test_a_model_of_the_other_direction_is_refused(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "news.en", ["one"])
    ended = mt("backtranslate", "-m", tiny_run, tmp_path / "news.en", "-o", tmp_path / "bt.tsv")
    assert says(refused(ended), "news.en", "text in de", ".en", "from en into de")
    write_lines(tmp_path / "news.de", ["eins zwei drei"])
    ended = mt("backtranslate", "-m", tiny_run, tmp_path / "news.de", "-o", tmp_path / "bt.tsv")
    assert says(ended.err, "news.de must be text in de", "translates it into en")
