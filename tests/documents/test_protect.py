"""What is kept comes out once, whatever the model does with it; so do inline tags."""

from __future__ import annotations

import json
import random
import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import MonkeyPatch, Mt, lines_of, refused, write_lines
from messages import raises_saying, says
from stand_in_engine import StandInEngine, stand_in_translator

from mt.config.schema import Config, DataConfig, TextEntry
from mt.data.tokens.writing import WRITING, Styles
from mt.documents import protect, translate_document
from mt.documents.inline_tags import MarkupToken, TaggedText
from mt.documents.protect import Protection
from mt.documents.translate_document import read_document
from mt.errors import ConfigError, DataError
from mt.runs.model_folder import ModelFolder
from mt.search.options import EngineOptions, SearchOptions
from mt.translate import translate_file
from mt.translate.lines import Translation
from mt.translate.streaming import TextFiles
from mt.translate.translate_file import LineFormat
from mt.translate.translator import Translator


def kept(protection: Protection, text: str) -> list[str]:
    found = protection.keep([MarkupToken("text", text)], is_document=False)
    assert "".join(token.term or token.raw for token in found) == text
    return [token.raw for token in found if token.kind != "text"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Siehe https://a.org/x_(y)?q=1&r=ä#z.", ["https://a.org/x_(y)?q=1&r=ä#z"]),
        ("(www.a.de), ftp://b/c!", ["www.a.de", "ftp://b/c"]),
        ("HTTPS://A.DE/B, WWW.FOO.DE. Https://b A@B.DE",
         ["HTTPS://A.DE/B", "WWW.FOO.DE", "Https://b", "A@B.DE"]),
        ("请看https://a.org/b。谢谢 info@a.org吧", ["https://a.org/b", "info@a.org"]),
        ("an a.b+c@d-e.co.uk.", ["a.b+c@d-e.co.uk"]),
        ("{0} und {name} {{ user.x }} ${HOME} $PATH_1",
         ["{0}", "{name}", "{{ user.x }}", "${HOME}", "$PATH_1"]),
        ("{ein Text} in Klammern, 5 $ und $ 5, 100 %, 50%ig", []),
        ("%s von %1$s%2$d, %(n)05.2f %% %-8s.", ["%s", "%1$s", "%2$d", "%(n)05.2f", "%%", "%-8s"]),
        ("%d%% %,ld %{name} #{n} 5 %", ["%d", "%%", "%,ld", "%{name}", "#{n}"]),
        ("<b>fett</b> <a href='x y'>z</a><br/> 1 < 2 > 0 &nbsp;&#8212; A & B",
         ["<b>", "</b>", "<a href='x y'>", "</a>", "<br/>", "&nbsp;", "&#8212;"]),
    ],
)  # fmt: skip
def test_what_auto_keeps(text: str, expected: list[str]) -> None:
    assert kept(Protection(["auto"]), text) == expected
    both = Protection(["auto", r"(?i)SIEHE \S+", "x*"])  # the longer of two; nothing is kept
    assert kept(both, "x siehe www.a.de x") == ["x", "siehe www.a.de", "x"]


def test_terms_are_whole_words_the_longest_first_in_their_case(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("Hund\tdog\n\nHund Rex\tRex\nlaufen\trun\n犬\tdog\nIT\tIT\n", encoding="utf-8")
    terms = Protection([r"\bRex\b"], path)
    assert kept(terms, "Hund Rex; HUND hund Hund") == ["dog", "Rex", "dog"]  # is kept
    terms = Protection((), path)
    assert kept(terms, "Hund Rex, des Hundes Hund oder") == ["Rex", "dog"]
    assert kept(terms, "LAUFEN Laufen it IT 白犬です") == ["run", "run", "IT", "dog"]
    assert says(terms.summary(), "0 texts", "6 terms")
    assert kept(terms, "Meine Mutter hat Hund") == ["dog"]  # nouns look like Title Case
    assert [token.raw for token in terms.keep([MarkupToken("text", "Hund\n Rex")])] == ["Rex"]
    # A combining mark, no letter for regular expressions, is part of its word.
    path.write_text("न\tna\nहि\thi\n" + "a b " * 50 + "\tb\n", encoding="utf-8")
    terms = Protection((), path)
    assert kept(terms, "हिन्दी नदी न हि") == ["na", "hi"]
    # Composed or not, and after what is elided, as is a term with an apostrophe.
    write_lines(path, ["cafe\u0301\tcoffee", "eau\twater", "l'été\tsummer", "한국\tKorea"])
    terms = Protection((), path)
    assert kept(terms, "Cafe\u0301, CAFÉ d'eau cafe jusqu’à l’été, s'eauté") == [
        "coffee", "coffee", "water", "summer"
    ]  # fmt: skip
    assert kept(terms, unicodedata.normalize("NFD", "l'été café 한국 eaux eauù")) == [
        "summer", "coffee", "Korea"
    ]  # fmt: skip
    terms = Protection(["auto"], path)
    started = time.perf_counter()
    assert kept(terms, "a " * 2_000 + "a." * 40_000) == []
    assert time.perf_counter() - started < 5  # linear in the length of the line


@pytest.fixture
def translated(tmp_path: Path, monkeypatch: MonkeyPatch) -> Any:
    """Runs the command with a stand-in: the output, what the model saw, and what was said."""

    def run(
        text: str, answer: Callable[[str], list[str]], options: tuple[Any, ...], form: str = "text",
        **fields: Any,
    ) -> tuple[str, list[str], str]:  # fmt: skip
        aligns: list[bool] = []
        said: list[str] = []

        def translation(text: str) -> Translation:
            """Words are aligned one by one."""
            outputs = tuple(answer(text) if text else [""])
            links = [" ".join(f"{n}-{n}" for n in range(len(text.split())))] * aligns[0]
            return Translation(outputs, (0.0,) * len(outputs), 1, tuple(links) * len(outputs))

        model = StandInEngine(translation)

        def load(search: SearchOptions, *_: object, **wants: Any) -> Translator:
            aligns.append(search.alignments)
            return stand_in_translator(model, **wants)

        monkeypatch.setattr(translate_document, "say", said.append)
        for module in (translate_file, translate_document):
            monkeypatch.setattr(module, "load_translator", load)
        data = DataConfig(train=[TextEntry(src="a", tgt="b", tag="<bt>")])
        (tmp_path / "in").write_text(text, encoding="utf-8")
        protect, glossary = (*options, None)[:2]
        files = TextFiles(
            source=str(tmp_path / "in"), output=str(tmp_path / "out"), glossary=glossary
        )
        line_format = LineFormat(form, **fields)
        opened = ModelFolder(tmp_path / "model", {}, Config(data=data), cast("Any", None))
        engine = EngineOptions(models=[opened])
        translate_document.translate_protected(files, line_format, SearchOptions(), engine, protect)
        assert aligns == ["places are found by --alignments" in "\n".join(said)]
        return (tmp_path / "out").read_text(encoding="utf-8"), model.seen, "\n".join(said)

    return run


def test_each_text_comes_once_whatever_the_model_makes_of_it(translated: Any) -> None:
    lines = [
        "Ein %s sieht  https://x.org/a b",  # as they are
        "Der %s mag {0}",  # left out
        "Eine %s und {0}",  # changed
        "https://x.org %s 12",  # no words for the model
        "nichts",
        "  ",
        "ja" + " {n}" * 11,
    ]
    answers = {
        "Der %s mag {0}": ["THE"],
        "Eine %s und {0}": ["A %S AND {ZERO}"],
        "ja" + " {n}" * 11: ["YES {n} {n}"],
    }
    out, seen, said = translated(
        "\n".join(lines) + "\n", lambda text: answers.get(text) or [text.strip()], (["auto"],)
    )
    assert seen[:6] == [
        "Ein %s sieht https://x.org/a b", "Der %s mag {0}", "Eine %s und {0}", "", "nichts", "  "
    ]  # fmt: skip
    *found, last = out.splitlines()
    assert found == [
        "Ein %s sieht https://x.org/a b", "THE %s {0}", "A %s AND {0}", "https://x.org %s 12",
        "nichts", "",
    ]  # fmt: skip
    assert last.count("{n}") == 11
    assert says(said, "misplaced: 2", "line 2, 7", "19 texts and 0 terms")
    assert says(said, "put at the end", "{n} (9)", "%s (1)")
    out, _, _ = translated("ja {0} {1}\n", lambda text: [""], (["auto"],))
    assert out.splitlines() == ["{0} {1}"]


def test_json_lines_are_flagged_and_n_best_lists_are_filled(translated: Any) -> None:
    def answer(text: str) -> list[str]:
        return ["lost", text]

    out, _, _ = translated('{"text": "a %s"}\n{"text": "b"}\n', answer, (["auto"],), form="jsonl")
    first, second = map(json.loads, out.splitlines())
    assert (first["translation"], first["flags"]) == ("lost %s", ["misplaced"])
    assert "alignment" not in first
    assert "flags" not in second
    lines = [" <b>\n\na</b> b.\n%s c\n\n{x}\n", "a.\n<i>b</i>\n"]  # line feeds stay
    text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    out, seen, _ = translated(text, lambda line: [line], (["auto"],), form="jsonl")
    assert seen == ["a b.\n%s c\n\n{x}", "a.\nb"]
    found = [json.loads(line)["translation"] for line in out.splitlines()]
    assert found == [line.strip() for line in lines]
    out, _, _ = translated("a %s c\n", answer, (["auto"],), n_best=2)
    assert [line.split(" ||| ")[1] for line in out.splitlines()] == ["lost %s", "a %s c"]


def test_the_alignment_tells_the_place(translated: Any, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("Hund\tdog\nKatze\tcat\nc d\tx\n", encoding="utf-8")
    lines = '{"text": "c\\nd c d {n}:\\n - e {n\\n}"}'
    out, *_ = translated(lines, lambda line: [line], ([r"\{n\s*\}"], path), form="jsonl")
    assert json.loads(out)["translation"] == "c\nd x {n}:\n - e {n\n}"
    out, seen, said = translated(
        "Ein Hund, ja {name} a\nHund und Katze\n",
        lambda text: [text.replace("{name}", "{Nome}").replace("Hund", "Hound")],
        (["auto"], path),
    )
    assert seen == ["Ein Hund, ja {name} a", "Hund und Katze"]
    assert out.splitlines() == ["Ein dog, ja {name} a", "Dog und cat"]
    assert says(said, "--glossary: has terms", "--alignments", "1 text and 3 terms")
    out, _, said = translated("Hund a b\n", lambda _: [""], ((), path))
    assert says(said, "misplaced: 1", "line 1", "Hund → dog (1)")
    # The model has found the translation of a term by itself.
    out, _, _ = translated("Hund ja\n", lambda _: ["Yes, Dog"], ((), path))
    assert out == "Yes, dog\n"
    for text, expected in (("Hund", "Dog"), ("Hund.", "Dog."), ("<b>Hund</b>", "<b>Dog</b>")):
        form = "html" if "<" in text else "text"
        out, _, _ = translated(text, lambda text: [text.upper()], ((), path), form=form)
        assert out.rstrip("\n") == expected
    # Emoji stay where they are; those before a stop or in brackets too.
    out, seen, _ = translated("😀 Ein Hund lacht 🎉 so ★\n🎉\n", lambda text: [text], ((), path))
    assert seen == ["Ein Hund lacht so", ""]
    assert out == "😀 Ein dog lacht 🎉 so ★\n🎉\n"
    out, seen, _ = translated("Ein Hund (😀) ist da 😀.\n", lambda text: [text], ((), path))
    assert (out, seen) == ("Ein dog (😀) ist da 😀.\n", ["Ein Hund ist da."])
    # A line in capitals or Title Case has its terms in them.
    path.write_text("hund\tdog & co\nkatze\tiCat\n", encoding="utf-8")
    for text, expected in (
        ("EIN HUND\n", "EIN DOG & CO\n"),
        ("Ein HUND\n", "Ein dog & co\n"),
        ("EINE KATZE\n", "EINE iCat\n"),
        ("Wir Kaufen Einen Hund\n", "Wir Kaufen Einen Dog & Co\n"),
    ):
        assert translated(text, lambda text: [text], ((), path))[0] == expected
    # What the model did not see it has not left out.
    out, seen, said = translated("ja🎉und hund\n", lambda _: [""], ((), path))
    assert (seen, out) == (["ja und hund"], "🎉 dog & co\n")
    assert says(said, "left out by the model", "hund → dog & co (1)")
    assert "🎉" not in said
    # The article of an elided word stays.
    path.write_text("école\tgymnasium\n", encoding="utf-8")
    for answer, expected in (("The school is", "The gymnasium is"), ("School is", "Gymnasium is")):
        links = "0-0 0-1 1-2" if answer.startswith("The") else "0-0 1-1"
        tagged = TaggedText(Protection((), path).keep([MarkupToken("text", "L'école est")]))
        assert tagged.render(answer, links)[0] == expected
    # The tag of a training text at the start of a line is for the model.
    _, seen, _ = translated("<bt> ja <b>x\n", lambda text: [text], (["auto"],))
    assert seen == ["<bt> ja x"]


def test_a_name_that_translations_copy_is_shown(translated: Any, tmp_path: Path) -> None:
    """For what is more than words, as no training text has it; without a name left, nothing."""
    pairs = ["Tom sieht"] * 200 + ["Rom"] * 100
    styles = Styles.learn(pairs, pairs, [0] * 300, [("src", "tgt")])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / WRITING).write_text(styles.to_json(), encoding="utf-8")
    for text, sees, answer, expected in (
        ("{a} mag {b} und %s so", "Tom mag Rom und so", "Rom and Tom yes", "{b} and {a} yes %s"),
        ("Tom mag {a}", "Tom mag Rom", "Tom likes Rom", "Tom likes {a}"),
        ("tom mag {a}, {b}!", "tom mag Rom, !", "tom likes Rom!", "tom likes {a}! {b}"),
        ("ICH MAG %s", "ICH MAG TOM", "I LIKE TOM", "I LIKE %s"),
        ("ich mag %s &amp; so", "ich mag Tom & so", "i like tom &", "i like %s &amp;"),
        ("Ja {a}, b_c, Z-3", "Ja Tom, Rom, Z-3", "Yes Z-3 Rom Tom", "Yes Z-3 b_c {a}"),
        (
            "so {a}px {b}{c} (%s)",
            "so {a}px {b}{c} (Tom)",
            "a{a}px {b}{c} (Tom)",
            "a{a}px {b}{c} (%s)",
        ),
        ("das {a}", "das Tom", "我喜欢Tom的书", "我喜欢{a}的书"),
        ("Tom, Rom {a} {b} so", "Tom, Rom so", "Tom, Rom so", "Tom, Rom {a} {b} so"),
        ("Tom, Rom <b>mag {a}</b>.", "Tom, Rom mag .", "Tom, Rom so.", "Tom, Rom <b>so {a}</b>."),
    ):
        options = (["auto", "Z-3", "b_c"],)
        out, seen, _ = translated(f"{text}\n", lambda _, answer=answer: [answer], options)
        assert (seen, out) == ([sees], f"{expected}\n")
    out, *_ = translated('{"text": "Tom Rom {x}\\nja"}\n', lambda t: [t], (["auto"],), form="jsonl")
    assert json.loads(out)["translation"] == "Tom Rom {x}\nja"
    assert translated("US so\n", lambda _: ["us US"], ([r"\bUS\b"],))[0] == "us US\n"


def test_tags_in_lines_are_those_of_documents(translated: Any) -> None:
    lines = "<b>Das Haus</b> ist rot\nja <x id='1'/> a<br>b\n<i>x</i> <Name> {0}\na <b>c</b> d"
    answers = {"a c d": ["A"], "Das Haus ist rot": ["the house is red"]}
    out, seen, said = translated(lines, lambda text: answers.get(text) or [text], (["auto"],))
    assert seen == ["Das Haus ist rot", "ja a b", "x <Name> {0}", "a c d"]
    assert out.splitlines() == [
        "<b>the house</b> is red", "ja <x id='1'/> a<br>b", "<i>x</i> <Name> {0}", "A<b></b>"
    ]  # fmt: skip
    assert says(said, "misplaced: 1", "line 4", "10 texts", "<b> (1)")
    out, _, said = translated("<b>Das Konzert</b> <i> ist </i>", lambda _: [""], (["auto"],))
    assert out == "<b></b><i></i>\n"
    assert says(said, "misplaced: 1")


def test_documents(translated: Any, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("Hund\tA & B\n", encoding="utf-8")
    text = (
        "<p>Ein Hund &amp;: https://x.org/?a&amp;b c</p><td>Hund</td>"
        "<p>Nutze <code>ls -l</code> oft</p><img alt='Der %s'>"
    )
    out, seen, said = translated(text, lambda text: [text.upper()], (["auto"], path), form="html")
    assert seen == ["Ein Hund &: https://x.org/?a&b c", "", "Nutze ls -l oft", "Der %s"]
    assert out == (
        "<p>EIN A &amp; B &amp;: https://x.org/?a&amp;b C</p><td>A &amp; B</td>"
        "<p>NUTZE <code>ls -l</code> OFT</p><img alt='DER %s'>"
    )
    assert says(said, "2 texts and 2 terms")
    # The model does not see emoji, and each text counts once.
    for text in ("<p>a <b>%s c</b> b", "<p>a %s c b"):
        text += "</p><p>🎉 c 😀."
        out, seen, said = translated(text, lambda text: [text], (["auto"],), form="html")
        assert (out, seen) == (text, ["a %s c b", "c."])
        assert says(said, "1 text and 0 terms")


def test_entities_and_spaces_of_documents(translated: Any) -> None:
    for text, options, seen, out in [
        ("&#39;5&#39; a &euro; ", [r"\d+"], ["'5' a €"], "&#39;5&#39; A &euro; "),
        ("R&amp;D amp", ["R&D"], ["R&D amp"], "R&amp;D AMP"),
        ("eins  zwei ", [".+"], [""], "eins  zwei "),
        ("eins zwei ", ["zwei "], ["eins zwei"], "EINS zwei "),
        ("a &lt;b&gt; %s", ["auto"], ["a %s"], "A &lt;b&gt; %s"),
        ('<a title="ja">%s</a>', ["auto"], ["ja", ""], '<a title="JA">%s</a>'),
    ]:
        found = translated(f"<p>{text}</p>", lambda text: [text.upper()], (options,), form="html")
        assert found[:2] == (f"<p>{out}</p>", seen)


def test_what_is_refused(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for pattern in ("a(b", " ", "a{99999999999}", "[[a]"):
        with raises_saying(ConfigError, "--protect", "a regular expression", repr(pattern)):
            Protection(["auto", pattern])
    monkeypatch.setattr(protect, "TIME_LIMIT", 0.1)
    with raises_saying(ConfigError, "--protect '(a|a)+$'", "over 0.1 s", "'aaaa", "repetition"):
        kept(Protection(["(a|a)+$"]), "a" * 60 + "b")
    path = tmp_path / "terms.tsv"
    for content, message in (
        ("a\tb\nHund dog\n", ("line 2", "a tab", "'Hund dog'")),
        ("a\tb\n\na\tc\n", ("line 3", "'a'", "'c'", "'b'", "remove one")),
        ("\n", ("has no terms",)),
    ):
        path.write_text(content, encoding="utf-8")
        with raises_saying(DataError, f"--glossary: {path}", *message):
            Protection((), path)


def test_the_command(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("drei\tTHREE\n", encoding="utf-8")
    lines = ["eins https://x.org zwei", "drei vier", "https://y.org", ""]
    write_lines(tmp_path / "in", lines)
    options = ["--model", tiny_run, "--protect", "auto", "--glossary", tmp_path / "terms.tsv"]
    ended = mt("translate", *options, "--workers", 1, tmp_path / "in", "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    out = lines_of(tmp_path / "out")
    words = ("https://x.org", "THREE")
    assert [line.count(text) for line, text in zip(out[:2], words, strict=True)] == [1, 1]
    assert out[2:] == lines[2:]
    assert says(ended.err, "--glossary: has terms", "4 lines (1 blank", "2 texts and 1 term")
    for more, message in (
        (["--alignments"], ("--alignments", "--protect", "leave out")),
        (["--model", tiny_run], ("--glossary: has terms", "only one --model")),
        (["-o", tmp_path / "terms.tsv"], ("--glossary", "would be lost")),
    ):
        assert says(refused(mt("translate", *options, *more, tmp_path / "in")), *message)


# --- inline tags ----------------------------------------------------------------------------------


TAG = re.compile(r"<[^>]*>")


def rendered(source: str, translated: str, links: str) -> tuple[str, list[MarkupToken]]:
    """The translation of a line of HTML, and the tags that found no place."""
    document = read_document("html", f"<p>{source}</p>", "x")
    assert len(document.texts) == 1
    text, lost = document.render([Translation((translated,), (0.0,), 1, (links,))])
    return text[3:-4], [token for _, token in lost]


@pytest.mark.parametrize(
    ("source", "translated", "links", "expected"),
    [
        ("Der <b>große</b> Hund", "The dog big", "0-0 2-1 1-2", "The dog <b>big</b>"),
        ("<b>Der</b> große Hund", "Dog big the", "2-0 1-1 0-2", "Dog big <b>the</b>"),
        # Punctuation moves with its word, and is not in the tag if it was not.
        ("Ein <b>Hund</b>, ja", "Yes, a dog!", "2-0 0-1 1-2", "Yes, a <b>dog</b>!"),
        ("Ein <b>Hund,</b> ja", "A dog, yes", "0-0 1-1 2-2", "A <b>dog,</b> yes"),
        # Nested pairs stay nested, also where the inner words go elsewhere.
        ("<b>a <i>b</i> c</b> d", "D C B A", "3-0 2-1 1-2 0-3", "D <b>C <i>B</i> A</b>"),
        ("<b>a <i>b</i></b> c d", "B C D A", "1-0 2-1 3-2 0-3", "<b><i>B</i></b> C D A"),
        ("a <i>b</i> <b>c <u>d</u></b>", "D C B A", "3-0 2-1 1-2 0-3",
         "<b><u>D</u> C</b> <i>B</i> A"),
        # Of two that overlap, the one that ends later is two single tags.
        ("<b>a <i>b</b> c</i> d", "A B C D", "0-0 1-1 2-2 3-3", "<b>A <i>B</b> C</i> D"),
        ("<b>a <i>b</b> c</i> d", "C B A D", "2-0 1-1 0-2 3-3", "C</i> <b><i>B A</b> D"),
        # One word that is aligned wrongly does not stretch a tag.
        ("<b>a b</b> c d e f", "A B C D E F", "0-0 1-1 2-2 3-3 4-4 1-5", "<b>A B</b> C D E F"),
        ("<b>a b c</b> d", "A X C D", "0-0 3-1 2-2 3-3", "<b>A</b> X C D"),
        # Single tags stand beside what they stood beside.
        ("a <img> b c", "C B A", "2-0 1-1 0-2", "C <img> B A"),
        ("a<img> b c", "C B A", "2-0 1-1 0-2", "C B A<img>"),
        ("<img> a b", "B A", "1-0 0-1", "<img> B A"),
        ("a b<img>", "B A", "1-0 0-1", "B A<img>"),
        ("<b>a b</b>", "B of A", "1-0 0-2", "<b>B of A</b>"),
        # A part of a word that is translated is the word.
        ("un<b>glaub</b>lich gut", "so incredible", "1-0 0-1", "so <b>incredible</b>"),
        ("un<b>glaub</b>lich gut", "unglaublich good", "0-0 1-1", "un<b>glaub</b>lich good"),
        # Without spaces between words.
        ("A <b>dog</b> here", "ここに犬", "2-0:3 1-3:4", "ここに<b>犬</b>"),
        ("ここに<b>犬</b>", "a dog here", "3:4-0 3:4-1 0:3-2", "<b>a dog</b> here"),
        # A link counts the characters in NFC; this source is not.
        ("か\u3099か\u3099<b>犬</b>です", "ががwolfでた", "0:1-0:1 1:2-1:2 2:3-2:6 3:4-6:7 4:5-7:8",
         "がが<b>wolf</b>でた"),
        # An element that is not translated is found by its text, or by the alignment.
        ("Nutze <code>ls -l</code> jetzt", "Now use ls -l", "2-0 0-1 1-2 2-3",
         "Now use <code>ls -l</code>"),
        ("Nutze <code>ls</code> jetzt", "Now use LS", "2-0 0-1 1-2", "Now use <code>ls</code>"),
        # What stands beside it stays, whatever sign it ends with.
        ("Das ist <code>{x}</code>, ja", "It is Ex, yes", "0-0 1-1 2-2 3-3",
         "It is <code>{x}</code>, yes"),
        ("Das ist <code>f(x)</code>.", "It is F(x).", "0-0 1-1 2-2", "It is <code>f(x)</code>."),
        ("nutze (<code>v</code> ja)", "use V, yes", "0-0 1-1 2-2", "use <code>v</code>, yes"),
        ("¿<code>rm</code> borra?", "Deletes RM?", "1-0 0-1", "Deletes <code>rm</code>?"),
        ("<kbd>Strg</kbd>+<kbd>C</kbd> an", "Ctrl+C on", "0-0 1-1",
         "<kbd>Strg</kbd>+<kbd>C</kbd> on"),
        ("The <b>company</b>'s boss", "Le chef de l'entreprise", "0-0 2-1 1-3",
         "Le chef de <b>l'entreprise</b>"),
        ("AT&amp;T &copy; <b>&lt;x&gt;</b> ist", "© AT&T is <x>", "1-0 0-1 3-2 2-3",
         "&copy; AT&amp;T is <b>&lt;x&gt;</b>"),
    ],
)  # fmt: skip
def test_a_tag_follows_its_words(source: str, translated: str, links: str, expected: str) -> None:
    text, lost = rendered(source, translated, links)
    assert text == expected
    assert len(lost) == 0


def test_a_tag_without_a_place_stands_at_the_end_and_is_counted() -> None:
    text, lost = rendered("a <b>b <i>c</i></b> d", "A D", "0-0 3-1")
    assert text == "A D<b><i></i></b>"
    assert len(lost) == 2
    text, lost = rendered("<i>a <b>b</b> c</i> d", "A C D", "0-0 2-1 3-2")
    assert (text, len(lost)) == ("<i>A C<b></b></i> D", 1)
    text, lost = rendered("a <code>ls</code> b", "A B", "0-0 2-1")
    assert text == "A B <code>ls</code>"
    assert len(lost) == 1


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ('ab zu.<sup><a href="#c2">[2]</a></sup> Cd', "ab zu. Cd"),
        ("Бал<sup>1</sup>, да", "Бал, да"),
        ("ναι<b>[3]</b> όχι", "ναι όχι"),
        ("نعم <sup>٢</sup> لا", "نعم لا"),
        ("हाँ<i>*</i> ना", "हाँ ना"),
        ("東京<sup>1</sup>に<b>2020</b>年", "東京に2020年"),
        ("H<sub>2</sub> c <i>→</i> d", "H c d"),
        ('ja <a href="x.html#n1">1</a> ab <b> <i>3</i></b> cd<b>!</b>', "ja ab 3 cd!"),
    ],
)
def test_an_element_without_letters_stays_whole(source: str, seen: str) -> None:
    assert read_document("html", f"<p>{source}</p>", "x").texts[-1].tagged.text == seen
    copy = " ".join(f"{n}-{n}" for n in range(len(seen.split())))
    assert rendered(source, seen, copy) == (source, [])
    written, _ = rendered(source, "Q R", "0-1 1-0")
    assert [part for part in re.findall(r">\W*\d+\W*</", source) if part not in written] == []
    assert rendered("a <b>3</b> c", "A drei C", "0-0 1-1 2-2")[0] == "A <b>3</b> C"
    assert rendered("a <b>3</b> c", "A C", "0-0 2-1")[0] == "A C <b>3</b>"


def made_line(draw: random.Random, depth: int = 0) -> str:
    """Words, punctuation, pairs of tags and single ones, in odd places."""
    parts = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.random()
        if kind < 0.3 and depth < 4:
            name = draw.choice("abiqsu")
            parts.append(f"<{name}>{draw.choice(['', ' '])}{made_line(draw, depth + 1)}</{name}>")
        elif kind < 0.4:
            parts.append(draw.choice(["<img>", "<wbr>", "<!-- x -->", "<b>", "</i>"]))
        else:
            parts.append(draw.choice(["ab", "ab c", "d,", "(e", "f.", "g-h", "&amp;", "ab ab"]))
        parts.append(draw.choice(["", " ", " ", "  "]))
    return "".join(parts)


def test_nothing_is_lost_whatever_the_alignment() -> None:
    """A copy has each tag in its place; any other translation has each tag once."""
    draw = random.Random(5)
    n_same = 0
    for _ in range(600):
        source = re.sub(" +", " ", f"w {made_line(draw)} z")
        text = read_document("html", f"<p>{source}</p>", "x").texts[0].tagged.text
        n_words = len(text.split())
        copy, lost = rendered(source, text, " ".join(f"{n}-{n}" for n in range(n_words)))
        assert copy.replace(" ", "") == source.replace(" ", "")
        assert len(lost) == 0
        n_same += copy == source
        links = [f"{draw.randint(0, n_words)}-{n}" for n in range(9) if draw.random() < 0.8]
        other, _ = rendered(source, "Q R, S (T) U. V W & X", " ".join(links))
        assert sorted(TAG.findall(other)) == sorted(TAG.findall(source))
        assert "".join(TAG.sub("", other).split()) == "QR,S(T)U.VW&amp;X"
    assert n_same > 585  # in the others a space has moved over a tag that holds nothing else
