"""Options that several commands share: their names, types and help texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mt.cli.help import read_rows
from mt.errors import ConfigError

if TYPE_CHECKING:
    from mt.config.schema import DataConfig
    from mt.search.options import EngineOptions, Sampling


# By parameter: a command's parameter of this name is this option, unless its own table has it.
SHARED = read_rows("""
    Config:
    --config -c NAME: config file, or the name of a shipped config
    settings = --set KEY=VALUE: override one value, such as model.d_ff=1024; repeatable
    Input:
    --model -m FOLDER: run directory, checkpoint, averaged or imported model
    tokenizer = --model -m PATH: SentencePiece .model file, run directory, checkpoint, averaged
        or imported model
    models = --model -m FOLDER: run directory, checkpoint, averaged or imported model; several
        make an ensemble
    --errors HOW: bytes that are not UTF-8: strict stops, replace puts U+FFFD
    trained = --model -m FOLDER: trained model: run directory, checkpoint, averaged or imported
        model
    source = IN: text file, also compressed; - is stdin
    --side NAME: src or tgt: which vocabulary, where source and target have their own
    sentence = SENTENCE: source sentence
    --to CODE: language to translate into, such as fr, of a model that knows several
    from_ = --from CODE: language of the source, such as de, of a model that knows several: to write
        lines in capitals or without a final stop as its training text would, and to find sentences
    names = IN: corpora: two text files in a row are source and target; others are files of pairs,
        folders, what two text files have in common (corpus/train), hub names, or a source as in a
        config ({path: a.jsonl, src: translation.de, tgt: translation.en})
    --langs SRC-TGT: languages of the corpora, such as de-en (default: the endings of text files)
    Output:
    --run-dir FOLDER: run directory (default: runs/NAME, by the config's name)
    as_json = --json: print JSON
    --output -o FILE: output file, written completely or not at all; - is stdout
    corpus = --output -o FILE.tsv: corpus of two columns, source and target; written completely or
        not at all
    --alignments: add a word alignment to each output: i-j pairs, counted from 0; without spaces
        between words, characters start:end
    --alignment-heads L:H,...: align by the mean of these cross-attention layers (L) or heads (L:H)
        (default: the last layer but one)
    new_folder = --output -o FOLDER: new folder to write
    --resume: continue the output file of an interrupted job
    --overwrite: replace a corpus that is at --output already
    --quantization NAME: precision of the weights: fp32, fp16, bf16 or int8
    picture = --output -o FILE: picture to write, .svg or .png
    Search:
    --beam-size N in 1..: hypotheses kept per sentence; 1 is greedy search (default: the model's
        config, or mt tune)
    --length-penalty A in 0..100: divide log-probabilities by length^A; higher favours longer
        outputs (default: the model's config, or mt tune)
    --split-sentences WHEN: translate the sentences of a line one by one and join them: always,
        never, or auto: if the model learnt from lines of one sentence
    --as-written: give the model lines in capitals, Title Case or lower case, without a final stop
        or with emoji as they are, instead of as its training text would write them
    Sampling:
    --sample: draw outputs at random instead of searching for the best
    --temperature T: divide logits by T: below 1 is less random, above 1 more; 1 is off
    --top-k K: draw from the K most probable tokens; 0 is off
    --top-p P: draw from the most probable tokens that together reach P; 1 is off
    --seed N: seed of the random draws; 1 if not given
    Execution:
    --batch-tokens N in 1..: batch size: source tokens, padding included, times beam size (default:
        chosen for the device)
    --precision NAME: auto, fp32, bf16, fp16 (GPU only) or int8 (CTranslate2 only)
    --engine NAME: torch, ctranslate2 (CPU only, faster), or auto: ctranslate2 where it is installed
        and supports all options
    --device NAME: auto, cpu, cuda or cuda:N
    --workers N in 1..: processes that translate: on a CPU, or each on a GPU (default: one per core;
        a GPU, or all for a large file)
""")


@dataclass(frozen=True)
class SamplingGroup:
    """The options of sampling as given; None: not given."""

    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def value(self) -> Sampling | None:
        """Return the sampling asked for. Raises ConfigError for options without --sample."""
        from mt.search.options import Sampling

        given = {name: value for name, value in vars(self).items() if value is not None}
        if given.pop("sample"):
            return Sampling(**given)
        if given:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(
                f"{named}: only with --sample, which draws outputs instead of searching for the "
                "best; add --sample"
            )
        return None


NO_SAMPLING = SamplingGroup()


@dataclass(frozen=True)
class EngineGroup:
    """The options of the engine that translates."""

    engine: str = "auto"
    workers: int | None = None
    batch_tokens: int | None = None
    precision: str = "auto"
    device: str = "auto"

    def value(self, models: list[Path], **more: Any) -> EngineOptions:
        """Return the engine asked for, with these models."""
        from mt.search.options import EngineOptions

        return EngineOptions(models=models, **vars(self), **more)


ANY_ENGINE = EngineGroup()


@dataclass(frozen=True)
class CorpusGroup:
    """The corpora of a command as given: names, or a config; options of these names."""

    names: list[str] | None = None
    langs: str | None = None
    config: str | None = None
    settings: list[str] | None = None

    def value(self) -> DataConfig:
        """Return the `data` section: of the config, or made of the names, which are `train`.

        Its `train` is not empty. Raises ConfigError for what cannot be meant.
        """
        from mt.cli.corpora import data_of
        from mt.config.load import load_config, require_training_data

        if self.config is not None:
            if self.names or self.langs:
                given = self.names[0] if self.names else f"--langs {self.langs}"
                raise ConfigError(
                    f"--config {self.config}: names the corpora and their languages, found {given} "
                    "too; leave out one of them"
                )
            loaded = load_config(self.config, self.settings or []).config
            require_training_data(loaded)
            return loaded.data
        if not self.names:
            raise ConfigError("IN: no corpus to read; name files, or give --config")
        if self.settings:
            raise ConfigError("--set: changes a config; give --config, or leave it out")
        return data_of(self.names, self.langs)


def described(table: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Show Typer a command's parameters as the options of `table` and of SHARED.

    The fields of a parameter that is a dataclass become options in its place.
    """
    rows = SHARED | (table_rows := read_rows(table))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, Any] = {}
        expanded: list[inspect.Parameter] = []
        for parameter in _parameters(command):
            group = parameter.annotation
            if is_dataclass(group):
                groups[parameter.name] = group
            expanded += _parameters(group) if is_dataclass(group) else [parameter]
        if unused := table_rows.keys() - {parameter.name for parameter in expanded}:
            raise ValueError(f"{command.__name__}: has no parameter {', '.join(unused)}")
        expanded = [
            parameter.replace(annotation=Annotated[parameter.annotation, rows[parameter.name]])
            for parameter in expanded
        ]

        @wraps(command)
        def called(**values: Any) -> None:
            for name, group in groups.items():
                own_names = [field.name for field in fields(group)]
                values[name] = group(**{name: values.pop(name) for name in own_names})
            command(**values)

        called.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
        return called

    return decorate


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
