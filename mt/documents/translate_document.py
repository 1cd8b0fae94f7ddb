"""`mt translate` of a document, and of lines with protected texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from mt.config.plan import Direction
from mt.data.reading.languages import base_code
from mt.documents.document import Document, DocumentText, Protect, merged
from mt.documents.inline_tags import MarkupToken, TaggedText, has_words
from mt.documents.markup import ATTRIBUTE, html_tokens, srt_tokens
from mt.documents.protect import Protection
from mt.documents.xliff import XliffReader, with_attribute
from mt.errors import ConfigError, DataError
from mt.runs.model_folder import open_model
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import Progress, can_show_bar, say
from mt.translate.lines import LineNumbers
from mt.translate.load import load_translator, opened
from mt.translate.streaming import TextFiles, open_output, refuse_overwrite
from mt.translate.translate_file import DOCUMENTS, LineFormat, translate_file

# What an XML or HTML file says of its encoding, outside of comments.
ENCODING = re.compile(
    r"""<!--(?:-?>|.*?(?:--!?>|\Z))"""
    r"""|<(?:\?xml|meta)\s[^<>]*?(?:encoding|charset)\s*=\s*["']?([\w.:-]+)""",
    re.IGNORECASE | re.DOTALL,
)


def translate_protected(
    files: TextFiles, line_format: LineFormat, search: SearchOptions, engine: EngineOptions,
    protect: Sequence[str] = (),
) -> None:  # fmt: skip
    """Translate a document, or lines of text with parts that stay; print a summary."""
    is_document = line_format.name in DOCUMENTS
    given = {"--alignments": search.alignments, "--prefix": files.prefix}
    given |= {"--resume": files.resume and is_document}
    if named := " and ".join(option for option, value in given.items() if value):
        why = "not with --protect or --glossary, which need the alignments; leave out one of them"
        if is_document:
            why = f"not with --format {line_format.name}, which is no list of lines"
        raise ConfigError(f"{named}: {why}")
    engine = opened(engine)
    model = open_model(engine.models[0])
    way = model.data.direction(search.from_, search.to)
    writing = model.styles.between(*way) if model.styles and way else None
    names = writing.src.names if writing else None
    protection = Protection(protect, files.glossary, model.data.tags, names)
    if protection:
        why = "--glossary: has terms" if files.glossary else "--protect: keeps texts"
        search = _aligning(search, engine, why)
    translate = translate_document if is_document else translate_file
    say(translate(files, line_format, search, engine, protection) + protection.summary())


def translate_document(
    files: TextFiles, line_format: LineFormat, search: SearchOptions, engine: EngineOptions,
    protection: Protection,
) -> str:  # fmt: skip
    """Translate the texts of a document, and write the document with them; return a summary."""
    inputs = {"the input": files.source, "--glossary": files.glossary}
    inputs |= {"--shortlist": engine.shortlist}
    refuse_overwrite(files.output, inputs.items(), engine.folders)
    document = read_document(line_format.name, files.read_whole(), files.name, protection.keep)
    _check_languages(document, files.name, search, engine)
    texts = document.texts
    if any(text.tagged.needs_alignment for text in texts) and not search.alignments:
        search = _aligning(search, engine, f"{files.name}: has tags inside sentences")
    with open_output(files.output) as file:
        progress = Progress(len(texts), 0, can_show_bar(files.output))
        translator = load_translator(
            search, engine, files.is_large,
            on_progress=progress.update, number_of=lambda number: texts[number - 1].line,
        )  # fmt: skip
        with translator, progress:
            translations = list(translator.translate([text.tagged.text for text in texts]))
        text, lost = document.render(translations)
        file.write(text.encode())
    protection.count_lost(token for _, token in lost if token.kind == "kept")
    n_lost = LineNumbers()
    for line in (line for line, token in lost if token.kind != "kept"):
        n_lost.add(line)
    notes = [f"tags without a place, at the end: {n_lost.count:,} ({n_lost})"] * bool(n_lost.count)
    notes += [f"{document.n_done:,} with a translation already, kept"] * bool(document.n_done)
    return translator.summary("text", notes)


def _check_languages(
    document: Document, name: str, search: SearchOptions, engine: EngineOptions
) -> None:
    """Raise DataError if a document is in other languages than the model; name the target's."""
    data = open_model(engine.models[0]).data
    way = data.direction(search.from_, search.to)
    ways = [way] if way else [way for way in data.directions if search.to in (None, way.tgt)]
    sides = zip(*ways or [Direction("", search.to or "")], strict=True)
    src, tgt = (sorted({*side} - {"src", "tgt", ""}) for side in sides)  # as far as it knows them
    if document.unnamed and document.texts:
        if len(tgt) != 1:
            raise DataError(
                f"{name}: XLIFF 2 requires the language of its targets, which the model does not "
                'know; add it to <xliff>, such as trgLang="en"'
            )
        code = tgt[0].replace("_", "-")
        document.unnamed.raw = with_attribute(document.unnamed.raw, "trgLang", code)
    for side, code, line in document.languages:
        wanted = src if side == "source" else tgt
        if wanted and code and base_code(code) not in map(base_code, wanted):
            options, must = "--from" if side == "source" else "--to", " or ".join(wanted)
            raise DataError(
                f"{name}, line {line:,}: its {side} language must be {must}, as the model's is, "
                f"found {code!r}; give a model for it, or {options} {base_code(code)} if it knows "
                "several languages, or correct the attribute"
            )


def _aligning(search: SearchOptions, engine: EngineOptions, what: str) -> SearchOptions:
    if len(engine.models) > 1:
        raise ConfigError(
            f"{what}; places are found by the attention of a single model: give only one --model"
        )
    say(f"{what}; places are found by --alignments")
    return replace(search, alignments=True)


# --- the content of a document → its texts ------------------------------------------------------


def read_document(form: str, content: str, name: str, protect: Protect = list) -> Document:
    """Find the texts of a document. Raises DataError, which begins with `name`."""
    said = (match for match in ENCODING.finditer(content, 0, 1024) if match[1])
    declared = next(said, None) if form != "srt" else None
    if declared and declared[1].lower().endswith("ascii"):  # the translation may have other letters
        content = f"{content[: declared.start(1)]}utf-8{content[declared.end(1) :]}"
    elif declared and declared[1].lower() not in ("utf-8", "utf8"):
        raise DataError(
            f"{name}: says that it is {declared[1]}, but must be UTF-8; convert it and what it says"
        )
    if form == "xliff":
        return XliffReader(content, name, protect).document
    tokens = merged((srt_tokens if form == "srt" else html_tokens)(content, name))
    document, line, first = Document(tokens), 1, 0
    for is_break, group in groupby(tokens, lambda token: token.kind == "break"):
        run = list(group)
        raw = "".join(token.raw for token in run)
        if form == "html":
            document.texts += _attributes(run, first, line, protect)
        if not is_break and has_words(run):
            start = line + raw[: len(raw) - len(raw.lstrip())].count("\n")
            tagged = TaggedText(protect(run), form == "html")
            document.texts.append(DocumentText(tagged, first, first + len(run), start))
        line += raw.count("\n")
        first += len(run)
    return document


def _attributes(
    tokens: Sequence[MarkupToken], first: int, line: int, protect: Protect
) -> Iterator[DocumentText]:
    """The attributes of tags that are translated."""
    for number, token in enumerate(tokens, first):
        if token.attributes.keys() & {"alt", "title"}:
            for place, match in enumerate(ATTRIBUTE.finditer(token.raw)):
                text = MarkupToken("text", match[2][1:-1] if match[2][0] in "\"'" else match[2])
                if match[1].lower() in ("alt", "title") and has_words([text]):
                    tagged = TaggedText(protect([text]))
                    yield DocumentText(tagged, number, number + 1, line, attribute=place)
        line += token.raw.count("\n")
