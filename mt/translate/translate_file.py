"""The whole of `mt translate`: its options in, an output file and a summary out."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import suppress
from pathlib import Path

from mt.data.reading.text_files import count_lines
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.runs.model_folder import find_model
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import say
from mt.translate.documents import read_document
from mt.translate.formats import DOCUMENTS, LineFormat
from mt.translate.inline_tags import Rendered
from mt.translate.load import load_translator
from mt.translate.progress import LineNumbers, Progress, can_show_bar
from mt.translate.protect import Protection
from mt.translate.resume import ResumableOutput
from mt.translate.streaming import TextFiles, open_output, read_file, refuse_overwrite, write_lines


def translate_file(
    files: TextFiles,
    line_format: LineFormat,
    search: SearchOptions,
    engine: EngineOptions,
    protection: Protection,
) -> None:
    """Translate a file into another and print a summary.

    Files and formats are checked before a model is loaded. Raises MtError for what the user must
    correct.
    """
    prefix = files.prefixes
    inputs = {"the input": files.source, "--prefix": prefix, "--shortlist": engine.shortlist}
    inputs |= protection.inputs
    reverse = [] if search.rerank_with is None else [search.rerank_with]
    for model in reverse:
        find_model(model, "--rerank-with")
    refuse_overwrite(files.output, inputs.items(), [*engine.models, *reverse])
    if line_format.name in DOCUMENTS:
        _translate_document(files, line_format.name, search, engine, protection)
        return
    if files.resume and files.output == "-":
        raise ConfigError("--resume: continues an output file; name it with -o")
    search = _protecting(protection, files, search, engine)
    lines = files.read()
    prefixes = None if prefix is None else read_file(prefix, "--prefix")
    output = ResumableOutput(files.resume)
    output.settings["--prefix"] = (
        sha256_of(prefix) if prefix is not None and prefix.is_file() else str(prefix)
    )
    with open_output(files.output, output.open) as file:
        translator = load_translator(search, engine, files.is_large)
        progress = Progress(number_of_lines(files.source), output.lines, can_show_bar(files.output))
        with translator, progress:
            translator.on_progress = progress.update
            settings = translator.settings | protection.settings | line_format.settings
            lines = output.remaining(lines, settings)
            if prefixes is not None:
                prefixes = itertools.islice(prefixes, output.lines, None)
            translator.tally.before = output.lines

            def text_of(line: str, number: int) -> str:
                return protection.hide(line_format.extract(line, f"{files.name}, line {number:,}"))

            stream = translator.translate_stream(lines, text_of, prefixes, files.wait)
            for window, translations in stream:
                numbers = range(output.lines + 1, output.lines + 1 + len(window))
                shown = map(protection.show, translations, numbers)
                rows = zip(window, shown, numbers, strict=True)
                rendered = itertools.starmap(line_format.render, rows)
                write_lines(file, itertools.chain.from_iterable(rendered))
                output.finished(file, window)
    if protection.lines.count:
        translator.tally.flagged["misplaced"] = protection.lines
    translator.tally.blank -= protection.n_kept_whole
    say(translator.tally.summary() + protection.summary())


def _translate_document(
    files: TextFiles,
    form: str,
    search: SearchOptions,
    engine: EngineOptions,
    protection: Protection,
) -> None:
    """Translate the texts of a document, and write the document with them."""
    given = {
        "--alignments": search.alignments,
        "--prefix": files.prefixes,
        "--resume": files.resume,
    }
    if named := " and ".join(option for option, value in given.items() if value):
        raise ConfigError(f"{named}: not with --format {form}, which is no list of lines")
    search = _protecting(protection, files, search, engine)
    content = files.read_whole()
    document = read_document(form, content, files.name, protection.keep)
    if document.needs_alignment and search.alignments is None:
        what = f"{files.name}: has tags inside sentences"
        search = _aligning(protection, search, engine, what)
        document = read_document(form, content, files.name, protection.keep)
    with open_output(files.output) as file:
        translator = load_translator(search, engine, files.is_large)
        tally = translator.tally
        tally.noun = "text"
        progress = Progress(len(document.texts), 0, can_show_bar(files.output))
        with translator, progress:
            translator.on_progress = progress.update
            texts = [one.tagged.to_translate for one in document.texts]
            translations = list(translator.translate(texts))
        n_lost = LineNumbers()

        def count(line: int, rendered: Rendered) -> None:
            protection.count_lost([token for token in rendered.lost if token.kind == "kept"])
            for _ in rendered.lost:
                n_lost.add(line)

        file.write(document.render(translations, count).encode())
    if n_lost.count:
        tally.notes.append(f"{n_lost.count:,} tags without a place, put at the end: {n_lost}")
    if document.n_done:
        tally.notes.append(f"{document.n_done:,} with a translation already, kept")
    for numbers in (tally.split, *tally.flagged.values()):  # of texts so far
        numbers.first = [document.texts[number - 1].line for number in numbers.first]
    say(tally.summary() + protection.summary())


def _protecting(
    protection: Protection, files: TextFiles, search: SearchOptions, engine: EngineOptions
) -> SearchOptions:
    """Return the search that a protection needs. ConfigError for options it cannot go with."""
    given = {"--alignments": search.alignments, "--prefix": files.prefixes}
    if protection and (named := " and ".join(name for name, value in given.items() if value)):
        raise ConfigError(
            f"{named}: not with --protect or --glossary, as the model sees placeholders for some "
            "words; leave out one of them"
        )
    reason = protection.why_aligned(engine.models[0]) if protection else ""
    return _aligning(protection, search, engine, reason) if reason else search


def _aligning(
    protection: Protection, search: SearchOptions, engine: EngineOptions, what: str
) -> SearchOptions:
    if len(engine.models) > 1:
        raise ConfigError(
            f"{what}; places are found by the attention of a single model: give only one --model"
        )
    say(f"{what}; places are found by --alignments")
    if not search.as_written:
        protection.take_emoji()
    return dataclasses.replace(search, alignments="auto")


def number_of_lines(source: str) -> int | None:
    """The lines of a regular file; None of a stream, and of a file that cannot be read."""
    if source != "-" and Path(source).is_file():
        with suppress(DataError):  # reported when it is translated
            return count_lines(Path(source), "")
    return None
