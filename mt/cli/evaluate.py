"""`mt evaluate` and `mt score`: metrics of translations, and their probability under a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import print_result, say
from mt.cli.options import (
    AlignmentHeads,
    Alignments,
    BatchTokens,
    BeamSize,
    DeviceName,
    LengthPenalty,
    Model,
    Output,
    Precision,
)


def score(
    model: Model,
    src: Annotated[
        str, typer.Option("--src", metavar="FILE", help="source text, plain or .gz; - is stdin")
    ],
    tgt: Annotated[
        str, typer.Option("--tgt", metavar="FILE", help="its translation, line for line")
    ],
    output: Output = "-",
    length_penalty: LengthPenalty = None,
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="a JSON object a line, with every token's score")
    ] = False,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Score given translations by a model. A line is log-probability / length^penalty, eos counted.

    \b
    mt score --model runs/base --src test.de --tgt test.en
    mt score --model runs/base --src test.de --tgt test.en --alignments --json -o scores.jsonl
    """
    from mt.decoding.scoring import Scorer, format_scored
    from mt.decoding.streaming import open_output, read_input, write_lines
    from mt.errors import ConfigError
    from mt.model.checkpoint import load_model
    from mt.runtime.devices import choose_device

    if src == tgt == "-":
        raise ConfigError("--src, --tgt: only one of them can be stdin; name a file for the other")
    sources, targets = read_input(src), read_input(tgt)
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


def evaluate(
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", metavar="FOLDER", help="translate --src with this model first"
        ),
    ] = None,
    src: Annotated[
        str | None, typer.Option("--src", metavar="FILE", help="source text, with --model")
    ] = None,
    hyp: Annotated[
        list[str] | None,
        typer.Option("--hyp", metavar="FILE", help="translation to score; can be given again"),
    ] = None,
    ref: Annotated[
        list[str] | None,
        typer.Option("--ref", metavar="FILE", help="raw reference; again for more references"),
    ] = None,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="NAMES", help="some of bleu,chrf,ter")
    ] = "bleu,chrf,ter",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Score translations, given ones or a model's, with sacreBLEU. Each FILE may be - for stdin.

    \b
    mt evaluate --hyp output.en --ref reference.en
    mt evaluate --model runs/base --src test.de --ref test.en --metrics bleu,chrf --json
    """
    from mt.evaluation.metrics import (
        check_counts,
        check_metrics,
        format_scores,
        score_corpus,
        to_json,
    )

    names = [name.strip().lower() for name in metrics.split(",") if name.strip()]
    check_metrics(names)
    decoding = {
        "--beam-size": beam_size is not None, "--length-penalty": length_penalty is not None,
        "--batch-tokens": batch_tokens is not None, "--precision": precision != "auto", "--device": device != "auto",
    }  # fmt: skip
    _check_evaluate(model, src, hyp, ref, [option for option, given in decoding.items() if given])
    refs = {f"--ref {path}": _read(path, "--ref") for path in ref or []}
    systems = {path: _read(path, "--hyp") for path in hyp or []}
    if model is None or src is None:
        check_counts({**{f"--hyp {path}": lines for path, lines in systems.items()}, **refs})
    else:
        from mt.decoding.translate import load_translator

        lines = _read(src, "--src")
        check_counts({f"--src {src}": lines, **refs})
        given = {"beam_size": beam_size, "length_penalty": length_penalty}
        with load_translator(
            [model], given, batch_tokens=batch_tokens, precision=precision, device=device, say=say
        ) as translator:
            systems = {str(model): [one.texts[0] for one in translator.translate(lines)]}
        say(translator.tally.summary())
    results = {
        name: score_corpus(lines, list(refs.values()), names) for name, lines in systems.items()
    }
    if as_json:
        import json

        print_result(
            json.dumps(
                {name: json.loads(to_json(scores)) for name, scores in results.items()}, indent=2
            )
        )
        return
    for name, scores in results.items():
        print_result(
            f"{name}\n{format_scores(scores)}" if len(results) > 1 else format_scores(scores)
        )


def _check_evaluate(
    model: Path | None,
    src: str | None,
    hyp: Sequence[str] | None,
    ref: Sequence[str] | None,
    decoding: Sequence[str],
) -> None:
    """Refuse what is missing and what does not go together."""
    from mt.errors import DataError

    if not hyp and model is None and src is None:
        raise DataError(
            "evaluate: nothing to score; give --hyp FILE, or --model FOLDER and --src FILE"
        )
    if hyp and (model is not None or src is not None):
        raise DataError(
            "evaluate: --hyp is a translation that there is, --model and --src make one; give the one or the others"
        )
    if not hyp and (model is None or src is None):
        missing = "--model FOLDER" if model is None else "--src FILE"
        raise DataError(
            f"evaluate: to translate before scoring takes --model and --src; give {missing} too"
        )
    if not ref:
        raise DataError("evaluate: nothing to score against; give --ref FILE, the raw reference")
    if hyp and decoding:
        raise DataError(
            f"evaluate: {', '.join(decoding)} only with --model: what --hyp names is scored as it is"
        )


def _read(path: str, where: str) -> list[str]:
    """All lines of a file or of stdin (`-`)."""
    from mt.data.text_files import decode_lines, read_lines
    from mt.errors import DataError

    if path == "-":
        if not sys.stdin:
            raise DataError(f"{where} -: stdin is closed; name a file, or send text to it")
        return list(decode_lines(sys.stdin.buffer, f"{where} stdin"))
    return list(read_lines(Path(path), where))
