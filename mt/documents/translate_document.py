"""`mt translate` of a document, and of lines with protected texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mt.config.plan import Direction
from mt.data.reading.language_codes import base_code
from mt.documents.document import Document
from mt.documents.inline_tags import Rendered
from mt.documents.protect import Protection
from mt.documents.read_document import read_document
from mt.errors import ConfigError, DataError
from mt.runs.model_folder import open_model
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import Progress, can_show_bar, say
from mt.translate.formats import DOCUMENTS, LineFormat
from mt.translate.load import load_translator, opened
from mt.translate.progress import LineNumbers
from mt.translate.streaming import TextFiles, open_output, refuse_overwrite
from mt.translate.translate_file import translate_file


def translate_protected(
    files: TextFiles,
    line_format: LineFormat,
    search: SearchOptions,
    engine: EngineOptions,
    protect: Sequence[str] = (),
    glossary: Path | None = None,
) -> None:
    """Translate a document, or lines of text with parts that stay; print a summary.

    `protect`, `glossary`: see `Protection`. Raises MtError for what the user must correct.
    """
    protection = Protection(protect, glossary)
    inputs = {"the input": files.source, "--glossary": glossary, "--shortlist": engine.shortlist}
    refuse_overwrite(files.output, inputs.items(), engine.folders)
    if line_format.name in DOCUMENTS:
        translate_document(files, line_format.name, search, engine, protection)
        return
    engine = opened(engine)
    search = protecting(protection, files, search, engine)
    summary = translate_file(files, line_format, search, engine, protection)
    say(summary + protection.summary())


def translate_document(
    files: TextFiles,
    form: str,
    search: SearchOptions,
    engine: EngineOptions,
    protection: Protection,
) -> None:
    """Translate the texts of a document, and write the document with them.

    Raises MtError for what the user must correct.
    """
    given = {"--alignments": search.alignments, "--prefix": files.prefix, "--resume": files.resume}
    if named := " and ".join(option for option, value in given.items() if value):
        raise ConfigError(f"{named}: not with --format {form}, which is no list of lines")
    content = files.read_whole()
    engine = opened(engine)
    search = protecting(protection, files, search, engine)
    document = read_document(form, content, files.name, protection.keep)
    _check_languages(document, files.name, search, engine)
    if document.needs_alignment and search.alignments is None:
        what = f"{files.name}: has tags inside sentences"
        search = _aligning(search, engine, what)
    texts = document.texts
    with open_output(files.output) as file:
        progress = Progress(len(texts), 0, can_show_bar(files.output))
        translator = load_translator(
            search,
            engine,
            files.is_large,
            on_progress=progress.update,
            number_of=lambda number: texts[number - 1].line,
        )
        with translator, progress:
            translations = list(translator.translate([text.tagged.to_translate for text in texts]))
        n_lost = LineNumbers()

        def count(line: int, rendered: Rendered) -> None:
            protection.count_lost([token for token in rendered.lost if token.kind == "kept"])
            for _ in rendered.lost:
                n_lost.add(line)

        file.write(document.render(translations, count).encode())
    notes = []
    if n_lost.count:
        notes.append(f"{n_lost.count:,} tags without a place, put at the end: {n_lost}")
    if document.n_done:
        notes.append(f"{document.n_done:,} with a translation already, kept")
    say(translator.summary("text", notes) + protection.summary())


def _check_languages(
    document: Document, name: str, search: SearchOptions, engine: EngineOptions
) -> None:
    """Raise DataError if a document is in other languages than the model translates."""
    if not document.languages:
        return
    data = open_model(engine.models[0]).data
    direction = data.direction(search.from_, search.to) or Direction("", search.to or "")
    if direction == ("src", "tgt"):  # of a model that does not know its languages
        return
    for side, code, line in document.languages:
        wanted = direction.src if side == "source" else direction.tgt
        if wanted and code and base_code(code) != base_code(wanted):
            options = "--from" if side == "source" else "--to"
            raise DataError(
                f"{name}, line {line:,}: its {side} language must be {wanted}, as the model's is, "
                f"found {code!r}; give a model for it, or {options} {base_code(code)} if it knows "
                "several languages, or correct the attribute"
            )


def protecting(
    protection: Protection, files: TextFiles, search: SearchOptions, engine: EngineOptions
) -> SearchOptions:
    """Return the search that a protection needs. ConfigError for options it cannot go with."""
    given = {"--alignments": search.alignments, "--prefix": files.prefix}
    if protection and (named := " and ".join(name for name, value in given.items() if value)):
        raise ConfigError(
            f"{named}: not with --protect or --glossary, which need the alignments themselves; "
            "leave out one of them"
        )
    reason = protection.why_aligned(open_model(engine.models[0])) if protection else ""
    return _aligning(search, engine, reason) if reason else search


def _aligning(search: SearchOptions, engine: EngineOptions, what: str) -> SearchOptions:
    if len(engine.models) > 1:
        raise ConfigError(
            f"{what}; places are found by the attention of a single model: give only one --model"
        )
    say(f"{what}; places are found by --alignments")
    return replace(search, alignments="auto")
