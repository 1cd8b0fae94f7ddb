"""Subtitles, XLIFF and HTML: the texts are translated, and all else stays as it was."""

from __future__ import annotations

import gzip
import os
import random
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from conftest import Mt, refused
from lxml import etree, html
from messages import raises_saying, says
from model_files import changed_meta, copy_model

from mt.documents.document import Document
from mt.documents.translate_document import read_document
from mt.errors import DataError
from mt.translate.lines import Translation

SRT = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500 X1:40\r\n<i>Hallo Welt,</i>\r\nwie geht es?\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000\r\n- Gut. \r\n<i>– Und</i> dir?\r\nJa & <3\r\n\r\n\r\n"
    "3\r\n00:00:05,000 --> 00:00:06,000\r\n{\\an8}42\r\n\r\nNoch mehr\r\n<b>aa\r\nbb</b>"
)
HTML = """<!DOCTYPE html>
<html lang="de"><head><meta charset="utf-8"><title>Der Titel &amp; mehr</title>
<style>p { a }</style><script>if (a<b) "<p>Text</p>"</script></head>
<body class='x'><!-- Kommentar --><h1>Ein <b>großer <i>Hund</i></b>, ja</h1>
<p>Der <a href="x"> Hund </a> schläft&nbsp;&copy; <img alt="Bild 'x'" title='ein "T"' src=y> hier
<br>neue Zeile <code>ls -l</code> jetzt.
<p translate="no">Nicht <b>das</b></p><ul><li>Eins<li title=Zahl>Zwei &lt;3</ul>
<b>eins <i>zwei</b> drei</i> vier <span class="notranslate">Marke</span>
<pre>Zeile eins
  Zeile zwei</pre>123 <b>4</b>
</body></html>
"""
XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="y"><body>
  <trans-unit id="1">
    <source>Der <g id="1">Hund <g id="2">schläft</g></g> &quot;hier&quot;<x id='3' />.</source>
  </trans-unit>
  <trans-unit id="2" approved="yes"><source>Haus</source><target>house</target></trans-unit>
  <trans-unit id="3"><source>Haus</source><target>by hand</target></trans-unit>
  <trans-unit id="4"><source>Haus</source><target  state="new"/></trans-unit>
  <trans-unit id="5"><source>Haus <bpt id="1">&lt;b&gt;</bpt>und<ept id="1">&lt;/b&gt;</ept> Hof\
</source><target xml:lang="en" state='needs-translation'>old</target></trans-unit>
  <trans-unit id="6" translate="no"><source>Haus</source></trans-unit>
  <trans-unit id="7"><source><![CDATA[Haus <b> & Hof]]></source><alt-trans><source>A</source>\
<target>b</target></alt-trans></trans-unit>
</body></file></xliff>
"""
XLIFF_2 = """<xliff version="2.0" srcLang="de" trgLang="en"><file id="f"><unit id="1">
  <m:matches><m:match><source>Nein</source></m:match></m:matches>
  <segment><source>Der <pc id="1">Hund</pc> <ph id="2"/>schläft</source></segment>
  <ignorable><source> </source></ignorable>
  <segment id="2" state="initial">
    <source>Haus</source>
    <target></target>
  </segment>
  <segment state="final"><source>Haus</source><target>house</target></segment>
</unit></file></xliff>"""


def copied(texts: Iterable[str], change: Callable[[str], str] = str) -> list[Translation]:
    """The output of a model that copies its input, with its alignment."""
    return [
        Translation((change(text),), (0.0,), 1, (" ".join(f"{n}-{n}" for n in range(99)),))
        for text in texts
    ]


def translated(form: str, content: str, change: Callable[[str], str] = str) -> str:
    document = read_document(form, content, "x")
    written, lost = document.render(copied((text.tagged.text for text in document.texts), change))
    assert not lost
    return written


def texts_of(document: Document) -> list[tuple[int, str]]:
    return [(text.line, text.tagged.text) for text in document.texts]


def test_subtitles() -> None:
    assert texts_of(read_document("srt", SRT, "x")) == [
        (3, "Hallo Welt, wie geht es?"),
        (8, "Gut."),
        (9, "Und dir? Ja & <3"),
        (17, "Noch mehr aa bb"),
    ]
    assert translated("srt", SRT) == SRT
    longer = translated("srt", SRT, lambda text: text.replace("Hallo", "Guten schönen Tag,"))
    # The lines are parted as the source's were.
    assert "<i>Guten schönen</i> Tag,\r\nWelt, wie geht es?\r\n" in longer
    # A translation of one word has one line.
    assert "--> 00:00:06,000\r\nnoch\r\n" in translated(
        "srt", "1\r\n00:00:05,000 --> 00:00:06,000\r\naa\r\nbb\r\n", lambda _: "noch"
    )
    plain = "1\n00:01,000 --> 00:02,500\nEins zwei drei\nvier fünf\n"
    assert not read_document("srt", plain, "x").texts[0].tagged.needs_alignment
    assert translated("srt", plain, lambda _: "これは一行目です").splitlines()[2:] == [
        "これは一行", "目です",
    ]  # fmt: skip
    close = "1\n00:01,0 --> 00:02,0\neins\nzwei\n2\n00:03 --> 0:4;5\ndrei\n"
    assert translated("srt", close, str.upper) == close.upper()
    # A line of its own for a tag.
    for text in ("<i>\nEins zwei drei.\n</i>", "{\\an8}\nEins zwei drei."):
        alone = f"1\n00:01,0 --> 00:02,0\n{text}\n"
        assert translated("srt", alone) == alone
    # {\\i1} and {\\i0} are a pair.
    text = "1\n00:01,0 --> 00:02,0\n{\\an8}Eins {\\i1}zwei{\\i0} drei.\n"
    document = read_document("srt", text, "x")
    found = Translation(("Drei zwei, eins.",), (0.0,), 1, ("2-0 1-1 0-2",))
    assert document.render([found])[0].endswith("\n{\\an8}Drei {\\i1}zwei{\\i0}, eins.\n")


def test_no_line_of_a_subtitle_is_blank() -> None:
    """It would end the subtitle; none has more lines than its source."""
    draw = random.Random(1)
    rows = ["{\\an8}<i>a b</i>", "<i>c <b>d</b></i>", "e f"]
    for _ in range(300):
        draw.shuffle(rows)
        lines = "\r\n".join(rows)
        document = read_document("srt", f"1\r\n00:01,0 --> 00:02,0\r\n{lines}\r\n\r\n2\r\n", "x")
        links = " ".join(f"{draw.randint(0, 5)}-{n}" for n in range(6) if draw.random() < 0.8)
        words = " ".join("QRSTUV"[: draw.randint(0, 6)])
        written, _ = document.render([Translation((words,), (0.0,), 1, (links,))])
        subtitle = written.removesuffix("\r\n\r\n2\r\n").split("\r\n")[2:]
        assert len(subtitle) <= 3
        assert all(map(str.strip, subtitle))
        assert written.count("\n") == written.count("\r\n")


def test_subtitles_without_numbers_after_a_byte_order_mark() -> None:
    text = "\ufeff00:01,0 --> 00:02,0\neins\n\n00:03,0 --> 00:04,0\nzwei\n"
    assert texts_of(read_document("srt", text, "x")) == [(2, "eins"), (5, "zwei")]


@pytest.mark.parametrize("space", ["", ' xml:space="preserve"', ' xml:space="default"'])
def test_the_lines_of_a_unit_stay_where_white_space_counts(space: str) -> None:
    source = "- Der\n <g id='1'>Hund.\n\n2. Eins</g> - zwei\n---\n"
    segments = f'<mrk mtype="seg">{source}</mrk> <mrk mtype="seg">ja\nb</mrk>'
    content = (
        f'<xliff><file xml:space="preserve"><body{space}><trans-unit><source>{source}</source>'
        f"</trans-unit>\n<trans-unit><source/><seg-source>{segments}</seg-source></trans-unit>"
        "</body></file></xliff>"
    )
    document = read_document("xliff", content, "x")
    texts = texts_of(document)
    if "default" in space:
        assert [text for _, text in texts[:1]] == ["- Der Hund. 2. Eins - zwei ---"]
        return
    assert texts[:4] == [(1, "Der"), (2, "Hund."), (4, "Eins - zwei"), (7, "Der")]
    assert [text for _, text in texts[4:]] == ["Hund.", "Eins - zwei", "ja", "b"]
    written, _ = document.render(copied((text.upper() for _, text in texts)))
    lines = "- DER\n <g id='1'>HUND.\n\n2. EINS</g> - ZWEI\n---\n"
    assert re.findall(r"<target[^>]*>(.*?)</target>", written, re.DOTALL) == [
        lines,
        f'<mrk mtype="seg">{lines}</mrk> <mrk mtype="seg">JA\nB</mrk>',
    ]


def test_tags_stay_nested_where_a_break_parts_pairs() -> None:
    document = read_document("html", "<b><i>a<br>b</i> c</b> d", "x")
    found = [Translation((text,), (0.0,), 1, ("1-0 0-1 2-2",)) for text in ("A", "C B D")]
    assert document.render(found)[0] == "<b><i>A<br>C B</i></b> D"


@pytest.mark.parametrize("name", ["ASCII", "us-ascii"])
def test_a_translation_is_not_declared_as_ascii(name: str) -> None:
    comment = '<!-- <meta charset="latin-1"> -->'
    text = f'{comment}<meta charset="{name}"><p>a</p>'
    assert translated("html", text, lambda _: "ä") == f'{comment}<meta charset="utf-8"><p>ä</p>'


def test_html() -> None:
    assert texts_of(read_document("html", HTML, "x")) == [
        (2, "Der Titel & mehr"), (4, "Ein großer Hund, ja"), (5, "Bild 'x'"), (5, 'ein "T"'),
        (5, "Der Hund schläft\u00a0© hier"), (6, "neue Zeile ls -l jetzt."), (7, "Eins"),
        (7, "Zahl"), (7, "Zwei <3"), (8, "eins zwei drei vier Marke"), (9, "Zeile eins"),
        (10, "Zeile zwei"),
    ]  # fmt: skip
    copy = translated("html", HTML)
    assert etree.tostring(html.fromstring(copy)) == etree.tostring(html.fromstring(HTML))
    assert copy == HTML.replace("title=Zahl", 'title="Zahl"')
    changed = translated("html", HTML, lambda text: re.sub(r"\b(?!ls|l\b|Marke)\w+", "e", text))
    for kept in ("p { a }", "if (a<b)", "Kommentar", "ls -l", "Nicht <b>das</b>", ">Marke<"):
        assert kept in changed
    for word in ("Titel", "großer", "Bild", "Eins", "Zahl", "jetzt", "Zeile"):
        assert word not in changed
    assert translated("html", "<p>a <b>b") == "<p>a <b>b"
    others = """<i data-title='a' data-text="title='a'" """
    assert translated("html", f"{others}title='a'>", str.upper) == f"{others}title='A'>"
    (text,) = read_document("html", "&#1044;&#1072; <code>&lt;</code>", "x").texts
    assert text.tagged.text == "Да <"
    assert translated("html", "") == ""
    (text,) = read_document("html", "a <code>b </code>c<kbd> d</kbd>e <nobr>f</nobr>", "x").texts
    assert text.tagged.text == "a b c de f"
    spaced = "a <code>b </code>c <kbd> d</kbd>e<samp> f </samp>g<svg> h</svg>i <code>j </code> k"
    assert translated("html", spaced) == spaced
    # What a script or a form says is not the encoding of the page.
    assert translated("html", '<form accept-charset="ISO-8859-1"><p>a') != ""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<li translate=no>a<ul><li>b</ul></li>c", "<li translate=no>a<ul><li>b</ul></li>C"),
        ("<p translate=no>a<br></br>b</p>c", "<p translate=no>a<br></br>b</p>C"),
        ("a &#! <b>c</b> d", "A &amp;#! <b>C</b> D"),
        # Comments end as the standard says, and are no markup in titles and scripts.
        ("a<!--><p>b</p>-->", "A<!--><p>B</p>-->"),
        ("a<!---><p>b", "A<!---><p>B"),
        ("<p>a</p><!-- x\n --!><p>b</p><!-- c", "<p>A</p><!-- x\n --!><p>B</p><!-- c"),
        ("<title>a <!-- b</title>c", "<title>A &lt;!-- B</title>C"),
        ("<script>'<!-- <p>'</script>a", "<script>'<!-- <p>'</script>A"),
        # What shows no letter.
        ("<p>&#x3164;&shy;</p>a", "<p>&#x3164;&shy;</p>A"),
        # Signs that begin no tag, and quotation marks that begin no value.
        ("<pre>x < 5\ny &lt; z</pre>", "<pre>X &lt; 5\nY &lt; Z</pre>"),
        ("<p don't>a</p>b", "<p don't>A</p>B"),
        ("<p>a <b", "<p>A &lt;B"),
    ],
)  # fmt: skip
def test_what_html_leaves_open(content: str, expected: str) -> None:
    assert translated("html", content, str.upper) == expected


def test_xliff() -> None:
    document = read_document("xliff", XLIFF, "x")
    assert texts_of(document) == [
        (4, 'Der Hund schläft "hier".'), (8, "Haus"), (9, "Haus und Hof"), (11, "Haus <b> & Hof"),
    ]  # fmt: skip
    assert document.n_done == 2
    copy = translated("xliff", XLIFF)
    made = '<target state="needs-review-translation" state-qualifier="mt-suggestion">'
    source = re.findall("<source>(.*)</source>", XLIFF)
    assert f"</source>\n    {made}{source[0]}</target>\n" in copy
    assert 'xml:lang="en" state="needs-review-translation" state-qualifier' in copy
    assert f"{made}Haus &lt;b&gt; &amp; Hof</target><alt-trans>" in copy
    assert "by hand" in copy
    assert "<target>house</target>" in copy
    # The rest is the same, and a second start finds nothing to do.
    target = re.compile(r"\s*<target[^>]*?(?:/>|>.*?</target>)")
    assert target.sub("", copy) == target.sub("", XLIFF)
    assert translated("xliff", copy, lambda _: "other") == copy
    etree.fromstring(copy.encode())
    assert translated("xliff", f"\ufeff{XLIFF}") == f"\ufeff{copy}"
    mark = 'a <mrk translate="no"><ph id="3"/></mrk> b'
    assert translated("xliff", XLIFF_2.replace("Hund", mark)).count(mark) == 2
    copy = translated("xliff", XLIFF_2)
    segment = re.findall("<source>(.*)</source></seg", XLIFF_2)[0]
    assert copy == XLIFF_2.replace(
        f"<segment><source>{segment}</source>",
        f'<segment state="translated"><source>{segment}</source><target>{segment}</target>',
    ).replace("<target></target>", "<target>Haus</target>").replace("initial", "translated")


def unit(content: str, attributes: str = "") -> str:
    unit = f"<trans-unit{attributes}>{content}</trans-unit>"
    return f"<xliff><file><body>{unit}</body></file></xliff>"


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ('<bpt id="1">x</bpt>', '<ept id="1">y</ept>'),
        ('<bx id="1" rid="9"/>', '<ex id="2" rid="9"/>'),
        ('<sc id="1"/>', '<ec startRef="1"/>'),
    ],
)
def test_two_tags_of_xliff_may_be_a_pair(first: str, last: str) -> None:
    document = read_document("xliff", unit(f"<source>a {first}b{last} c d</source>"), "x")
    found = Translation(("D C B of A",), (0.0,), 1, ("3-0 2-1 1-2 0-4",))
    assert f">D C {first}B{last} of A</target>" in document.render([found])[0]
    alone = unit(f"<source>a {last}b {first}c d</source>")
    assert f">a {last}b {first}c d</target>" in translated("xliff", alone)


def test_xliff_whose_source_a_tool_has_cut() -> None:
    """As `.sdlxliff` is: each segment is a text, and has its place in the target."""
    one, two, number = (
        f'<mrk mtype="seg" mid="{n}">{text}</mrk>' for n, text in enumerate(("Eins.", "Zwei.", "3"))
    )
    source = "<source>Eins. 3 Zwei.</source>"
    cut = f'{source}<seg-source><g id="7">{one} {number} {two}</g></seg-source>'
    state = ' state="needs-review-translation" state-qualifier="mt-suggestion"'
    for target in ("", "<target/>", "<target> </target>"):
        copy = translated("xliff", unit(cut + target), str.upper)
        whole = f'<target{state}><g id="7">{one} {number} {two}</g></target>'
        assert copy == unit(cut + whole.replace("Eins", "EINS").replace("Zwei", "ZWEI"))
        assert texts_of(read_document("xliff", copy, "x")) == []
    # A unit of which somebody has translated a part stays.
    half = '<target>{}One.</mrk> <mrk mtype="seg" mid="1"/></target>'.format(one.split("Eins")[0])
    document = read_document("xliff", unit(cut + half), "x")
    assert (texts_of(document), document.n_done) == ([], 1)
    assert translated("xliff", unit(cut + half)) == unit(cut + half)
    assert texts_of(read_document("xliff", unit(f"{cut}<target>One. Two.</target>"), "x")) == []
    # Those of other translations, or inside each other, are not the unit's.
    parts = f"<source>Eins</source><seg-source>{one}</seg-source><target>{two}</target>"
    other = f"{source}<alt-trans>{parts}</alt-trans>"
    done = f"<target{state}>Eins. 3 Zwei.</target>"
    assert translated("xliff", unit(other)) == unit(other.replace("<alt", f"{done}<alt", 1))
    within = f"{source}<seg-source>{one.replace('Eins', two)}</seg-source>"
    assert translated("xliff", unit(within)).endswith(
        f"<target{state}>{one.replace('Eins', two)}</target></trans-unit></body></file></xliff>"
    )
    fixed = cut.replace('mid="1"', 'mid="1" translate="no"')
    assert texts_of(read_document("xliff", unit(fixed), "x")) == [(1, "Eins.")]
    nothing = unit('<source>3</source><seg-source><mrk mtype="seg" mid="2">3</mrk></seg-source>')
    assert translated("xliff", nothing) == nothing


def test_what_is_no_such_document() -> None:
    open_value, no_end = 'a\n<a href="x>b</a>', "a\n<p translate=no>b<p>c</p>"
    for form, content, message in [
        ("srt", "1\r00:00:01,000 --> 00:00:02,000\rEins\r", ("in.x", "carriage", "tr '")),
        ("srt", "eins\n", ("in.x", "no subtitle", "-->", "--format text")),
        ("srt", "", ("in.x", "no subtitle")),
        ("xliff", "<xliff>\n<file></xliff>", ("in.x, line 2", "mismatched tag", "--format text")),
        ("xliff", "<xliff/>", ("in.x", "<source>", "<segment>")),
        ("xliff", '<?xml version="1.0" encoding="latin-1"?><a/>', ("in.x", "latin-1", "UTF-8")),
        ("html", open_value, ("in.x, line 2", "never closes", '<a href="x>b', "close it")),
        ("html", no_end, ("in.x, line 2", "no end tag", "'<p translate=no>b", "close it")),
        ("html", "<meta charset=windows-1252>", ("in.x", "windows-1252", "UTF-8", "convert")),
    ]:
        with raises_saying(DataError, *message):
            read_document(form, content, "in.x")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", ["<a ", "<!--", "<script>", "<a b=c ", '<a b="<a c="', "<p"])
def test_html_that_never_ends_takes_no_longer_than_its_length(part: str) -> None:
    assert translated("html", part * 20_000).count("a") == part.count("a") * 20_000


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ('source-language="de-AT" target-language="en-GB"', ()),
        ('source-language="deu"', ()),
        (
            'source-language="de" target-language="fr"',
            ("line 1", "target", "en", "'fr'", "--to fr"),
        ),
        ('source-language="nl-BE"', ("line 1", "source", "de", "'nl-BE'", "--from nl")),
    ],
)
@pytest.mark.parametrize("version", ["1.2", "2.0"])
@pytest.mark.parametrize("sources", [["de"], ["de", "fr"], ["fr", "src", "de"]])
def test_a_document_is_in_the_languages_of_the_model(
    version: str, sources: list[str], languages: str, message: tuple[str, ...], mt: Mt,
    tiny_run: Path, tmp_path: Path,
) -> None:  # fmt: skip
    with changed_meta(copy_model(tiny_run, tmp_path / "model")) as meta:
        meta["config"]["data"]["train"] = [{"src": "a", "tgt": "b", "src_lang": c} for c in sources]
    text = '<trans-unit id="1"><source>eins</source></trans-unit>'
    content = f"<xliff><file {languages}><body>{text}</body></file></xliff>"
    if version == "2.0":
        languages = languages.replace("source-language", "srcLang")
        content = f"<xliff {languages.replace('target-language', 'trgLang')}><file><unit><segment>"
        content += "<source>eins</source></segment></unit></file></xliff>"
    (tmp_path / "in.xlf").write_text(content, encoding="utf-8")
    command = ("translate", "--model", tmp_path / "model", tmp_path / "in.xlf")
    ended = mt(*command, "-o", tmp_path / "out.xlf")
    if message:
        assert says(refused(ended), "in.xlf", *message)
        assert not (tmp_path / "out.xlf").exists()
    else:
        out = (tmp_path / "out.xlf").read_bytes()
        assert (ended.code, b"<target" in out) == (0, True)
        # XLIFF 2 has no target without it.
        assert version == "1.2" or out.count(b" trgLang=") == 1


def test_a_model_translates_documents_by_ending(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.srt"
    path.write_bytes(b"1\r\n00:01,0 --> 00:02,0\r\neins <i>zwei</i>\r\n")
    ended = mt("translate", "--model", tiny_run, path, "-o", tmp_path / "out.srt", "--workers", 1)
    assert ended.code == 0, ended.err
    out = (tmp_path / "out.srt").read_bytes()
    assert re.fullmatch(rb"1\r\n00:01,0 --> 00:02,0\r\n.*<i>.*</i>.*\r\n", out)
    assert says(ended.err, "1 text", "CTranslate2 has no --alignments")
    pipe = tmp_path / "page.srt.gz"
    os.mkfifo(pipe)
    packed = gzip.compress(path.read_bytes())
    threading.Thread(target=pipe.write_bytes, args=[packed], daemon=True).start()
    assert mt("translate", "--model", tiny_run, pipe, "--workers", 1).out == out
    assert len(mt("translate", "--model", tiny_run, "--format", "text", path).lines) == 3
    for options, message in (
        (["--n-best", 2], ("--format srt", "--n-best")),
        (["--resume", "-o", tmp_path / "o"], ("--resume", "--format srt")),
        (["--model", tiny_run], (str(path), "only one --model")),
        (["--column", 2], ("--column", "--format tsv", "srt")),
    ):
        assert says(refused(mt("translate", "--model", tiny_run, path, *options)), *message)
    path.write_bytes(b"1\n00:01,0 --> 00:02,0\nf\xfcnf\n")
    said = refused(mt("translate", "--model", tiny_run, path))
    assert says(said, str(path), "line 3", "WINDOWS-1252", "--errors replace")
