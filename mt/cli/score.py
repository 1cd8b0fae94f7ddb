"""`mt score`: the log-probability of given translations."""

from __future__ import annotations

from typing import Annotated

from mt.cli.console import say
from mt.cli.options import (
    AlignmentHeads,
    Alignments,
    BatchTokens,
    DeviceName,
    LengthPenalty,
    Model,
    OutputFile,
    Precision,
    ToLanguage,
    input_option,
    output_option,
)
from mt.errors import ConfigError

# fmt: off
Src = Annotated[str, input_option("--src", metavar="FILE", help=
    "source text, also compressed; - is stdin")]
Tgt = Annotated[str, input_option("--tgt", metavar="FILE", help=
    "its translation, line by line; - is stdin")]
AsJson = Annotated[bool, output_option("--json", help=
    "write a JSON object per line, with the score of every token")]
# fmt: on


def score(
    model: Model,
    src: Src,
    tgt: Tgt,
    to: ToLanguage = None,
    output: OutputFile = "-",
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    as_json: AsJson = False,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
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
    from mt.search.options import EngineOptions, SearchOptions
    from mt.translate.score_lines import format_scored, load_scorer

    heads = alignment_heads or ("auto" if alignments else None)
    search = SearchOptions(to=to, length_penalty=length_penalty, alignments=heads)
    options = EngineOptions(
        models=[model],
        engine="torch",
        precision=precision,
        device=device,
        batch_tokens=batch_tokens,
    )
    sources = read_input(src, option="--src")
    targets = read_input(tgt, option="--tgt")
    with open_output(output) as file:
        scorer = load_scorer(search, options)
        aligned = bool(scorer.forced.heads)
        write_lines(file, format_scored(scorer.score(sources, targets), as_json, aligned))
    say(scorer.summary())
