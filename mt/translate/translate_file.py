"""The whole of `mt translate`: its options in, an output file and a summary out."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

from mt.data.reading.text_files import count_lines
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import Progress, can_show_bar
from mt.translate.formats import LineFormat
from mt.translate.lines import Step
from mt.translate.load import load_translator
from mt.translate.resume import ResumableOutput
from mt.translate.segments import prefix_mismatch
from mt.translate.streaming import TextFiles, open_output, read_file, refuse_overwrite, write_lines


def translate_file(
    files: TextFiles,
    line_format: LineFormat,
    search: SearchOptions,
    engine: EngineOptions,
    protection: Step | None = None,
) -> str:
    """Translate the lines of a file into another; return a summary.

    `protection`: a further step. Files and formats are checked before a model is loaded. Raises
    MtError for what the user must correct.
    """
    prefix = files.prefix
    inputs = {"the input": files.source, "--prefix": prefix, "--glossary": files.glossary}
    inputs["--shortlist"] = engine.shortlist
    refuse_overwrite(files.output, inputs.items(), engine.folders)
    if files.resume and files.output == "-":
        raise ConfigError("--resume: continues an output file; name it with -o")
    lines = files.read()
    prefixes = None if prefix is None else read_file(prefix, "--prefix")
    output = ResumableOutput(files.resume)
    output.settings["--prefix"] = (
        sha256_of(prefix) if prefix is not None and prefix.is_file() else str(prefix)
    )
    with open_output(files.output, output.open) as file:
        progress = Progress(number_of_lines(files.source), output.lines, can_show_bar(files.output))
        translator = load_translator(
            search,
            engine,
            files.is_large,
            protection=protection,
            prefixes=prefixes,
            on_progress=progress.update,
        )
        with translator, progress:
            lines = output.remaining(lines, translator.settings | line_format.settings)

            def text_of(line: str, number: int) -> str:
                where = f"{files.name}, line {number:,}"
                return line_format.extract(line, where, files.errors)

            for window, translations in translator.translate_stream(
                lines, text_of, files.wait, output.lines
            ):
                rows = zip(window, translations, itertools.count(output.lines + 1), strict=False)
                rendered = itertools.starmap(line_format.render, rows)
                write_lines(file, itertools.chain.from_iterable(rendered))
                output.finished(file, window)
            if next(prefixes or iter(()), None) is not None:
                raise prefix_mismatch(f"{output.lines + 1:,} of the prefixes has no text")
    return translator.summary()


def number_of_lines(source: str) -> int | None:
    """The lines of a regular file; None of a stream, and of a file that cannot be read."""
    if source != "-" and Path(source).is_file():
        with suppress(DataError):  # reported when it is translated
            return count_lines(Path(source), "")
    return None
