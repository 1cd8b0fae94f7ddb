"""`mt translate` and `mt score`: translate, or score given translations, line by line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from mt.cli import options as opt
from mt.cli.console import say
from mt.errors import ConfigError, leaf_for
from mt.search import options as settings
from mt.search.options import EngineOptions, SearchOptions

constraint_option = opt.options_in(settings.LIMITS)
FormName = Literal["text", "tsv", "csv", "jsonl", "html", "srt", "xliff"]


def translate(
    models: opt.Models,
    source: opt.Source = "-",
    form: Annotated[FormName | None, opt.input_option("--format", metavar="NAME", help=
        "lines (text, tsv, csv, jsonl) or a document (html, srt, xliff) (default: a document as IN "
        "ends, .html, .srt or .xlf; else text)")] = None,
    column: Annotated[int | None, opt.input_option("--column", metavar="N", min=1, help=
        "column to translate in TSV or CSV lines; 1 is the first, and the default")] = None,
    field: Annotated[str | None, opt.input_option("--field", metavar="NAME", help=
        "field to translate in JSON lines; a dot leads into a field; text if not given")] = None,
    quoting: Annotated[Literal["csv", "none"] | None, opt.input_option(
        "--quoting", metavar="HOW", help=
        "csv: cells may be in quotation marks, as always with --format csv; none: the marks are "
        "text (default for tsv)")] = None,
    errors: opt.OnErrors = "strict",
    output: opt.OutputFile = "-",
    n_best: Annotated[int, opt.output_option("--n-best", metavar="N", min=1, help=
        "outputs per line, as `index ||| text ||| score`; equal texts once, unless --sample")] = 1,
    scores: Annotated[bool, opt.output_option("--scores", help=
        "put the score and a tab before each output, of the tokens that the search found: mt score "
        "cuts the text into tokens anew, and may find others")] = False,
    alignments: Annotated[bool, opt.output_option("--alignments", help=
        "add a word alignment to each output: i-j pairs, counted from 0; without spaces between "
        "words, characters start:end")] = False,
    resume: opt.Resume = False,
    *,
    search: opt.SampledSearchGroup,
    prefix: Annotated[Path | None, constraint_option("--prefix", metavar="FILE", help=
        "target prefixes, one per input line: outputs start with them")] = None,
    protect: Annotated[list[str] | None, constraint_option("--protect", metavar="WHAT", help=
        "texts that come out as they are: auto for web and e-mail addresses, {name}, %s, $VAR and "
        "<tag>, else a regular expression; repeatable")] = None,
    glossary: Annotated[Path | None, constraint_option("--glossary", metavar="FILE", help=
        "terms, a tab and a translation in each line; whole words, the longest match counts; a "
        "term in lower case stands for any case")] = None,
    engine: EngineOptions,
) -> None:  # fmt: skip
    """Translate text, line by line. Each input line gives one output line, in the same order.

    \b
    mt translate --model runs/base input.de -o output.en
    cat input.de | mt translate --model runs/base --beam-size 1 > output.en
    mt translate --model runs/base --format jsonl --resume in.jsonl -o out.jsonl
    mt translate --model runs/europe --to fr input.de -o output.fr
    mt translate --model runs/base page.de.html -o page.en.html
    mt translate --model runs/base --format xliff in.xlf -o out.xlf
    mt translate -m runs/base --protect auto --glossary terms.tsv in.de -o out.en
    """
    from mt.translate.streaming import TextFiles
    from mt.translate.translate_file import DOCUMENTS, LineFormat, format_of, translate_file

    files = TextFiles(
        source=source, output=output, errors=errors,
        prefix=prefix, glossary=glossary, resume=resume,
    )  # fmt: skip
    options = search.value(
        n_best=n_best, with_scores=scores, prefixes=prefix is not None, alignments=alignments
    )
    line_format = LineFormat(form or format_of(source), column, field, n_best, scores, quoting)
    given = (files, line_format, options, replace(engine, models=models))
    is_document = line_format.name in DOCUMENTS
    needing = {"--protect": protect, "--glossary": glossary, "--format": is_document}
    if named := [option for option, value in needing.items() if value]:
        with leaf_for(named[0]):
            from mt.documents.translate_document import translate_protected
        translate_protected(*given, protect or ())
    else:
        say(translate_file(*given))


def score(
    model: opt.Model,
    src: Annotated[str, opt.input_option("--src", metavar="FILE", help=
        "source text, also compressed; - is stdin")],
    tgt: Annotated[str, opt.input_option("--tgt", metavar="FILE", help=
        "its translation, line by line; - is stdin")],
    to: settings.ToLanguage = None,
    output: opt.OutputFile = "-",
    as_json: Annotated[bool, opt.output_option("--json", help=
        "write a JSON object per line, with the score of every token")] = False,
    *,
    length_penalty: settings.LengthPenalty = None,
    batch_tokens: settings.BatchTokens = None,
    precision: settings.Precision = "auto",
    device: settings.DeviceName = "auto",
) -> None:  # fmt: skip
    """Score given translations with a model, line by line.

    A score is log-probability / length^A; the end symbol counts in both. It is that of the tokens
    into which the vocabulary cuts a text: a search may have spelled it with others.

    \b
    mt score --model runs/base --src test.de --tgt test.en
    mt score --model runs/base --src test.de --tgt test.en --json -o scores.jsonl
    """
    from mt.translate.streaming import open_output, read_input, refuse_overwrite, write_lines

    if src == tgt == "-":
        raise ConfigError("--src, --tgt: only one of them can be stdin; name a file for the other")
    refuse_overwrite(output, [("--src", src), ("--tgt", tgt)], [model])
    from mt.translate.score_lines import load_scorer

    search = SearchOptions(to=to, length_penalty=length_penalty)
    options = EngineOptions(
        models=[model], batch_tokens=batch_tokens, precision=precision, device=device
    )
    sources = read_input(src, option="--src")
    targets = read_input(tgt, option="--tgt")
    with open_output(output) as file:
        scorer = load_scorer(search, options)
        pairs = scorer.score(sources, targets)
        known = scorer.tokenizer
        lines = (pair.as_json(known) if as_json else f"{pair.score:.4f}" for pair in pairs)
        write_lines(file, lines)
    say(scorer.summary())
