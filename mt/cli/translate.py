"""`mt translate`: translate a file or a stream, line by line."""

from __future__ import annotations

from pathlib import Path

from mt.cli.options import ANY_ENGINE, NO_SAMPLING, EngineGroup, SamplingGroup, described


@described("""
    Input:
    form = --format NAME: lines (text, tsv, csv, jsonl) or a document (html, srt, xliff) (default:
        a document as IN ends, .html, .srt or .xlf; else text)
    --column N in 1..: column to translate in TSV or CSV lines; 1 is the first, and the default
    --quoting HOW: csv: cells may be in quotation marks; none: the marks are text (default: csv
        for --format csv, none for tsv)
    --field NAME: field to translate in JSON lines; a dot leads into a field; text if not given
    Output:
    --n-best N in 1..: outputs per input line, as `index ||| text ||| score`; equal texts once
    --scores: put the score and a tab before each output, that of the tokens which the search has
        found: mt score cuts the text into tokens anew, and may find others
    Search:
    --exact: stop a sentence only when no open hypothesis can still win
    --mbr METRIC: minimum Bayes risk: choose among the --n-best by chrf or bleu
    --rerank-with FOLDER: reverse model, or one of both directions: sort the hypotheses also by how
        probable it finds the source, given each
    --rerank-weight W: how much that counts: weight of its log-probability per token; 0.2 if not
        given
    --ensemble MEAN: average probabilities (probability, if not given) or log-probabilities (log)
    Constraints on outputs:
    --prefix FILE: target prefixes, one per input line: outputs start with them
    --protect WHAT: texts that come out as they are: auto for web and e-mail addresses, {name}, %s,
        $VAR and <tag>, else a regular expression; repeatable
    --glossary FILE: terms, a tab and a translation in each line; whole words, the longest match
        counts; a term in lower case stands for any case
    --min-length N: shortest output, in tokens
    --no-repeat-ngram N: never repeat N tokens in a row; 0 is off
    --repetition-penalty P: multiply log-probabilities of tokens already in the output by P
    --forbid TOKEN: a token of the vocabulary never to output; repeatable
    Execution:
    --max-wait SECONDS in 0..: wait at most SECONDS for a batch to fill, then translate it (default:
        0.2 for stdin)
    --shortlist FILE: faster: only the likely target pieces in this vmap.txt, which mt export
        ctranslate2 --shortlist writes; for --engine ctranslate2 (default: what mt tune has chosen;
        none: no shortlist)
""")
def translate(
    models: list[Path],
    source: str = "-",
    to: str | None = None,
    from_: str | None = None,
    form: str | None = None,
    column: int | None = None,
    field: str | None = None,
    quoting: str | None = None,
    errors: str = "strict",
    output: str = "-",
    n_best: int = 1,
    scores: bool = False,
    alignments: bool = False,
    alignment_heads: str | None = None,
    resume: bool = False,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    split_sentences: str = "auto",
    as_written: bool = False,
    exact: bool = False,
    mbr: str | None = None,
    rerank_with: Path | None = None,
    rerank_weight: float | None = None,
    ensemble: str | None = None,
    prefix: Path | None = None,
    protect: list[str] | None = None,
    glossary: Path | None = None,
    min_length: int = 0,
    no_repeat_ngram: int = 0,
    repetition_penalty: float = 1.0,
    forbid: list[str] | None = None,
    sampling: SamplingGroup = NO_SAMPLING,
    max_wait: float | None = None,
    engine: EngineGroup = ANY_ENGINE,
    shortlist: Path | None = None,
) -> None:
    """Translate text, line by line. Each input line gives one output line, in the same order.

    \b
    mt translate --model runs/base input.de -o output.en
    cat input.de | mt translate --model runs/base --beam-size 1 > output.en
    mt translate --model runs/base --format jsonl --resume in.jsonl -o out.jsonl
    mt translate -m de-en --rerank-with en-de --beam-size 10 in.de -o out.en
    mt translate --model runs/europe --to fr input.de -o output.fr
    mt translate --model runs/base page.de.html -o page.en.html
    mt translate --model runs/base --format xliff in.xlf -o out.xlf
    mt translate -m runs/base --protect auto --glossary terms.tsv in.de -o out.en
    mt translate --model runs/base --sample --n-best 16 --mbr chrf in.de -o out.en
    """
    from mt.search.options import SearchOptions
    from mt.translate.formats import LineFormat, format_of
    from mt.translate.streaming import TextFiles
    from mt.translate.translate_file import translate_file

    files = TextFiles(
        source=source,
        output=output,
        errors=errors,
        prefixes=prefix,
        resume=resume,
        max_wait=max_wait,
    )
    search = SearchOptions(
        to=to,
        from_=from_,
        beam_size=beam_size,
        length_penalty=length_penalty,
        split_sentences=split_sentences,
        as_written=as_written,
        n_best=n_best,
        with_scores=scores,
        exact=exact,
        mbr=mbr,
        rerank_with=rerank_with,
        rerank_weight=rerank_weight,
        prefixes=prefix is not None,
        min_length=min_length,
        no_repeat_ngram=no_repeat_ngram,
        repetition_penalty=repetition_penalty,
        forbid=tuple(forbid or ()),
        sample=sampling.value(),
        alignments=alignment_heads or ("auto" if alignments else None),
    )
    options = engine.value(models, ensemble=ensemble, shortlist=shortlist)
    form = form or format_of(source)
    line_format = LineFormat(form, column, field, 1 if mbr else n_best, scores, quoting)
    translate_file(files, line_format, search, options, protect or (), glossary)
