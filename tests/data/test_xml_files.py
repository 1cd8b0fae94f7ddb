"""TMX and XLIFF: the text of each unit, and nothing else of a malformed one."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from corpora import WHERE, message_of, pack, write
from messages import says

from mt.config.schema import Source
from mt.data.reading.corpus import read_pairs
from mt.data.reading.text_files import Damage


def unit(de: str, en: str, langs: tuple[str, str] = ("de-DE", "EN_us")) -> str:
    sides = zip(langs, (de, en), strict=True)
    tuvs = "\n".join(f'<tuv xml:lang="{lang}"><seg>{text}</seg></tuv>' for lang, text in sides)
    return f'<tu tuid="1">\n<prop type="x">p</prop>{tuvs}</tu>\n'


def tmx(*units: str, encoding: str = "UTF-8", doctype: str = "") -> str:
    head = f'<?xml version="1.0" encoding="{encoding}"?>\n{doctype}<tmx version="1.4">'
    return f"{head}<!-- <tu> --><header/><body>\n{''.join(units)}</body></tmx>"


def read(folder: Path, content: str | bytes, name: str = "a.tmx", **keys: Any) -> tuple[Any, Any]:
    """The pairs of a file, and what was wrong: kind -> how often."""
    write(folder / name, content)
    damage = Damage()
    source = Source.model_validate({"path": name, "src": "de", "tgt": "en", **keys})
    found = list(read_pairs(source, folder, WHERE, damage=damage))
    return found, {kind.split(",")[0]: count for kind, (count, _) in damage.kinds.items()}


TAGS = (
    'Ein <bpt i="1">&lt;b&gt;</bpt>fettes<ept i="1">&lt;/b&gt;</ept> <hi>Wort</hi> &amp;<ph/> mehr'
)


def test_tags_are_left_out_with_their_code_and_the_text_after_them_stays(tmp_path: Path) -> None:
    content = tmx(
        unit(TAGS, "a &lt;b&gt; word"), unit("zwei\n  Zeilen", "two<!-- x --><?y z?> lines")
    )
    assert read(tmp_path, content) == (
        [("Ein fettes Wort & mehr", "a <b> word"), ("zwei Zeilen", "two lines")], {}
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-8-SIG", "UTF-16", "UTF-16-LE", "ISO-8859-1"])
@pytest.mark.parametrize("packed", ["", "gz", "zst"])
def test_encodings_that_the_file_says(tmp_path: Path, encoding: str, packed: str) -> None:
    content = tmx(unit("größer", "larger"), encoding=encoding.removesuffix("-SIG"))
    assert read(tmp_path, pack(packed, content.encode(encoding))) == ([("größer", "larger")], {})


def test_a_language_is_the_very_one_else_the_first_of_its_kind(tmp_path: Path) -> None:
    three = unit("x", "y", ("de-AT", "en")).replace(
        "</tu>\n", '<tuv lang="de"><seg>z</seg></tuv></tu>'
    )
    assert read(tmp_path, tmx(three))[0] == [("z", "y")]
    assert read(tmp_path, tmx(three), src="de-at")[0] == [("x", "y")]
    assert read(tmp_path, tmx(three), src="de-CH")[0] == [("z", "y")]
    assert read(tmp_path, tmx(three), src="EN", tgt="DE")[0] == [("y", "z")]
    found, damage = read(tmp_path, tmx(unit("only", "", ("de", "fr")), unit("b", "c")))
    assert (found, damage) == ([("b", "c")], {"units without text in de and en": 1})


@pytest.mark.parametrize(("src", "tgt", "side"), [("de", "fr", "tgt"), ("sv", "fr", "src")])
def test_a_language_that_is_nowhere_is_named_with_those_there(
    tmp_path: Path, src: str, tgt: str, side: str
) -> None:
    write(tmp_path / "a.tmx", tmx(unit("a", "b"), unit("c", "d")))
    message = message_of(tmp_path, src, tgt, path="a.tmx")
    assert says(message, f"data.train[0].{side}: {tmp_path}/a.tmx", tgt, "de-DE (2), EN_us (2)")
    assert "\n" not in message


def test_a_malformed_unit_does_not_touch_the_others(tmp_path: Path) -> None:
    """libxml2 alone ends at the first, and nests all later units in the last three."""
    others = [unit(f"s{i}", f"t{i}") for i in range(300)]
    for bad, kind in [
        (unit("a < b & c&nbsp;d\x02", "x"), "units that are not XML"),
        (unit("a<b>b", "x"), "units that are not XML"),
        (unit("a", "x").replace("</tu>", ""), "units that are not closed"),
        ("<segment> <!-- ", "units that are not closed"),  # as are no others in the file
        (unit("a", "x").replace("</seg>", "", 1), "units that are not XML"),
    ]:
        found, damage = read(tmp_path, tmx(others[0], *[bad, others[1]] * 300, *others[2:]))
        assert len(found) == 1 + 300 + 298
        assert {name[: len(kind)]: count for name, count in damage.items()} == {kind: 300}


def test_a_comment_in_a_unit_does_not_lose_it_where_a_block_ends_there(tmp_path: Path) -> None:
    """Units of all sizes, so that each of the blocks ends in another place of a unit."""
    units = [unit(f"s{i}" + "x" * (i % 97), f"t<!-- <tu> -->{i}") for i in range(5_000)]
    found, damage = read(tmp_path, tmx(*units))
    assert [tgt for _, tgt in found] == [f"t{i}" for i in range(5_000)]
    assert not damage


def test_a_file_that_is_cut_off_is_read_to_its_end(tmp_path: Path) -> None:
    found, damage = read(tmp_path, tmx(unit("a", "b"), unit("c", "d"))[:-40])
    assert (found, damage) == ([("a", "b")], {"units that are not closed": 1})
    opened = [unit("c", "d").replace("</tu>", "")] * 200
    for units in ([*opened, unit("a", "b")], [unit("a", "b"), *opened]):
        found, damage = read(tmp_path, tmx(*units))
        assert (found, damage) == ([("a", "b")], {"units that are not closed": 200})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tmx", "<tu><tuv><seg>eins</seg></tuv><tuv><seg>one</seg></tuv></tu>"),
        ("a.xlf", "<trans-unit><source>eins</source><target>one</target></trans-unit>"),
    ],
)
def test_texts_without_languages_are_not_taken_for_their_own_translations(
    tmp_path: Path, name: str, content: str
) -> None:
    write(tmp_path / name, content)
    message = message_of(tmp_path, "de", "en", path=name)
    assert says(message, "data.train[0].path", name, "not said (1)", "xml:lang", "source-language")
    # de-AT and de-CH would both take the text in de.
    mixed = tmx(
        unit("gleich", "same", ("de", "en")), unit("Erdapfel", "Härdöpfel", ("de-AT", "de-CH"))
    )
    found = read(tmp_path, mixed, src="de-AT", tgt="de-CH")
    assert found == ([("Erdapfel", "Härdöpfel")], {"units without text in de-AT and de-CH": 1})


def test_only_xml_lang_and_lang_say_the_language_of_a_text(tmp_path: Path) -> None:
    content = tmx(unit("eins", "one")).replace("<tuv ", '<tuv srclang="fr" ')
    assert read(tmp_path, content) == ([("eins", "one")], {})


def test_an_xml_bomb_is_refused(tmp_path: Path) -> None:
    entities = '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    write(tmp_path / "a.tmx", tmx(unit("&b;", "x"), doctype=f"<!DOCTYPE tmx [{entities}]>\n"))
    message = message_of(tmp_path, "de", "en", path="a.tmx")
    assert says(message, f"data.train[0].path: {tmp_path}/a.tmx, line 2", "entity", "refused")
    harmless = tmx(unit("a", "b"), doctype='<!DOCTYPE tmx SYSTEM "tmx14.dtd">')
    assert read(tmp_path, harmless)[0] == [("a", "b")]


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    content = tmx(unit("gr\xfcn", "green"), unit("b", "c")).encode("latin-1")
    write(tmp_path / "a.tmx", content)
    assert says(message_of(tmp_path, "de", "en", path="a.tmx"), "a.tmx, line 3", "UTF-8", "errors")
    assert read(tmp_path, content, errors="skip")[0] == [("b", "c")]
    found, damage = read(tmp_path, content, errors="replace")
    assert (found[0], sum(damage.values())) == (("gr\ufffdn", "green"), 1)
    # Codecs of Python that are none of text, and one that requires a byte-order mark.
    for unknown in ("ebcdic-of-mars", "base64", "rot13", "utf-16"):
        write(tmp_path / "a.tmx", tmx(unit("a", "b"), encoding=unknown))
        assert says(message_of(tmp_path, "de", "en", path="a.tmx"), unknown, "Correct")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("<tmx><tu><tuv/></tu></tmx>", "needs a <seg>"),
        (tmx(), "no units"),
        ("", "no units"),
        (tmx(unit("x" * 11_000_000, "y")), "10,000,000"),
    ],
)
def test_files_without_a_unit_or_an_endless_one(tmp_path: Path, content: str, found: str) -> None:
    write(tmp_path / "a.tmx", content)
    assert says(message_of(tmp_path, "de", "en", path="a.tmx"), "data.train[0].path", found)


def test_one_file_of_a_folder_may_have_no_units(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    write(tmp_path / "c" / "a.tmx", tmx())
    assert says(message_of(tmp_path, "de", "en", path="c"), "a.tmx", "no units")
    write(tmp_path / "c" / "b.tmx", tmx(unit("eins", "one")))
    damage = Damage()
    source = Source(path="c", src="de", tgt="en", format="tmx")
    assert [*read_pairs(source, tmp_path, WHERE, damage=damage)] == [("eins", "one")]
    assert says(damage.messages()[0], "without a pair, left out: 1", "a.tmx")


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.tmx.gz", pack("gz", tmx(*[unit("eins " * 700, "one")] * 1_000)))
    source = Source(path="a.tmx.gz", src="de", tgt="en")
    next(read_pairs(source, tmp_path, WHERE))  # imports what parses
    tracemalloc.start()
    assert sum(1 for _ in read_pairs(source, tmp_path, WHERE)) == 1_000
    assert tracemalloc.get_traced_memory()[1] < 3_000_000  # of 3.6 MB unpacked, 40 as elements
    tracemalloc.stop()


# --- XLIFF ------------------------------------------------------------------------------------


BODY = """<trans-unit id="1"><source>Hallo <g id="1">Welt</g><x id="2"/>!</source>
<seg-source>no</seg-source><target>Hello <g id="1">world</g>!</target>
<alt-trans><source>no</source><target>no</target></alt-trans></trans-unit>
<trans-unit id="2"><source>nur hier</source></trans-unit>"""
XLIFF1 = f"""<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="de-DE" target-language="en" original="x"><body>
{BODY}</body></file></xliff>"""
XLIFF2 = """<xliff version="2.0" srcLang="de" trgLang="en-US" xmlns="urn:x">
<file id="f"><unit id="1">
<segment state="final"><source>Hallo <pc id="1">Welt</pc>!</source>
<target>Hello <pc id="1">world</pc>!</target></segment><ignorable><source> </source></ignorable>
</unit><unit id="2"><segment><source>nur hier</source></segment></unit></file></xliff>"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.xlf", XLIFF1),
        ("a.sdlxliff", XLIFF1.replace(' target-language="en"', "")),
        ("a.xliff", XLIFF1.replace("<", "<x:").replace("<x:/", "</x:")),
        ("a.xliff", XLIFF2),
    ],
)
def test_xliff_gives_the_units_that_are_translated(tmp_path: Path, name: str, content: str) -> None:
    found, damage = read(tmp_path, content, name)
    assert (found, sum(damage.values())) == ([("Hallo Welt!", "Hello world!")], 1)
    assert read(tmp_path, content, name, src="en", tgt="de")[0] == [("Hello world!", "Hallo Welt!")]


def test_the_languages_are_those_of_the_file_that_a_unit_is_in(tmp_path: Path) -> None:
    """Also where a name has a `>`, and of the root where a file has none."""
    unit = "<trans-unit id='1'><source>{}</source><target>{}</target></trans-unit>"
    files = [
        f'<file original="a.html" source-language="en" target-language="de">'
        f"{unit.format('house', 'Haus')}</file>",
        f'<file original="Shop > Cart" source-language="de" target-language="en">'
        f"{unit.format('Katze', 'cat')}</file>",
        f'<file original="c">{unit.format("eins", "one")}</file>',
    ]
    root = '<xliff version="1.2" source-language="de" target-language="en">'
    content = f"{root}{''.join(files)}</xliff>"
    assert read(tmp_path, content, "a.xlf")[0] == [
        ("Haus", "house"), ("Katze", "cat"), ("eins", "one")
    ]  # fmt: skip
