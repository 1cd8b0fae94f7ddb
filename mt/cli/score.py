"""`mt score`: the log-probability of given translations."""

from __future__ import annotations

from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import say
from mt.errors import ConfigError
from mt.search.options import (
    BatchTokens,
    DeviceName,
    EngineOptions,
    LengthPenalty,
    Precision,
    SearchOptions,
    ToLanguage,
)


def score(
    model: opt.Model,
    src: Annotated[str, opt.input_option("--src", metavar="FILE", help=
        "source text, also compressed; - is stdin")],
    tgt: Annotated[str, opt.input_option("--tgt", metavar="FILE", help=
        "its translation, line by line; - is stdin")],
    to: ToLanguage = None,
    output: opt.OutputFile = "-",
    as_json: Annotated[bool, opt.output_option("--json", help=
        "write a JSON object per line, with the score of every token")] = False,
    *,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
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
        tokenizer = scorer.tokenizer
        write_lines(
            file, (pair.as_json(tokenizer) if as_json else f"{pair.score:.4f}" for pair in pairs)
        )
    say(scorer.summary())
