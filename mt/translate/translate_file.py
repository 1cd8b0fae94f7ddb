"""The whole of `mt translate`: its options in, an output file and a summary out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mt.data.reading.text_files import count_lines
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.search.options import EngineOptions, SearchOptions
from mt.translate.formats import LineFormat
from mt.translate.load import load_translator
from mt.translate.progress import Progress, can_show_bar
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


def number_of_lines(source: str) -> int | None:
    """The lines of a regular file; None of a stream, and of a file that cannot be read."""
    if source != "-" and Path(source).is_file():
        with suppress(DataError):  # reported when it is translated
            return count_lines(Path(source), "")
    return None
