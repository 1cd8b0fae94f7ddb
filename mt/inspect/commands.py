"""`mt inspect`: look inside a model, a vocabulary or a config."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.cli.help import command_group
from mt.errors import ConfigError
from mt.search.options import ToLanguage

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.tokens.tokenizer import Tokenizer

app = command_group("inspect", "Look inside a model, a vocabulary or a config.")


def _checked(picture: Path | None) -> Path | None:
    """Refuse a file that cannot become a picture before any work is done."""
    from mt.inspect.pictures import check_picture_file

    check_picture_file(picture)
    return picture


Picture = Annotated[Path | None, opt.output_option(
    "--output", "-o", metavar="FILE", callback=_checked, help="picture to write, .svg or .png"
)]  # fmt: skip


@dataclass(frozen=True)
class ModelGroup:
    """A config with its changes, or a trained model. ConfigError for both, and for neither."""

    # fmt: off
    config: opt.OptionalConfig = None
    trained: Annotated[Path | None, opt.input_option("--model", "-m", metavar="FOLDER", help=
        "trained model: run directory, checkpoint, averaged or imported model")] = None
    settings: opt.Settings = None
    # fmt: on

    def __post_init__(self) -> None:
        if (self.config is None) == (self.trained is None):
            given = "neither" if self.config is None else "both"
            raise ConfigError(f"--config, --model: give one of the two, found {given}")
        if self.trained is not None and self.settings:
            raise ConfigError("--set: changes a config; give --config, or leave it out")

    def read_config(self) -> tuple[Config, Tokenizer | None]:
        """Return the config as a training begins with it, and its vocabulary, if that is there."""
        from mt.config.load import load_config
        from mt.config.settled import TYPICAL_PAIRS, replace_auto, with_shape_of
        from mt.data.tokens.tokenizer import own_tokenizer
        from mt.runs.model_folder import open_model

        config, base = load_config(str(self.config), self.settings or []).config, None
        if (name := config.train.init_from) is not None:
            base = open_model(Path(name).expanduser(), "train.init_from")
            config = with_shape_of(config, base.config)
        config, told = replace_auto(config, TYPICAL_PAIRS, base.config if base else None)
        if told:
            say(f"{told}, for {TYPICAL_PAIRS:,} pairs; mt train counts yours")
        if base is not None and not config.train.new_vocabulary:
            return config, base.tokenizer
        return config, own_tokenizer(config.tokenizer) if config.tokenizer.model else None


@app.command("model")
def model(given: ModelGroup, as_json: opt.AsJson = False, picture: Picture = None) -> None:
    """Print every parameter's shape; with -o, draw the model.

    Of a trained model, also one in train.init_from, the sizes of the vocabularies are those of its
    tokenizer; else tokenizer.vocab_size, or those of tokenizer.model. mt train --dry-run measures
    memory.

    \b
    mt inspect model --model runs/base
    mt inspect model --config vaswani2017.yaml --json
    mt inspect model --config tiny.yaml -o model.svg
    """
    from mt.inspect.summary import format_summary, save_boxes, summarise, summary_as_json
    from mt.runs.model_folder import open_model

    if given.trained is None:
        values, tokenizer = given.read_config()
    else:
        folder = open_model(given.trained)
        values, tokenizer = folder.config, folder.tokenizer
    size = values.tokenizer.size
    sizes = (tokenizer.src.size, tokenizer.tgt.size) if tokenizer is not None else (size, size)
    summary = summarise(values.model, sizes, (tokenizer or values.tokenizer).joint)
    tree = summary_as_json(summary)
    print_result(json.dumps(tree, indent=2) if as_json else format_summary(summary))
    if picture is not None:
        save_boxes(picture, summary)


@app.command("attention")
def attention(
    model: opt.Model,
    sentence: opt.Sentence,
    to: ToLanguage = None,
    target: Annotated[str | None, opt.input_option("--target", metavar="TEXT", help=
        "its translation (default: the model's own, of the sentence as mt translate gives it "
        "to the model)")] = None,
    *,
    kind: Annotated[Literal["cross", "encoder", "decoder"], opt.output_option(
        "--kind", metavar="NAME", help=
        "attention to show: cross, encoder or decoder")] = "cross",
    layer: Annotated[int | None, opt.output_option("--layer", metavar="L", help=
        "layer to show, from 1 (default: the last but one)")] = None,
    head: Annotated[int | None, opt.output_option("--head", metavar="H", help=
        "head to show, from 1 (default: the mean of all)")] = None,
    picture: Picture = None,
) -> None:  # fmt: skip
    """Show which words each word attends to. As text, the three strongest, in percent.

    \b
    mt inspect attention --model runs/base "Das Haus ist alt."
    mt inspect attention --model runs/base "Ja!" --kind encoder --layer 1 --head 3
    """
    from mt.inspect.attention import read_attention, usual_source
    from mt.model.checkpoint import load_model

    loaded = load_model(model)
    sentence = usual_source(loaded, sentence, target, to)
    weights = read_attention(loaded, sentence, target, kind, to)
    if picture is not None:
        weights.save_picture(picture, layer, head)
        return
    text, title = weights.as_text(layer, head)
    print_result(text)
    say(title)


@dataclass(frozen=True)
class StepsGroup:
    """The layer and head that are shown, and in what form. ConfigError for a file that cannot be.

    `document`: one whose names are shown, too.
    """

    # fmt: off
    layer: Annotated[int, opt.output_option("--layer", metavar="L", min=1, help=
        "layer to show in full, from 1")] = 1
    head: Annotated[int, opt.output_option("--head", metavar="H", min=1, help=
        "head to show, from 1")] = 1
    html: Annotated[Path | None, opt.output_option("--html", metavar="FILE", help=
        "write a page with heat maps, .html, instead of text")] = None
    npz: Annotated[Path | None, opt.output_option("--npz", metavar="FILE", help=
        "write every matrix and weight of all layers and heads, .npz, for NumPy")] = None
    document: Annotated[Literal["B", "C", "D", "M", "S"] | None, opt.output_option(
        "--names", metavar="LETTER", help=
        "also names and sections of a document of mt/README.md: B, C, D, M or S")] = None
    # fmt: on

    def __post_init__(self) -> None:
        from mt.inspect.pictures import check_picture_file

        check_picture_file(self.html, (".html",), "--html")
        if self.npz is not None and (self.npz.suffix != ".npz" or self.npz.exists()):
            problem = "exists; name another file" if self.npz.exists() else "must end in .npz"
            raise ConfigError(f"--npz {self.npz}: {problem}")


@dataclass(frozen=True)
class ShapesGroup:
    """The shapes of a batch, of which a config tells those of all matrices."""

    # fmt: off
    lengths: Annotated[str | None, opt.output_option("--lengths", metavar="S,T", help=
        "with --config, tokens of source and target (default: 10,12)")] = None
    batch: Annotated[int, opt.output_option("--batch", metavar="N", min=1, help=
        "with --config, sentence pairs, padded to those lengths")] = 1
    # fmt: on

    def value(self, most: int) -> tuple[tuple[int, int], int]:
        """The lengths, `most` at most, and the pairs. Raises ConfigError for other lengths."""
        match (text := self.lengths or "10,12").split(","):
            case [src, tgt] if {src, tgt} <= {*map(str, range(1, most + 1))}:
                return (int(src), int(tgt)), self.batch
        raise ConfigError(
            f"--lengths: must be two numbers to {most:,}, such as 5,10, found {text!r}"
        )


@app.command("steps")
def steps(
    given: ModelGroup,
    sentence: opt.OptionalSentence = None,
    target: Annotated[str | None, opt.input_option("--target", metavar="TEXT", help=
        "its translation (default: what the search finds)")] = None,
    to: ToLanguage = None,
    *,
    view: StepsGroup,
    shapes: ShapesGroup,
    beam_size: Annotated[int | None, opt.search_option("--beam-size", metavar="N", min=1, help=
        "hypotheses of the search (default: 1, greedy search)")] = None,
) -> None:  # fmt: skip
    """Show every matrix of one sentence, and its search step by step.

    In the order of the computation: formula, shape, first values, and the line of mt that computes
    it. Scores and weights of up to 12 tokens are whole. Of a config, shapes alone. The search shows
    the most probable next tokens at each step, of each hypothesis with --beam-size.

    \b
    mt inspect steps --model runs/base "Das Haus ist alt."
    mt inspect steps --model runs/base "Ja!" --beam-size 3 --html steps.html
    mt inspect steps --model runs/base "Ja!" --npz steps.npz --names B
    mt inspect steps --config base.yaml --lengths 5,10 --batch 2
    """
    from mt.inspect import steps_view
    from mt.inspect.steps import Search, steps_of_config, steps_of_sentence

    search: Search | None = None
    if given.trained is None:
        if any(value is not None for value in (sentence, target, to, beam_size, view.npz)):
            raise ConfigError(
                "--config: gives shapes alone; give --model instead, or leave out the sentence, "
                "--target, --to, --beam-size and --npz"
            )
        config, _ = given.read_config()
        batch = shapes.value(config.model.max_positions)
        walk = steps_of_config(config, view.layer, view.head, *batch)
    elif sentence is None:
        raise ConfigError("SENTENCE: is required with --model; give a sentence, in quotes")
    elif shapes != ShapesGroup():
        raise ConfigError("--lengths, --batch: are for shapes; give --config, or leave them out")
    else:
        shown = (to, view.layer, view.head, beam_size)
        walk, search = steps_of_sentence(given.trained, (sentence, target), *shown)
    if view.npz is not None:
        steps_view.save_arrays(view.npz, walk)
        say(f"{view.npz}: written")
    if view.html is not None:
        title = sentence or str(given.config)
        steps_view.save_page(view.html, title, walk.matrices, search, view.document)
        say(f"{view.html}: written")
        return
    print_result(steps_view.as_text(walk.matrices, view.document))
    if search is not None:
        print_result(f"\n{steps_view.search_as_text(search)}")


@app.command("positions")
def positions(
    given: ModelGroup,
    side: Annotated[opt.SideName, opt.input_option("--side", metavar="NAME", help=
        "src or tgt, where the positions are learned")] = "src",
    count: Annotated[int, opt.output_option("--positions", metavar="N", min=2, help=
        "how many positions to show, from the first on")] = 100,
    at: Annotated[int | None, opt.output_option("--at", metavar="K", min=0, help=
        "print the vector of one position, from 0, instead")] = None,
    picture: Picture = None,
) -> None:  # fmt: skip
    """Show position embeddings and how similar they are.

    As text, the cosine of positions at some distances, or one vector. The picture has the matrix, a
    row for each position, and the cosine of every two positions.

    \b
    mt inspect positions --config base.yaml --at 20
    mt inspect positions --config base.yaml -o positions.svg
    mt inspect positions --model runs/base --side tgt -o positions.png
    """
    from mt.inspect.position_map import as_text, position_table, save_picture, vector_as_text

    if at is not None:
        count = at + 1
    if given.trained is not None:
        from mt.model.checkpoint import load_model

        loaded = load_model(given.trained)
        table, title = position_table(loaded.config.model, count, loaded.model, side)
    else:
        table, title = position_table(given.read_config()[0].model, count)
    if picture is None:
        print_result(as_text(table) if at is None else vector_as_text(table, at, title))
        say(title)
    else:
        save_picture(picture, table, title)


@app.command("tokens")
def tokens(
    tokenizer: opt.TokenizerPath,
    sentence: opt.OptionalSentence = None,
    target: Annotated[str | None, opt.input_option("--target", metavar="TEXT", help=
        "target sentence")] = None,
    src: Annotated[str | None, opt.input_option("--src", metavar="FILE", help=
        "source lines, also compressed; - is stdin")] = None,
    tgt: Annotated[str | None, opt.input_option(
        "--tgt", metavar="FILE", help="target lines")] = None,
    lines: Annotated[int, opt.output_option("--lines", metavar="N", min=0, help=
        "lines to show token by token; counts are of all")] = 5,
) -> None:  # fmt: skip
    """Show how lines are split: tokens with ids, then counts.

    Characters that are spelled in bytes, and what is unknown, are named below a line.

    \b
    mt inspect tokens --model runs/base "Guten Morgen!" --target "Good morning!"
    mt inspect tokens --model runs/base --src train.de --tgt train.en --lines 0
    """
    from mt.inspect.token_listing import list_tokens
    from mt.runs.model_folder import open_tokenizer

    texts = _read_texts({"source": (sentence, "--src", src), "target": (target, "--tgt", tgt)})
    if not texts:
        raise ConfigError("tokens: no text to split; give a sentence, --target, --src or --tgt")
    for line in list_tokens(open_tokenizer(tokenizer), texts, lines):
        print_result(line)


def _read_texts(given: dict[str, tuple[str | None, str, str | None]]) -> dict[str, Iterable[str]]:
    """The texts of the sides that have a sentence, or with an option a file. ConfigError."""
    from mt.translate.streaming import read_input

    if all(file == "-" for _, _, file in given.values()):
        raise ConfigError("--src, --tgt: only one can be - (stdin); name a file for the other")
    texts: dict[str, Iterable[str]] = {}
    for side, (text, option, file) in given.items():
        if text is not None and file is not None:
            raise ConfigError(f"tokens: a {side} sentence and a {side} file; give one of the two")
        if text is not None:
            texts[side] = [text]
        elif file is not None:
            texts[side] = read_input(file, option=option)
    return texts


@app.command("masks")
def masks(
    tokenizer: opt.TokenizerPath,
    sentence: opt.OptionalSentence = None,
    target: Annotated[str | None, opt.input_option("--target", metavar="TEXT", help=
        "with a sentence, its translation")] = None,
    src: Annotated[str | None, opt.input_option("--src", metavar="FILE", help=
        "source lines, instead of a sentence")] = None,
    tgt: Annotated[str | None, opt.input_option(
        "--tgt", metavar="FILE", help="target lines")] = None,
    length: Annotated[int, opt.input_option("--length", metavar="N", min=0, help=
        "pad to at least so many tokens (default: the longest of the batch)")] = 0,
    lines: Annotated[int, opt.output_option("--lines", metavar="N", min=1, help=
        "pairs of the batch, the first ones")] = 2,
    picture: Picture = None,
) -> None:  # fmt: skip
    """Show a padded batch and its masks.

    Of the decoder's self-attention, the mask of later tokens, and with it that of padding. Training
    needs the first alone, as padding comes last.

    \b
    mt inspect masks --model runs/base "Guten Tag!" --target "Hello!" --length 8
    mt inspect masks --model runs/base --src test.de --tgt test.en -o masks.svg
    """
    from mt.inspect.attention import MOST_DRAWN, masks_as_text, masks_of, save_masks
    from mt.runs.model_folder import open_tokenizer

    missing = [each is None for each in (sentence, target, src, tgt)]
    if missing not in ([False, False, True, True], [True, True, False, False]):
        raise ConfigError("masks: give a sentence and --target, or --src and --tgt")
    texts = _read_texts({"source": (sentence, "--src", src), "target": (target, "--tgt", tgt)})
    sources, targets = ([*islice(text, lines)] for text in texts.values())
    if not sources or len(sources) != len(targets):
        raise ConfigError(
            "--src, --tgt: must have as many lines, at least one, found "
            f"{len(sources):,} and {len(targets):,}"
        )
    if picture is not None and lines > MOST_DRAWN:
        raise ConfigError(f"--lines: at most {MOST_DRAWN} in a picture, found {lines:,}")
    masked = masks_of(open_tokenizer(tokenizer), [*zip(sources, targets, strict=True)], length)
    if picture is None:
        print_result(masks_as_text(masked))
        return
    save_masks(picture, masked)


@app.command("lr")
def lr(
    config: Annotated[list[str], opt.config_option("--config", "-c", metavar="NAME", help=
        "config file, or the name of a shipped config; several are compared")],
    settings: opt.Settings = None,
    picture: Picture = None,
) -> None:  # fmt: skip
    """Show the learning rate over a training.

    As a table of chosen updates; with -o as a picture too. Several configs are compared.

    \b
    mt inspect lr --config base.yaml
    mt inspect lr --config base.yaml --config vaswani2017.yaml -o lr.svg
    """
    from mt.config.load import load_config
    from mt.inspect.schedule import save_schedule, schedule_table

    if len(set(config)) < len(config):
        raise ConfigError("--config: names the same config twice; give each one once")
    configs = {name: load_config(name, settings or []).config for name in config}
    for name, values in configs.items():
        if values.train.max_epochs is not None:
            raise ConfigError(
                f"{name}: train.max_epochs: how many updates these are depends on the data; mt "
                "train --dry-run says it: --set train.max_epochs=null --set train.max_steps=UPDATES"
            )
    print_result(schedule_table(configs))
    if picture is not None:
        save_schedule(picture, configs)


def stats(corpora: opt.CorpusGroup, as_json: opt.AsJson = False) -> None:
    """Count what corpora contain, each in a column.

    Lengths, ratios, duplicates, scripts, languages. A duplicate equals another pair of any corpus.
    Ratios are those of data.clean. Languages need the extra corpora.

    \b
    mt data stats web.de web.en news.tmx
    mt data stats corpus/train --langs de-en
    mt data stats --config base.yaml --json
    """
    from mt.cleaning.files import data_to_clean, stage_progress
    from mt.cleaning.plan import plan_of
    from mt.inspect.corpus_statistics import count_corpora, statistics_text

    data = data_to_clean(corpora.value(), [], [])
    with stage_progress() as progress:
        where = "data.train" if corpora.config else "IN"
        values = count_corpora(plan_of(data, Path(), where=where), progress)
    print_result(json.dumps(values, ensure_ascii=False) if as_json else statistics_text(values))
