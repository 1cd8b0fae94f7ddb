"""The whole of `mt translate`: its options in, an output file and a summary out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mt.data.reading.text_files import count_lines
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.search.options import EngineOptions, SearchOptions
from mt.translate.documents import read_document
from mt.translate.formats import DOCUMENTS, LineFormat
from mt.translate.inline_tags import Rendered
from mt.translate.load import load_translator
from mt.translate.progress import LineNumbers, Progress, can_show_bar
from mt.translate.resume import ResumableOutput
from mt.translate.streaming import (
    TextFiles,
    open_output,
    read_file,
    refuse_overwrite,
    write_lines,
)


def translate_file(
    files: TextFiles,
    line_format: LineFormat,
    search: SearchOptions,
    engine: EngineOptions,
    say: Callable[[str], None],
) -> None:
    """Translate a file into another and `say` a summary.

    Files and formats are checked before a model is loaded. Raises MtError for what the user must
    correct.
    """
    if line_format.name in DOCUMENTS:
        translate_document(files, line_format.name, search, engine, say)
        return
    if files.resume and files.output == "-":
        raise ConfigError("--resume: continues an output file; name it with -o")
    prefix = files.prefixes
    inputs = {"the input": files.source, "--prefix": prefix, "--shortlist": engine.shortlist}
    reverse = [] if search.rerank_with is None else [search.rerank_with]
    refuse_overwrite(files.output, inputs, [*engine.models, *reverse])
    lines = files.read(say)
    prefixes = None if prefix is None else read_file(prefix, "--prefix")
    output = ResumableOutput(files.resume)
    output.settings["--prefix"] = (
        sha256_of(prefix) if prefix is not None and prefix.is_file() else str(prefix)
    )
    with open_output(files.output, output.open) as file:
        translator = load_translator(search, engine, say, files.is_large)
        progress = Progress(
            number_of_lines(files.source), output.lines, say, can_show_bar(files.output)
        )
        with translator, progress:
            translator.on_progress = progress.update
            settings = translator.settings | line_format.settings
            lines = output.remaining(lines, settings)
            if prefixes is not None:
                prefixes = itertools.islice(prefixes, output.lines, None)
            translator.tally.before = output.lines

            def text_of(line: str, number: int) -> str:
                return line_format.extract(line, f"{files.name}, line {number:,}")

            stream = translator.translate_stream(lines, text_of, prefixes, files.wait)
            for window, translations in stream:
                rows = zip(window, translations, itertools.count(output.lines + 1), strict=False)
                rendered = itertools.starmap(line_format.render, rows)
                write_lines(file, itertools.chain.from_iterable(rendered))
                output.finished(file, window)
    say(translator.tally.summary())


def translate_document(
    files: TextFiles,
    form: str,
    search: SearchOptions,
    engine: EngineOptions,
    say: Callable[[str], None],
) -> None:
    """Translate the texts of a document, and write the document with them; otherwise the same."""
    given = {
        "--alignments": search.alignments,
        "--prefix": files.prefixes,
        "--resume": files.resume,
    }
    if named := " and ".join(option for option, value in given.items() if value):
        raise ConfigError(f"{named}: not with --format {form}, which is no list of lines")
    inputs = {"the input": files.source, "--shortlist": engine.shortlist}
    reverse = [] if search.rerank_with is None else [search.rerank_with]
    refuse_overwrite(files.output, inputs, [*engine.models, *reverse])
    document = read_document(form, files.read_whole(), files.name)
    if document.needs_alignment:
        if len(engine.models) > 1:
            raise ConfigError(
                f"{files.name}: has tags inside sentences, whose places the attention of a single "
                "model finds; give only one --model"
            )
        say("tags inside sentences are placed by --alignments")
        search = dataclasses.replace(search, alignments="auto")
    with open_output(files.output) as file:
        translator = load_translator(search, engine, say, files.is_large)
        tally = translator.tally
        tally.noun = "text"
        progress = Progress(len(document.texts), 0, say, can_show_bar(files.output))
        with translator, progress:
            translator.on_progress = progress.update
            translations = list(translator.translate([one.tagged.text for one in document.texts]))
        n_lost = LineNumbers()

        def count(line: int, rendered: Rendered) -> None:
            for _ in range(rendered.n_lost):
                n_lost.add(line)

        file.write(document.render(translations, count).encode())
    if n_lost.count:
        tally.notes.append(f"{n_lost.count:,} tags without a place, put at the end: {n_lost}")
    if document.n_done:
        tally.notes.append(f"{document.n_done:,} with a translation already, kept")
    for numbers in (tally.split, *tally.flagged.values()):  # of texts so far
        numbers.first = [document.texts[number - 1].line for number in numbers.first]
    say(tally.summary())


def number_of_lines(source: str) -> int | None:
    """The lines of a regular file; None of a stream, and of a file that cannot be read."""
    if source != "-" and Path(source).is_file():
        with suppress(DataError):  # reported when it is translated
            return count_lines(Path(source), "")
    return None
