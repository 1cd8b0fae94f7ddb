"""The command line: parse, load the config, call one function. Heavy imports stand inside the commands."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mt.cli.console import Commands, print_result, say, terminate
from mt.cli.options import (
    AlignmentHeads,
    Alignments,
    BatchTokens,
    BeamSize,
    ConfigName,
    DeviceName,
    LengthPenalty,
    Model,
    Models,
    Output,
    Precision,
    Sets,
)

app = typer.Typer(
    cls=Commands,
    help="Train encoder-decoder Transformers for translation, translate with them, and score the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
config_app = typer.Typer(
    no_args_is_help=True, help="Validate, show and describe configs.", rich_markup_mode=None
)
inspect_app = typer.Typer(no_args_is_help=True, help="Look inside a model.", rich_markup_mode=None)
export_app = typer.Typer(
    no_args_is_help=True, help="Hand a model to another runtime.", rich_markup_mode=None
)
app.add_typer(config_app, name="config")
app.add_typer(export_app, name="export")
app.add_typer(inspect_app, name="inspect")


def main() -> NoReturn:
    """The console script `mt`."""
    if sys.stderr is None:  # closed; what is printed there must not end up in the output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    signal.signal(signal.SIGTERM, terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end in a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="mt")
    sys.exit(0)


@app.command()
def train(
    config: ConfigName,
    sets: Sets = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="FOLDER", help="default: runs/NAME of the config"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="set a used run directory aside and start over")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="try preparation, largest batch and a translation, print what it will be; keep nothing",
        ),
    ] = False,
    device: DeviceName = "auto",
) -> None:
    """Train a model, or go on with a run that was stopped. The same command does both.

    \b
    mt train --config base.yaml
    mt train --config multi30k.yaml --set data.root=corpora/multi30k --set train.max_steps=2000
    mt train --config base.yaml --dry-run
    torchrun --standalone --nproc-per-node=gpu -m mt train --config base.yaml
    """
    from mt.config.load import load_config, require_training_data
    from mt.errors import ConfigError

    try:
        loaded = load_config(config, sets or [])
        require_training_data(loaded.config)
    except ConfigError as error:
        if "LOCAL_RANK" not in os.environ:
            raise
        from mt.runtime.distributed import report_once

        report_once(error)
    folder = run_dir or Path(loaded.config.run.dir or f"runs/{loaded.name}")
    from mt.training import launch as training

    outcome = training.train(loaded.config, folder, device, fresh, dry_run)
    if dry_run and os.environ.get("RANK", "0") == "0":
        print_result(outcome.reason)
    sys.exit(outcome.exit_code)


@app.command()
def translate(
    model: Models,
    source: Annotated[
        str, typer.Argument(metavar="IN", help="text file, plain or .gz; - is stdin")
    ] = "-",
    output: Output = "-",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int,
        typer.Option(
            "--n-best", min=1, metavar="N", help="outputs per line, as `n ||| text ||| score`"
        ),
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="score and tab before each output")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="of the lines: text, tsv or jsonl")
    ] = "text",
    column: Annotated[
        int | None,
        typer.Option("--column", min=1, metavar="N", help="of a TSV line, from 1; default: 1"),
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="of a JSON line; default: text")
    ] = None,
    errors: Annotated[
        str,
        typer.Option("--errors", metavar="HOW", help="bytes that are not UTF-8: strict or replace"),
    ] = "strict",
    resume: Annotated[
        bool, typer.Option("--resume", help="go on after what an interrupted job has finished")
    ] = False,
    max_wait: Annotated[
        float | None,
        typer.Option(
            "--max-wait",
            min=0,
            metavar="SECONDS",
            help="answer so soon if no more lines come; stdin: 0.2",
        ),
    ] = None,
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    prefix: Annotated[
        Path | None,
        typer.Option(
            "--prefix", metavar="FILE", help="what each output must begin with, line for line"
        ),
    ] = None,
    min_length: Annotated[
        int, typer.Option("--min-length", metavar="N", help="pieces of an output at least")
    ] = 0,
    no_repeat_ngram: Annotated[
        int,
        typer.Option(
            "--no-repeat-ngram", metavar="N", help="no N pieces in a row twice; 0 allows it"
        ),
    ] = 0,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repetition-penalty", metavar="P", help="log-probability of used pieces, times P"
        ),
    ] = 1.0,
    forbid: Annotated[
        list[str] | None,
        typer.Option("--forbid", metavar="PIECE", help="never this piece; can be given again"),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="end a search only when nothing in the beam can win")
    ] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="draw outputs at random, --n-best of each line")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", metavar="T", help="with --sample: below 1 less random"),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", metavar="K", help="with --sample: from the K most probable pieces"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", metavar="P", help="with --sample: from the best that hold this share"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="with --sample: another number, other samples"),
    ] = None,
    mbr: Annotated[
        str | None,
        typer.Option(
            "--mbr", metavar="NAME", help="of --n-best the one most like the rest: chrf or bleu"
        ),
    ] = None,
    ensemble: Annotated[
        str | None,
        typer.Option(
            "--ensemble", metavar="MEAN", help="of several models: probability (default) or log"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, metavar="N", help="processes on a CPU; default: its cores"
        ),
    ] = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Translate a text line by line. As many lines come out as go in, in the same order.

    \b
    mt translate --model runs/base input.de -o output.en
    cat input.de | mt translate --model runs/base --beam-size 1 > output.en
    mt translate --model runs/base --format jsonl --field text --resume input.jsonl -o output.jsonl
    mt translate --model runs/base --sample --top-p 0.9 --n-best 16 --mbr chrf input.de -o output.en
    """
    from mt.data.corpus import read_lines
    from mt.decoding.options import SearchOptions, sampling_of
    from mt.decoding.resume import ResumableOutput
    from mt.decoding.streaming import LineFormat, open_output, read_input, run
    from mt.decoding.translate import load_translator
    from mt.errors import ConfigError
    from mt.files import sha256_of

    if resume and output == "-":
        raise ConfigError("--resume: goes on with an output file; name it with -o")
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling = sampling_of(
        sample, beam_size, {name: value for name, value in drawn.items() if value is not None}
    )
    heads = alignment_heads or ("auto" if alignments else None)
    pieces = tuple(forbid or ())
    options = SearchOptions(
        min_length, no_repeat_ngram, repetition_penalty, pieces, sampling, heads, exact, mbr
    )
    shape = LineFormat(form, column, field, 1 if mbr else n_best, scores)
    lines = read_input(source, errors)
    prefixes = None if prefix is None else read_lines(prefix, "--prefix")
    job = ResumableOutput(resume)
    job.made_with["--prefix"] = sha256_of(prefix) if prefix and prefix.is_file() else str(prefix)
    with open_output(output, job.open) as file:
        translator = load_translator(
            model,
            {"beam_size": beam_size, "length_penalty": length_penalty},
            batch_tokens=batch_tokens,
            precision=precision,
            device=device,
            n_best=n_best,
            options=options,
            ensemble=ensemble,
            workers=workers,
            say=say,
        )
        with translator:
            run(
                translator,
                lines,
                prefixes,
                shape,
                file,
                job,
                0.2 if source == "-" and max_wait is None else max_wait,
            )
    say(translator.tally.summary())


@app.command()
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


@app.command()
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
    from mt.data.corpus import decode_lines, read_lines
    from mt.errors import DataError

    if path == "-":
        if not sys.stdin:
            raise DataError(f"{where} -: stdin is closed; name a file, or send text to it")
        return list(decode_lines(sys.stdin.buffer, f"{where} stdin"))
    return list(read_lines(Path(path), where))


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run directory")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="model folder to write, a new one"),
    ],
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, metavar="N", help="the newest N checkpoints; default: 5"),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            "--best", min=1, metavar="N", help="the N best checkpoints on the validation set"
        ),
    ] = None,
) -> None:
    """Average the weights of a run's last or best checkpoints. Vaswani et al., 2017, section 6.1.

    \b
    mt average runs/base --last 5 -o runs/base/averaged
    mt average runs/base --best 3 -o runs/base/averaged
    mt translate --model runs/base/averaged input.de -o output.en
    """
    from mt.errors import ConfigError
    from mt.model.checkpoint import average_run

    if last and best:
        raise ConfigError(
            "--last, --best: one of the two says which checkpoints are averaged; leave the other out"
        )
    steps = average_run(run, best or last or 5, output, by_score=best is not None)
    say(f"the mean of {len(steps)} checkpoints (updates {steps}) is in {output}")


@config_app.command("check")
def config_check(config: ConfigName, sets: Sets = None) -> None:
    """Validate a config with its data opened, without training. A model that it starts from is opened too.

    \b
    mt config check --config base.yaml
    """
    from mt.config.load import load_config, require_training_data
    from mt.data.corpus import check_sources
    from mt.errors import DataError

    loaded = load_config(config, sets or [])
    require_training_data(loaded.config)
    if faults := check_sources(loaded.config.data):
        raise DataError("\n".join(faults))
    if loaded.config.train.init_from or loaded.config.train.freeze:
        from mt.training.finetune import resolve_init_from

        resolve_init_from(loaded.config)
    print_result(f"{loaded.path}: good")


@config_app.command("show")
def config_show(config: ConfigName, sets: Sets = None) -> None:
    """Print every value of a config with where it comes from.

    \b
    mt config show --config tiny.yaml --set optim.peak_lr=1e-3
    """
    from mt.config.load import load_config, with_origins

    print_result(with_origins(load_config(config, sets or [])))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of a config file, for editors.

    \b
    mt config schema > mt.schema.json
    """
    import json

    from mt.config.schema import json_schema

    print_result(json.dumps(json_schema(), indent=2))


@export_app.command("ctranslate2")
def export_ctranslate2(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="folder to write, a new one")
    ],
) -> None:
    """Write a model for CTranslate2. Both must give the same probabilities before anything is written.

    \b
    mt export ctranslate2 --model runs/base -o base.ct2
    """
    from mt.interop.ctranslate2 import export
    from mt.model.checkpoint import load_model

    say(f"{output}: {export(load_model(model), output)}")


@inspect_app.command("model")
def inspect_model(config: ConfigName, sets: Sets = None) -> None:
    """Print every parameter matrix with its shape. Below are totals per block and the closed forms.

    \b
    mt inspect model --config base.yaml
    mt inspect model --config vaswani2017.yaml
    """
    from mt.config.load import load_config
    from mt.model.summary import format_summary, summarise

    values = load_config(config, sets or []).config
    size, joint = values.tokenizer.vocab_size, values.tokenizer.joint
    print_result(format_summary(summarise(values.model, size, size, joint)))
