"""The whole of `mt translate`: its options in, an output file and a summary out; formats of lines.

Text lines hold nothing else; TSV and CSV lines have columns, and JSON lines have fields, which are
kept. Documents, whose texts are not their lines, are read by `mt.documents`.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.data.reading import text as reading
from mt.data.reading.compression import suffix_of
from mt.data.reading.table_files import DELIMITERS
from mt.data.reading.text import SURROGATES
from mt.data.reading.text_files import count_lines
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.search.options import EngineOptions, SearchOptions
from mt.terminal import Progress, can_show_bar, say
from mt.translate.lines import Step, Translation
from mt.translate.load import load_translator
from mt.translate.resume import ResumableOutput
from mt.translate.segments import prefix_mismatch
from mt.translate.streaming import TextFiles, open_output, read_file, refuse_overwrite, write_lines

DOCUMENTS = ("html", "srt", "xliff")
# Ending of the name of a document -> format.
SUFFIXES = {
    ".srt": "srt",
    **{ending: form for ending, form in reading.SUFFIXES.items() if form == "xliff"},
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
}
# Ending of the name of a file that is read as text all the same -> the format that suits it.
HINTS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".vtt": "srt"}
# Characters of a broken line that a message shows.
SHOWN = 40


def translate_file(
    files: TextFiles, line_format: LineFormat, search: SearchOptions, engine: EngineOptions,
    protection: Step | None = None,
) -> str:  # fmt: skip
    """Translate the lines of a file into another, with a further step for `protection`."""
    prefix = files.prefix
    inputs = {"the input": files.source, "--prefix": prefix, "--glossary": files.glossary}
    inputs["--shortlist"] = engine.shortlist
    refuse_overwrite(files.output, inputs.items(), engine.folders)
    if files.resume and files.output == "-":
        raise ConfigError("--resume: continues an output file; name it with -o")
    lines = files.read()
    prefixes = None if prefix is None else read_file(prefix, "--prefix")
    output = ResumableOutput(files.resume)
    output.settings["--prefix"] = sha256_of(prefix) if prefix and prefix.is_file() else str(prefix)
    with open_output(files.output, output.open) as file:
        total, given = number_of_lines(files.source), number_of_lines(str(prefix or "-"))
        if total is not None and given is not None and total != given:
            problem = "text has no prefix" if given < total else "prefixes has no text"
            raise prefix_mismatch(f"{min(total, given) + 1:,} of the {problem}")
        progress = Progress(total, output.lines, can_show_bar(files.output))
        wants = {"protection": protection, "prefixes": prefixes, "on_progress": progress.update}
        translator = load_translator(search, engine, files.is_large, **wants)
        with translator, progress:
            lines = output.remaining(lines, translator.settings | line_format.settings)
            next(itertools.islice(prefixes or (), output.lines, output.lines), None)  # of these
            before = [f"since --resume; {output.lines:,} finished before"] * (output.lines > 0)

            def text_of(line: str, number: int) -> str:
                return line_format.extract(line, f"{files.name}, line {number:,}", files.errors)

            stream = translator.translate_stream(lines, text_of, files.wait, output.lines)
            for window, translations in stream:
                rows = zip(window, translations, itertools.count(output.lines + 1), strict=False)
                rendered = itertools.starmap(line_format.render, rows)
                write_lines(file, itertools.chain.from_iterable(rendered))
                output.finished(file, window)
            if next(prefixes or iter(()), None) is not None:
                raise prefix_mismatch(f"{output.lines + 1:,} of the prefixes has no text")
    return translator.summary(notes=before)


def number_of_lines(source: str) -> int | None:
    """The lines of a regular file; None of a stream, and of a file that cannot be read."""
    if source != "-" and Path(source).is_file():
        with suppress(DataError):  # reported when it is translated
            return count_lines(Path(source), "")
    return None


def format_of(name: str) -> str:
    """The format of a document by its name; else text, with a hint if the name tells another."""
    suffix = suffix_of(Path(name))
    if form := HINTS.get(suffix):
        say(f"{name}: is read as text, each line as a whole; --format {form} reads it as {form}")
    return SUFFIXES.get(suffix, "text")


@dataclass(frozen=True)
class LineFormat:
    """The format of input and output lines, as the options of `mt translate` describe it."""

    name: str = "text"
    column: int | None = None  # of a TSV or CSV line, from 1; None: the first
    field: str | None = None  # of a JSON line; None: text
    n_best: int = 1
    scores: bool = False
    quoting: str | None = None  # of TSV or CSV; None: only of CSV

    def __post_init__(self) -> None:
        """Raise ConfigError for an option of another format."""
        tables = tuple(DELIMITERS)
        for option, names in (("column", tables), ("field", ("jsonl",)), ("quoting", tables)):
            if getattr(self, option) is not None and self.name not in names:
                raise ConfigError(
                    f"--{option}: works only with --format {' or '.join(names)}, found "
                    f"{self.name}; add --format {names[0]}, or leave out --{option}"
                )
        if self.name == "csv" and self.quoting == "none":
            why = "a translation with a comma would be several cells; leave it out, or make it TSV"
            raise ConfigError(f"--quoting none: not with --format csv, where {why}")
        if self.name in DOCUMENTS and (self.scores or self.n_best > 1):
            raise ConfigError(
                f"--format {self.name}: a document has room for one translation of each text, "
                "without a score; leave out --scores and --n-best"
            )

    @property
    def settings(self) -> dict[str, str]:
        """Options that an output depends on, by name; the search has `n_best`."""
        names = ("column", "field", "scores", "quoting")
        return {"--format": self.name} | {f"--{name}": str(getattr(self, name)) for name in names}

    def extract(self, line: str, where: str, errors: str = "strict") -> str:
        """Return the text to translate in a line; a blank line is returned as is.

        Raises DataError, which begins with `where`, if the line lacks the column or field, and for
        half of a surrogate pair, which is no text; with errors "replace" that becomes U+FFFD.
        """
        if self.name == "text" or not line.strip():
            return line
        if self.name in DELIMITERS:
            cells = self._cells(line, where)
            column = self.column or 1
            if len(cells) < column:
                separated = {"tsv": "tabs", "csv": "commas"}[self.name]
                raise DataError(
                    f"{where}: --column {column} is asked for, but the line has {len(cells)}; "
                    f"columns are separated by {separated} and counted from 1"
                )
            return cells[column - 1]
        field = self.field or "text"
        row = _json_object(line, where)
        fields = ("translation", "alignment", *["score"] * self.scores)
        added = ("flags", *(fields if self.n_best == 1 else ("translations",)))
        if taken := [key for key in added if key in row]:
            problem = f"already has the field {taken[0]!r}, which the translation would overwrite"
            raise DataError(f"{where}: {problem}; rename it")
        text: Any = row
        for part in [field] if field in row else field.split("."):
            row, text = (text, text.get(part)) if isinstance(text, dict) else (row, None)
        if not isinstance(text, str):
            known = f"the fields there are {', '.join(row) or 'none'}"
            problem = f"found {text!r}" if text is not None or part in row else known
            raise DataError(f"{where}: --field {field} must hold a text, {problem}")
        if errors == "strict" and (half := SURROGATES.search(text)):
            raise DataError(
                f"{where}: character {half.start() + 1:,} of --field {field} is half of a "
                "surrogate pair, not a character. Correct the line, or give --errors replace, "
                "which turns it into U+FFFD"
            )
        return SURROGATES.sub("\ufffd", text)

    def render(self, line: str, translation: Translation, number: int) -> Iterator[str]:
        """Yield the output for line `number` (from 1): one line, or one per n-best entry.

        Text: `score`, text and alignment, or `n ||| text ||| score` with n from 0, as in other
        toolkits. TSV, CSV: the input line with more columns. JSON: the object with more fields.
        """
        if self.name == "jsonl":
            yield self._json(line, translation) if line.strip() else line
            return
        for text, score, aligned in self._outputs(translation):
            shown = [] if score is None else [f"{score:.4f}"]
            last = [] if aligned is None else [aligned]
            added = [*shown, text, *last]
            if self.name in DELIMITERS:
                yield DELIMITERS[self.name].join([line, *map(self._cell, added)])
            elif self.n_best > 1:
                yield " ||| ".join([str(number - 1), text, *shown, *last])
            else:
                yield "\t".join(added)

    def _outputs(self, one: Translation) -> Iterator[tuple[str, float | None, str | None]]:
        scores = one.scores if self.scores or self.n_best > 1 else ()
        rows = itertools.zip_longest(one.texts, scores, one.alignments)
        return itertools.islice(rows, self.n_best)

    @property
    def _is_quoted(self) -> bool:
        """Whether quotation marks around a cell are no part of it."""
        return (self.quoting or self.name) == "csv"

    def _cells(self, line: str, where: str) -> list[str]:
        delimiter = DELIMITERS[self.name]
        if not self._is_quoted:
            return line.split(delimiter)
        csv.field_size_limit(max(len(line) + 1, csv.field_size_limit()))
        try:
            return next(csv.reader([line], delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise DataError(
                f"{where}: its cells are not quoted as in CSV ({error}), found "
                f"{line[:SHOWN]!r}. A cell must end in its line, and a mark inside it is "
                "doubled; marks that are text need TSV and --quoting none"
            ) from None

    def _cell(self, text: str) -> str:
        if not self._is_quoted:
            return text
        quoted = io.StringIO()
        csv.writer(quoted, delimiter=DELIMITERS[self.name], lineterminator="").writerow([text])
        return quoted.getvalue() if text else ""

    def _json(self, line: str, translation: Translation) -> str:
        """Return the object with more fields; what it holds stays as it is, to the last digit."""
        rows = list[dict[str, Any]]()
        for text, score, aligned in self._outputs(translation):
            row = {"translation": text, "score": score and round(score, 4), "alignment": aligned}
            rows.append({key: value for key, value in row.items() if value is not None})
        fields: dict[str, Any] = {"translations": rows} if self.n_best > 1 else rows[0]
        if translation.flags:
            fields["flags"] = list(translation.flags)
        more = json.dumps(fields, ensure_ascii=False)
        return f"{line.rstrip().removesuffix('}').rstrip()}, {more[1:]}"


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}, character {error.pos + 1:,}: cannot be read as JSON: {error.msg}; "
            f"every line must be one JSON object, found {line[:SHOWN]!r}; "
            "jq -c . FILE makes such lines"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep nesting
        raise DataError(f"{where}: cannot be read as JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: must be a JSON object, found {line[:SHOWN]!r}; "
            "jq -c '.[]' FILE makes lines of a list"
        )
    return row
