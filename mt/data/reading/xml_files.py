"""Units of translation memories and bilingual files: TMX, and XLIFF 1.2 and 2.

Units are cut out of the text and parsed together; where they are not XML, each by itself, as a
parser loses everything after one bare `<`.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mt.config.data_schema import Source
from mt.data.reading.compression import open_text
from mt.data.reading.text import NoRowsError, Row, RowFiles
from mt.data.reading.text_files import MAX_LINE, Damage, is_damaged, wide_encoding
from mt.errors import DataError

# What opens a unit, a tag that says the languages of the units after it, or what is skipped.
_OPEN = re.compile(
    r"<(!ENTITY|!--|(?:[\w.-]+:)?(?:(?:tu|trans-unit|segment)(?=[\s>])|(?:file|xliff)(?=[\s>])))"
)
_TAG = r"""(?:[^<>"']|"[^"<]*"|'[^'<]*')*>"""  # from a tag's name on: a value may have a `>`
_ENDS = {"!ENTITY": "", "!--": "-->", "file": _TAG, "xliff": _TAG}  # of what is no unit
# The last of several openings in a unit: those before it are not closed.
_NESTED = re.compile(r"<([\w.:-]+)(?=[\s>]).*(?=<\1[\s>])", re.DOTALL)
_SIDES = {"source-language": "source", "srcLang": "source"}
_LANGUAGE = re.compile(r"""(source-language|target-language|srcLang|trgLang)\s*=\s*["']([^"']+)""")
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"  # or `lang`, in early versions of TMX
# The content of these elements is code of the file that was translated.
_CODE = {"bpt", "ept", "it", "ph", "ut"}
_BLOCK = 1 << 18  # characters
ANY = "not said"  # the language of a text that names none


class _Unit(NamedTuple):
    place: str  # for messages
    xml: str
    languages: dict[str, str]  # of source and target, as the tags around it say


@dataclass(frozen=True)
class UnitText(RowFiles):
    """TMX and XLIFF files: their units that have both languages, in bounded memory."""

    def rows_of(self, file: Path) -> Iterator[Row]:
        """The units of a file as rows with the keys `source.src` and `source.tgt`."""
        source, where, damage = self.source, self.where, self.damage
        counts: Counter[tuple[str, ...]] = Counter()  # units by the languages of their texts
        choose = cache(lambda names: [_choose(names, code) for code in (source.src, source.tgt)])
        n_pairs = 0
        without = f"units without text in {source.src} and {source.tgt}, left out"
        for units in _units(file, where, damage):
            elements = _parsed(units, source.errors, where, damage)
            for unit, element in zip(units, elements, strict=True):
                texts = {} if element is None else _texts(element, unit.languages)
                languages = tuple(texts)
                counts[languages] += 1
                src, tgt = choose(languages)
                if src is not None and tgt is not None and src != tgt:
                    n_pairs += 1
                    yield unit.place, {source.src: texts[src], source.tgt: texts[tgt]}
                elif element is not None:  # one text is not its own translation
                    damage.add(without, unit.place)
        if not n_pairs:
            raise NoRowsError(f"{where}.{_no_pairs(file, source, counts)}")


def _no_pairs(path: Path, source: Source, counts: Counter[tuple[str, ...]]) -> str:
    if not counts:
        return (
            f"path: {path} has no units (<tu>, <trans-unit> or <segment>), at least one is "
            "required. Name a TMX or XLIFF file, or set format."
        )
    languages: Counter[str] = Counter()
    for names, count in counts.items():
        languages.update(dict.fromkeys(names, count))
    if not languages:
        return (
            f"path: {path} has no unit with a text: in a <tu> each <tuv> needs a <seg>, another "
            "unit needs <source> and <target>. Correct the file."
        )
    sides = {"src": source.src, "tgt": source.tgt}
    missing = [side for side, name in sides.items() if _choose(languages, name) is None]
    shown = ", ".join(f"{name} ({count:,})" for name, count in languages.most_common())
    return (
        f"{missing[0] if missing else 'path'}: {path} has no unit in {source.src} and "
        f"{source.tgt}; its languages, with their units: {shown}. Set "
        f"{' and '.join(missing or sides)} to one of them; where they are not said add xml:lang to "
        "each <tuv>, or source-language and target-language to <file>."
    )


def _units(path: Path, where: str, damage: Damage) -> Iterator[list[_Unit]]:
    """The units of a file, block by block; bytes that are not UTF-8 are halves of surrogates."""
    with open_text(path, f"{where}.path") as packed:
        start = packed.read(1000)
    said = re.match(rb"""\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)""", start)
    encoding = wide_encoding(start) or (said[1].decode() if said else "utf-8")
    languages: dict[str, str] = {}
    of_root: dict[str, str] = {}
    line, text, unclosed = 1, "", set[str]()  # elements that nothing later closes
    errors = "surrogateescape" if re.match("utf_?-?8", encoding, re.IGNORECASE) else None
    try:
        with (
            open_text(path, f"{where}.path") as packed,
            io.TextIOWrapper(packed, encoding, errors, "\n") as file,
        ):
            # As much again of a unit that has not ended: it is not searched too often.
            is_end = False
            while not is_end:
                size = max(_BLOCK, len(text))
                block = file.read(size)
                is_end = len(block) < size
                text += block
                units: list[_Unit] = []
                end = 0
                while opening := _OPEN.search(text, end):
                    line += text.count("\n", end, opening.start())
                    end = opening.start()
                    tag = opening[1]
                    closing = None if tag in unclosed else _closing(tag).search(text, end)
                    place = f"{path}, line {line:,}"
                    is_long = (closing.end() if closing else len(text)) - end > MAX_LINE
                    later = is_long and not closing and _OPEN.search(text, opening.end())
                    if (is_end and not closing) or later:
                        unclosed |= {tag} if is_end else set()
                        if tag != "!--":
                            damage.add("units that are not closed, left out", place)
                        end = opening.end()
                        continue
                    if is_long:
                        raise DataError(
                            f"{where}.path: {place}: a unit of more than {MAX_LINE:,} characters "
                            "begins here, so it is no sentence. Correct the file."
                        )
                    if closing is None:
                        break
                    item = text[end : closing.end()]
                    if tag == "!ENTITY":
                        raise DataError(
                            f"{where}.path: {place} declares an entity (<!ENTITY), which could "
                            "fill the memory, so the file is refused. Remove the declaration."
                        )
                    if (name := tag.rpartition(":")[2]) in ("file", "xliff"):
                        named = _LANGUAGE.findall(item)
                        sides = {_SIDES.get(key, "target"): code for key, code in named}
                        languages = sides or of_root or languages
                        of_root = languages if name == "xliff" else of_root
                    elif tag != "!--":
                        units.append(_Unit(place, item, languages))
                    line += item.count("\n")
                    end = closing.end()
                yield units
                # Of what is no item, the last characters may begin one.
                cut = end if opening else max(end, len(text) - 100)
                line += text.count("\n", end, cut)
                text = text[cut:]
    except (LookupError, UnicodeError) as error:  # a plain one where a byte-order mark lacks
        raise DataError(
            f"{where}.path: {path} says that its encoding is {encoding}, but cannot be read so "
            f"({error}). Correct the encoding in its first line."
        ) from None


@cache
def _closing(name: str) -> re.Pattern[str]:
    return re.compile(_ENDS.get(name.rpartition(":")[2], rf"</{re.escape(name)}\s*>"))


def _parsed(units: Sequence[_Unit], errors: str, where: str, damage: Damage) -> Iterable[Any]:
    """The elements of units; None, counted, for those that cannot be read."""
    from lxml import etree

    # No entity is replaced, nothing is fetched, and no text may be huge.
    parser = etree.XMLParser(
        recover=True, resolve_entities=False, no_network=True, huge_tree=False, remove_comments=True
    )
    with suppress(UnicodeEncodeError):
        element = etree.fromstring(f"<r>{''.join(unit.xml for unit in units)}</r>".encode(), parser)
        if not _faults(parser) and len(element) == len(units):
            return element
    return (_parsed_alone(unit, parser, errors, where, damage) for unit in units)


def _parsed_alone(unit: _Unit, parser: Any, errors: str, where: str, damage: Damage) -> Any | None:
    from lxml import etree

    place, xml, _ = unit
    if nested := _NESTED.match(xml):
        for _ in re.finditer(rf"<{re.escape(nested[1])}(?=[\s>])", nested[0]):
            damage.add("units that are not closed, left out", place)
        xml = xml[nested.end() :]
    if is_damaged(xml):
        if errors == "strict":
            raise DataError(
                f"{where}.path: {place}: the unit that begins there has bytes that are not UTF-8. "
                "Correct the encoding in the first line, or set errors to replace or skip."
            )
        if errors == "skip":
            damage.add("units that are not UTF-8, left out", place)
            return None
        damage.add("units that are not UTF-8, read with U+FFFD", place)
        xml = xml.encode(errors="surrogateescape").decode(errors="replace")
    element = etree.fromstring(xml.encode(), parser)
    if faults := _faults(parser):
        damage.add("units that are not XML, left out", f"{place} ({faults[0]})")
        return None
    return element


def _faults(parser: Any) -> list[str]:
    """Messages of the parser; prefixes are declared outside of the unit."""
    return [entry.message for entry in parser.error_log if entry.level_name == "FATAL"]


def _texts(unit: Any, of_file: dict[str, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for child in unit:
        match _name(child.tag):
            case "tuv":
                language = child.get(_LANG) or child.get("lang") or ANY
                segment = next((part for part in child if _name(part.tag) == "seg"), None)
            case "source" | "target" as side:
                language, segment = of_file.get(side, ANY), child
            case _:
                continue
        if segment is not None:
            texts.setdefault(language, _text(segment))  # the first of each language
    return texts


def _text(element: Any) -> str:
    """The text of an element; inline tags are left out with the code in them."""
    text: str = element.text or ""
    for child in element:
        # The tag of a processing instruction is a function.
        is_code = not isinstance(child.tag, str) or _name(child.tag) in _CODE
        text += ("" if is_code else _text(child)) + (child.tail or "")
    return text


@cache
def _name(tag: object) -> str:
    return str(tag).rpartition("}")[2].rpartition(":")[2]


def _choose(languages: Iterable[str], wanted: str) -> str | None:
    """The language wanted, else the first of which either code opens the other, else `ANY`.

    `de` takes de-DE and DE_at, and de-AT takes de.
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
