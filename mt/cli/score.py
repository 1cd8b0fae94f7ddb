"""`mt score`: the log-probability of given translations under a model."""

from __future__ import annotations

from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.help import INPUT, OUTPUT
from mt.cli.options import (
    AlignmentHeads,
    Alignments,
    BatchTokens,
    DeviceName,
    LengthPenalty,
    Model,
    Output,
    Precision,
)


def score(
    model: Model,
    src: Annotated[
        str,
        typer.Option(
            "--src",
            metavar="FILE",
            help="source text, plain or .gz; - is stdin",
            rich_help_panel=INPUT,
        ),
    ],
    tgt: Annotated[
        str,
        typer.Option(
            "--tgt",
            metavar="FILE",
            help="its translation, line by line; - is stdin",
            rich_help_panel=INPUT,
        ),
    ],
    output: Output = "-",
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="write a JSON object per line, with the score of every token",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Score given translations with a model, line by line.

    A score is log-probability / length^A; the end symbol counts in both.

    \b
    mt score --model runs/base --src test.de --tgt test.en
    mt score --model runs/base --src test.de --tgt test.en --json -o scores.jsonl
    """
    from mt.decoding.scoring import Scorer, format_scored
    from mt.decoding.streaming import open_output, read_input, refuse_overwrite, write_lines
    from mt.errors import ConfigError
    from mt.model.checkpoint import load_model
    from mt.runtime.devices import choose_device

    if src == tgt == "-":
        raise ConfigError("--src, --tgt: only one of them can be stdin; name a file for the other")
    refuse_overwrite(output, {"--src": src, "--tgt": tgt})
    sources = read_input(src, option="--src")
    targets = read_input(tgt, option="--tgt")
    chosen = choose_device(device, precision, say)
    with open_output(output) as file:
        loaded = load_model(model)
        penalty = loaded.config.decode.length_penalty if length_penalty is None else length_penalty
        heads = alignment_heads or ("auto" if alignments else None)
        scorer = Scorer(
            loaded.model,
            loaded.tokenizer,
            chosen,
            length_penalty=penalty,
            heads=heads,
            batch_tokens=batch_tokens,
        )
        write_lines(file, format_scored(scorer.score(sources, targets), as_json, heads is not None))
    say(scorer.tally.summary())
