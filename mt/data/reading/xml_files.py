"""Units of translation memories and bilingual files: TMX, and XLIFF 1.2 and 2.

Each unit is cut out of the text and parsed by itself. A parser of the whole file loses everything
after one bare `<`, and nests all units after one that is not closed.
"""

from __future__ import annotations

import codecs
import html
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import assert_never

from mt.data.reading.compression import open_text
from mt.data.reading.text_files import MAX_LINE, Damage
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import Source
    from mt.data.reading.columns import Row

# A whole unit, or the tag that says the languages of those after it, or what is refused.
_ITEM = re.compile(
    r"<(?P<name>(?:[\w.-]+:)?(?:tu|trans-unit|segment))(?=[\s>])(?P<unit>.*?)</(?P=name)\s*>"
    r"|<(?:[\w.-]+:)?(?:file|xliff)\s(?P<languages>[^>]*)>|(?P<entity><!ENTITY)"
    r"|<!--.*?-->",
    re.DOTALL,
)
_OPEN = re.compile(r"<(?:(?:[\w.-]+:)?(?:tu|trans-unit|segment|file|xliff)(?=[\s>])|!--)")
_LANGUAGE = re.compile(r"""(source-language|target-language|srcLang|trgLang)\s*=\s*["']([^"']+)""")
_SIDES = {"source-language": "source", "srcLang": "source"}
# Attributes that say the language of a text, in TMX of all versions.
_LANG = {"lang", "{http://www.w3.org/XML/1998/namespace}lang"}
# The content of these elements is code of the file that was translated.
_CODE = {"bpt", "ept", "it", "ph", "ut"}
# An ampersand that begins no entity of XML, a `<` that begins no tag, and characters not in XML.
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_STRAY = re.compile(
    rf"&(?!(?:amp|lt|gt|quot|apos);)(?:#?\w+;)?|<(?![^\W\d]|[/!?])|{_FORBIDDEN.pattern}"
)
_BLOCK = 1 << 18
# The first bytes of an XML file that say its encoding.
_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
}
ANY = "not said"  # the language of a text that names none


def read_units(path: Path, source: Source, where: str, damage: Damage) -> Iterator[Row]:
    """The units of a TMX or XLIFF file that have both languages, in bounded memory.

    A row has the keys `source.src` and `source.tgt`. `damage` gets the units that are not XML: they
    are mended where only single signs are wrong, else left out. Raises `DataError` where a language
    is nowhere in the file, and for a file that declares entities.
    """
    from lxml import etree

    # No entity is replaced, nothing is fetched, and no text may be huge.
    parser = etree.XMLParser(
        recover=True, resolve_entities=False, no_network=True, huge_tree=False, remove_comments=True
    )
    match source.tags:
        case "keep" | "strip":
            keep = source.tags == "keep"
        case _:
            assert_never(source.tags)
    languages: Counter[str] = Counter()
    n_units = n_pairs = 0
    for place, unit, of_file in _units(path, where, damage):
        n_units += 1
        element = _parsed(unit, parser, place, source.errors, where, damage)
        if element is None:
            continue
        texts = _texts(element, of_file, keep)
        languages.update(texts.keys())
        src, tgt = (_choose(texts, wanted) for wanted in (source.src, source.tgt))
        if src is None or tgt is None or src == tgt:  # one text is not its own translation
            damage.add(f"units without text in {source.src} and {source.tgt}, left out", place)
            continue
        n_pairs += 1
        yield place, {source.src: texts[src], source.tgt: texts[tgt]}
    if not n_pairs:
        raise DataError(_no_pairs(path, source, where, n_units, languages))


def _no_pairs(path: Path, source: Source, where: str, n_units: int, languages: Counter[str]) -> str:
    if not n_units:
        return (
            f"{where}.path: {path} has no units (<tu>, <trans-unit> or <segment>), at least one is "
            "required. Name a TMX or XLIFF file, or set format."
        )
    if languages.keys() == {ANY}:
        return (
            f"{where}.path: {path} does not say the languages of its texts, which are required to "
            "tell source from target. Add them: xml:lang in each <tuv>, or source-language and "
            "target-language in <file>."
        )
    missing = [
        side
        for side, wanted in (("src", source.src), ("tgt", source.tgt))
        if _choose(languages, wanted) is None
    ]
    shown = ", ".join(f"{name} ({count:,})" for name, count in languages.most_common())
    return (
        f"{where}.{missing[0] if missing else 'path'}: {path} has no unit in {source.src} and "
        f"{source.tgt}; its languages, with their units: {shown or 'none'}. Set "
        f"{' and '.join(missing or ['src', 'tgt'])} to one of them."
    )


# --- the text of a file -> units ----------------------------------------------------------------


def _units(path: Path, where: str, damage: Damage) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(place, XML, languages of source and target in the file's tags) of each unit."""
    languages: dict[str, str] = {}
    line = 1
    rest = ""
    with open_text(path, f"{where}.path") as file:
        for block in _decoded(file, path, where):
            text = rest + block
            end = 0
            for item in _ITEM.finditer(text):
                line += text.count("\n", end, item.start())
                place = f"{path}, line {line:,}"
                if item["entity"]:
                    raise DataError(
                        f"{where}.path: {place} declares an entity (<!ENTITY), which could fill "
                        "the memory, so the file is refused. Remove the declaration."
                    )
                if item["languages"]:
                    found = _LANGUAGE.findall(item["languages"])
                    if found:
                        languages = {_SIDES.get(key, "target"): name for key, name in found}
                elif item["name"]:
                    unit = item.group()
                    unit_start = max(
                        unit.rfind(f"<{item['name']}{after}", 1) for after in "> \n\r\t"
                    )
                    if unit_start > 0:
                        damage.add("units that are not closed, left out", place)
                        unit = unit[unit_start:]
                    yield place, unit, languages
                line += text.count("\n", item.start(), item.end())
                end = item.end()
            opening = _OPEN.search(text, end)
            # Of what is no unit only so much is kept as could begin one.
            cut = opening.start() if opening else max(end, len(text) - 100)
            line += text.count("\n", end, cut)
            rest = text[cut:]
            if len(rest) > MAX_LINE:
                raise DataError(
                    f"{where}.path: {path}, line {line:,}: a unit of more than {MAX_LINE:,} "
                    "characters begins here, so it is no sentence. Correct the file."
                )
    if _OPEN.match(rest):
        damage.add("units that are not closed, left out", f"{path}, line {line:,}")


def _decoded(file: Any, path: Path, where: str) -> Iterator[str]:
    """The text of an XML file in blocks; bytes that are not UTF-8 are halves of surrogate pairs."""
    start = file.read(_BLOCK)
    encoding = _encoding(start)
    try:
        "".encode(encoding)  # raises for codecs that are no text, such as base64
        is_utf8 = codecs.lookup(encoding).name.startswith("utf-8")
        decoder = codecs.getincrementaldecoder(encoding)("surrogateescape" if is_utf8 else "strict")
        while start:
            yield decoder.decode(start)
            start = file.read(_BLOCK)
        yield decoder.decode(b"", final=True)
    except (LookupError, UnicodeDecodeError) as error:
        raise DataError(
            f"{where}.path: {path} says that its encoding is {encoding}, but cannot be read so "
            f"({error}). Correct the encoding in its first line."
        ) from None


def _encoding(start: bytes) -> str:
    """The encoding that the first bytes of an XML file say."""
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            return name
    said = re.match(rb"""\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)""", start)
    return said[1].decode() if said else "utf-8"


# --- a unit -> its texts ------------------------------------------------------------------------


def _parsed(
    unit: str, parser: Any, place: str, errors: str, where: str, damage: Damage
) -> Any | None:
    """The element of a unit; None, counted, for one that cannot be read."""
    from lxml import etree

    try:
        content = unit.encode()
    except UnicodeEncodeError:
        if errors == "strict":
            raise DataError(
                f"{where}.path: {place}: the unit that begins there has bytes that are not UTF-8. "
                "Correct the encoding in the first line, or set errors to replace or skip."
            ) from None
        if errors == "skip":
            damage.add("units that are not UTF-8, left out", place)
            return None
        damage.add("units that are not UTF-8, read with U+FFFD", place)
        content = unit.encode(errors="surrogateescape").decode(errors="replace").encode()
    element = etree.fromstring(content, parser)
    if not (faults := _faults(parser)):
        return element
    element = etree.fromstring(_STRAY.sub(_mended, content.decode()).encode(), parser)
    if _faults(parser):
        damage.add("units that are not XML, left out", f"{place} ({faults[0]})")
        return None
    damage.add("units with signs that XML forbids, mended", place)
    return element


def _faults(parser: Any) -> list[str]:
    """What made a unit no XML; prefixes are declared outside of the unit."""
    return [entry.message for entry in parser.error_log if entry.level_name == "FATAL"]


def _mended(stray: re.Match[str]) -> str:
    """What XML allows in place of a sign that it forbids there."""
    text = stray.group()
    meant = html.unescape(text)
    return "" if _FORBIDDEN.search(meant) else html.escape(meant, quote=False)


def _texts(unit: Any, of_file: dict[str, str], keep: bool) -> dict[str, str]:
    """The texts of a unit by language; the first of each."""
    texts: dict[str, str] = {}
    for child in unit:
        match _name(child):
            case "tuv":
                names = (v for k, v in child.attrib.items() if k in _LANG)
                language = next(names, ANY)
                segment = next((one for one in child if _name(one) == "seg"), None)
            case "source" | "target" as side:
                language, segment = of_file.get(side, ANY), child
            case _:
                continue
        if segment is not None:
            texts.setdefault(language, _text(segment, keep))
    return texts


def _text(element: Any, keep: bool) -> str:
    """The text of an element; inline tags are left out with the code in them, or kept as XML."""
    from lxml import etree

    parts = [element.text or ""]
    for child in element:
        if keep:
            parts.append(etree.tostring(child, encoding="unicode", with_tail=False))
        elif _name(child) not in _CODE:
            parts.append(_text(child, keep))
        parts.append(child.tail or "")
    return "".join(parts)


def _name(element: Any) -> str:
    """The name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2].rpartition(":")[2]


def _choose(languages: Collection[str], wanted: str) -> str | None:
    """The language wanted: the very one, else the first of which either code opens the other.

    `de` takes de-DE and DE_at, and de-AT takes de. A text whose language is not said fits where
    none else does.
    """
    wanted = wanted.lower().replace("_", "-")
    fitting = None
    for language in languages:
        code = language.lower().replace("_", "-")
        if code == wanted:
            return language
        if code.startswith(f"{wanted}-") or wanted.startswith(f"{code}-"):
            fitting = fitting or language
    return fitting or (ANY if ANY in languages else None)
