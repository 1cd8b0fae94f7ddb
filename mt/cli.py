"""The command line: parse, load the config, call one function. Heavy imports stand inside the commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mt.errors import MtError

if TYPE_CHECKING:
    from mt.decoding.translate import Translator

app = typer.Typer(
    help="Train encoder-decoder Transformers for translation, translate with them, and score the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    rich_markup_mode=None,
)
config_app = typer.Typer(no_args_is_help=True, help="Validate, show and describe configs.", rich_markup_mode=None)
inspect_app = typer.Typer(no_args_is_help=True, help="Look inside a model.", rich_markup_mode=None)
app.add_typer(config_app, name="config")
app.add_typer(inspect_app, name="inspect")

ConfigName = Annotated[
    str,
    typer.Option("--config", "-c", metavar="NAME", help="config file, or the name of a shipped one"),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="override one value; can be given again"),
]
Model = Annotated[Path, typer.Option("--model", "-m", help="run directory, checkpoint or exported folder")]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N")]
Precision = Annotated[str, typer.Option("--precision", help="auto, fp32, bf16 or fp16")]
BeamSize = Annotated[
    int | None,
    typer.Option("--beam-size", min=1, help="hypotheses per sentence; 1 is greedy search"),
]
LengthPenalty = Annotated[
    float | None, typer.Option("--length-penalty", min=0.0, help="a in log-probability / length^a")
]
BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", min=1, help="padded source tokens x beam of a batch")
]


def main() -> NoReturn:
    """Run the command; a user's fault ends in one message and its exit code, without a traceback."""
    try:
        app(standalone_mode=True)
    except MtError as error:
        print(f"mt: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader has gone (`| head`). Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        print("mt: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


@app.command()
def train(
    config: ConfigName,
    sets: Sets = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", help="default: runs/NAME of the config")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="set a used run directory aside and start over")] = False,
    device: DeviceName = "auto",
) -> None:
    """Train a model, or go on with a run that was stopped: the same command does both.

    \b
    mt train --config base.yaml
    mt train --config multi30k.yaml --set data.root=corpora/multi30k --set train.max_steps=2000
    """
    from mt.config import load_config, require_training_data

    loaded = load_config(config, sets or [])
    require_training_data(loaded.config)
    folder = run_dir or Path(loaded.config.run.dir or f"runs/{loaded.name}")
    from mt.training.runlog import set_aside

    if fresh and (aside := set_aside(folder)):
        print(f"mt: {folder} is now {aside}", file=sys.stderr)
    from mt.training import trainer

    outcome = trainer.train(loaded.config, folder, device)
    sys.exit(outcome.exit_code)


@app.command()
def translate(
    model: Model,
    source: Annotated[str, typer.Argument(metavar="[IN]", help="text file, plain or .gz; - is stdin")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="output file; - is stdout")] = "-",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="outputs per line, as `n ||| text ||| score`")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="score and tab before each output")] = False,
    errors: Annotated[str, typer.Option("--errors", help="bytes that are not UTF-8: strict or replace")] = "strict",
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Translate a file line by line: as many lines come out as go in, in the same order.

    \b
    mt translate --model runs/base input.de -o output.en
    cat input.de | mt translate --model runs/base --beam-size 1 > output.en
    """
    from mt.decoding.translate import format_lines, read_input, write_output

    lines = read_input(source, errors)
    translator = _translator(model, beam_size, length_penalty, n_best, batch_tokens, precision, device)
    write_output(output, format_lines(translator.translate(lines), n_best, scores))
    print(f"mt: {translator.tally.summary()}", file=sys.stderr)


@app.command()
def evaluate(
    model: Annotated[Path | None, typer.Option("--model", "-m", help="translate --src with this model first")] = None,
    src: Annotated[str | None, typer.Option("--src", help="source text, with --model")] = None,
    hyp: Annotated[list[str] | None, typer.Option("--hyp", help="translation to score; can be given again")] = None,
    ref: Annotated[list[str] | None, typer.Option("--ref", help="raw reference; again for more references")] = None,
    metrics: Annotated[str, typer.Option("--metrics", help="some of bleu,chrf,ter")] = "bleu,chrf,ter",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Score translations, or a model's translations of a source text, with sacreBLEU.

    \b
    mt evaluate --hyp output.en --ref reference.en
    mt evaluate --model runs/base --src test.de --ref test.en --metrics bleu,chrf --json
    """
    from mt.data.corpus import read_lines
    from mt.errors import DataError
    from mt.evaluation.metrics import check_metrics, format_scores, score_corpus, to_json

    names = [name.strip().lower() for name in metrics.split(",") if name.strip()]
    check_metrics(names)
    if not ref or (model is None) != (src is None) or (model is None) == (not hyp):
        raise DataError("evaluate: needs --ref with either --hyp, or --model and --src; see mt evaluate --help")
    refs = [list(read_lines(Path(path), "--ref")) for path in ref]
    if model is not None and src is not None:
        lines = list(read_lines(Path(src), "--src"))
        translator = _translator(model, beam_size, length_penalty, 1, batch_tokens, precision, device)
        systems = {str(model): [one.texts[0] for one in translator.translate(lines)]}
        print(f"mt: {translator.tally.summary()}", file=sys.stderr)
    else:
        systems = {path: list(read_lines(Path(path), "--hyp")) for path in hyp or []}
    results = {name: score_corpus(lines, refs, names) for name, lines in systems.items()}
    if as_json:
        import json

        print(json.dumps({name: json.loads(to_json(scores)) for name, scores in results.items()}, indent=2))
        return
    for name, scores in results.items():
        print(f"{name}\n{format_scores(scores)}" if len(results) > 1 else format_scores(scores))


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run directory")],
    output: Annotated[Path, typer.Option("--output", "-o", help="model folder to write")],
    last: Annotated[int, typer.Option("--last", min=1, help="how many of the newest checkpoints")] = 5,
) -> None:
    """Make one model of a run's last checkpoints: the mean of their weights (Vaswani et al., 2017, section 6.1).

    \b
    mt average runs/base --last 5 -o runs/base/averaged
    mt translate --model runs/base/averaged input.de -o output.en
    """
    from mt.data.tokenizer import Tokenizer
    from mt.errors import CheckpointError
    from mt.model import checkpoint

    folders = checkpoint.checkpoints(run)[-last:]
    if len(folders) < last:
        raise CheckpointError(
            f"{run}: --last {last} checkpoints asked for, the run keeps {len(folders)}; ask for fewer, or "
            "train with a larger train.keep_last"
        )
    if output.exists():
        raise CheckpointError(f"--output {output}: is there already; give another place, or remove it")
    weights = checkpoint.average(folders)
    meta = checkpoint.read_meta(folders[-1], [])
    kept = {key: meta[key] for key in ("config", "tokenizer", "step")}
    steps = [checkpoint.read_meta(folder, [])["step"] for folder in folders]
    checkpoint.save_model_folder(output, weights, {**kept, "averaged": steps}, tokenizer=Tokenizer.load(run))
    print(
        f"mt: the mean of {len(folders)} checkpoints (updates {steps}) is in {output}",
        file=sys.stderr,
    )


@config_app.command("check")
def config_check(config: ConfigName, sets: Sets = None) -> None:
    """Validate a config with its data opened, without training.

    \b
    mt config check --config base.yaml
    """
    from mt.config import load_config
    from mt.data.corpus import check_sources
    from mt.errors import DataError

    loaded = load_config(config, sets or [])
    if faults := check_sources(loaded.config.data):
        raise DataError("\n".join(faults))
    print(f"{loaded.path}: good")


@config_app.command("show")
def config_show(config: ConfigName, sets: Sets = None) -> None:
    """Print every value of a config with where it comes from.

    \b
    mt config show --config tiny.yaml --set optim.peak_lr=1e-3
    """
    from mt.config import load_config
    from mt.settings import dump

    loaded = load_config(config, sets or [])
    for section, values in loaded.config.model_dump(mode="json").items():
        print(f"{section}:")
        for key, value in values.items():
            shown = dump({key: value}).rstrip("\n")
            path = f"{section}.{key}"
            origins = {
                origin
                for leaf, origin in loaded.origins.items()
                if leaf == path or leaf.startswith((f"{path}.", f"{path}["))
            }
            first, *rest = shown.split("\n")
            print(f"  {first:<40}  # {', '.join(sorted(origins))}")
            for line in rest:
                print(f"  {line}")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of a config file, for editors.

    \b
    mt config schema > mt.schema.json
    """
    import json

    from mt.config import json_schema

    print(json.dumps(json_schema(), indent=2))


@inspect_app.command("model")
def inspect_model(config: ConfigName, sets: Sets = None) -> None:
    """Print every parameter matrix with its shape, totals per block, and the closed forms.

    \b
    mt inspect model --config base.yaml
    mt inspect model --config vaswani2017.yaml
    """
    from mt.config import load_config
    from mt.model.summary import format_summary, summarise

    values = load_config(config, sets or []).config
    size, joint = values.tokenizer.vocab_size, values.tokenizer.joint
    print(format_summary(summarise(values.model, size, size, joint)))


def _translator(
    model: Path,
    beam_size: int | None,
    length_penalty: float | None,
    n_best: int,
    batch_tokens: int | None,
    precision: str,
    device: str,
) -> Translator:
    """The model at `model` ready to translate, its own decode settings overridden where given."""
    from mt.decoding.translate import Translator
    from mt.devices import choose_device
    from mt.model.checkpoint import load_model

    chosen = choose_device(device, precision)
    loaded = load_model(model)
    given = {"beam_size": beam_size, "length_penalty": length_penalty}
    decode = loaded.config.decode.model_copy(update={k: v for k, v in given.items() if v is not None})
    return Translator(
        loaded.model,
        loaded.tokenizer,
        decode,
        chosen,
        max_source=loaded.config.data.max_tokens,
        n_best=n_best,
        batch_tokens=batch_tokens,
    )
