"""`mt translate`: translate a file or a stream, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mt.cli.options import (
    AlignmentHeads,
    Alignments,
    EngineGroup,
    LineSearchGroup,
    Models,
    OnErrors,
    OutputFile,
    Resume,
    SamplingGroup,
    Source,
    execution_option,
    input_option,
    options_in,
    output_option,
    search_option,
    with_groups,
)

if TYPE_CHECKING:
    from mt.translate.formats import LineFormat

constraint_option = options_in("Constraints on outputs")
FormName = Literal["text", "tsv", "csv", "jsonl", "html", "srt", "xliff"]


# fmt: off
Form = Annotated[FormName | None, input_option(
    "--format", metavar="NAME", help=
    "lines (text, tsv, csv, jsonl) or a document (html, srt, xliff) (default: a document as IN "
    "ends, .html, .srt or .xlf; else text)")]
Column = Annotated[int | None, input_option("--column", metavar="N", min=1, help=
    "column to translate in TSV or CSV lines; 1 is the first, and the default")]
Field = Annotated[str | None, input_option("--field", metavar="NAME", help=
    "field to translate in JSON lines; a dot leads into a field; text if not given")]
Quoting = Annotated[Literal["csv", "none"] | None, input_option("--quoting", metavar="HOW", help=
    "csv: cells may be in quotation marks; none: the marks are text (default: csv for --format "
    "csv, none for tsv)")]
# fmt: on


@dataclass(frozen=True)
class FormatGroup:
    """The options of the input and its format."""

    source: Source = "-"
    form: Form = None
    column: Column = None
    field: Field = None
    quoting: Quoting = None
    errors: OnErrors = "strict"

    def value(self, n_best: int, scores: bool, confidence: bool) -> LineFormat:
        """Return the format of lines with so many outputs."""
        from mt.translate.formats import LineFormat, format_of

        form = self.form or format_of(self.source)
        columns = (self.column, self.field, n_best, scores, self.quoting, confidence)
        return LineFormat(form, *columns)


# fmt: off
Exact = Annotated[bool, search_option("--exact", help=
    "stop a sentence only when no open hypothesis can still win")]
Mbr = Annotated[Literal["chrf", "bleu"] | None, search_option("--mbr", metavar="METRIC", help=
    "minimum Bayes risk: choose among the --n-best by chrf or bleu")]
RerankWith = Annotated[Path | None, search_option("--rerank-with", metavar="FOLDER", help=
    "reverse model, or one of both directions: sort the hypotheses also by how probable it finds "
    "the source, given each")]
RerankWeight = Annotated[float | None, search_option("--rerank-weight", metavar="W", help=
    "how much that counts: weight of its log-probability per token; 0.2 if not given")]
# fmt: on


@dataclass(frozen=True)
class ChoiceGroup:
    """The options that say which hypothesis of a line is its translation."""

    exact: Exact = False
    mbr: Mbr = None
    rerank_with: RerankWith = None
    rerank_weight: RerankWeight = None


# fmt: off
MinLength = Annotated[int, constraint_option("--min-length", metavar="N", help=
    "shortest output, in tokens")]
NoRepeatNgram = Annotated[int, constraint_option("--no-repeat-ngram", metavar="N", help=
    "never repeat N tokens in a row; 0 is off")]
RepetitionPenalty = Annotated[float, constraint_option("--repetition-penalty", metavar="P", help=
    "multiply log-probabilities of tokens already in the output by P")]
Forbid = Annotated[list[str] | None, constraint_option("--forbid", metavar="TOKEN", help=
    "a token of the vocabulary never to output, though others may spell its text; repeatable")]
# fmt: on


@dataclass(frozen=True)
class ConstraintGroup:
    """The options that restrict which tokens an output has."""

    min_length: MinLength = 0
    no_repeat_ngram: NoRepeatNgram = 0
    repetition_penalty: RepetitionPenalty = 1.0
    forbid: Forbid = None


# fmt: off
Ensemble = Annotated[Literal["probability", "log"] | None, search_option(
    "--ensemble", metavar="MEAN", help=
    "average probabilities (probability, if not given) or log-probabilities (log)")]
Prefix = Annotated[Path | None, constraint_option("--prefix", metavar="FILE", help=
    "target prefixes, one per input line: outputs start with them")]
Protect = Annotated[list[str] | None, constraint_option("--protect", metavar="WHAT", help=
    "texts that come out as they are: auto for web and e-mail addresses, {name}, %s, $VAR and "
    "<tag>, else a regular expression; repeatable")]
Glossary = Annotated[Path | None, constraint_option("--glossary", metavar="FILE", help=
    "terms, a tab and a translation in each line; whole words, the longest match counts; a term in "
    "lower case stands for any case")]
MaxWait = Annotated[float | None, execution_option("--max-wait", metavar="SECONDS", min=0, help=
    "wait at most SECONDS for a batch to fill, then translate it (default: 0.2 for stdin)")]
Shortlist = Annotated[Path | None, execution_option("--shortlist", metavar="FILE", help=
    "faster: only the likely target pieces in this vmap.txt, which mt export ctranslate2 "
    "--shortlist writes; for --engine ctranslate2 (default: what mt tune has chosen; none: no "
    "shortlist)")]
NBest = Annotated[int, output_option("--n-best", metavar="N", min=1, help=
    "outputs per input line, as `index ||| text ||| score`; equal texts once")]
Scores = Annotated[bool, output_option("--scores", help=
    "put the score and a tab before each output, of the tokens that the search found: mt score "
    "cuts the text into tokens anew, and may find others")]
Confidence = Annotated[bool, output_option("--confidence", help=
    "put before each output the chance that its chrF would be at least 50, as fitted on the "
    "validation set")]
# fmt: on


@with_groups
def translate(
    models: Models,
    text: FormatGroup,
    *,
    output: OutputFile = "-",
    n_best: NBest = 1,
    scores: Scores = False,
    confidence: Confidence = False,
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    resume: Resume = False,
    search: LineSearchGroup,
    choice: ChoiceGroup,
    ensemble: Ensemble = None,
    prefix: Prefix = None,
    protect: Protect = None,
    glossary: Glossary = None,
    constraints: ConstraintGroup,
    sampling: SamplingGroup,
    max_wait: MaxWait = None,
    engine: EngineGroup,
    shortlist: Shortlist = None,
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
    from mt.translate.streaming import TextFiles
    from mt.translate.translate_file import translate_file

    files = TextFiles(
        source=text.source,
        output=output,
        errors=text.errors,
        prefixes=prefix,
        resume=resume,
        max_wait=max_wait,
    )
    options = search.value(
        **vars(choice),
        **vars(constraints) | {"forbid": tuple(constraints.forbid or ())},
        n_best=n_best,
        with_scores=scores or confidence,
        confidence=confidence,
        prefixes=prefix is not None,
        sample=sampling.value(),
        alignments=alignment_heads or ("auto" if alignments else None),
    )
    line_format = text.value(1 if choice.mbr else n_best, scores, confidence)
    chosen_engine = engine.value(models, ensemble=ensemble, shortlist=shortlist)
    translate_file(files, line_format, options, chosen_engine, protect or (), glossary)
