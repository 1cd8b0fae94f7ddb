"""`mt tune`: the fastest decoding of a model that loses nothing on its validation set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.errors import DataError
from mt.search.options import EngineOptions


@dataclass(frozen=True)
class TuneGroup:
    """The validation text, what may be lost, and what the settings are tried on."""

    # fmt: off
    src: Annotated[str | None, opt.input_option("--src", metavar="FILE", help=
        "source text to translate, with --ref (default: data.valid of the model's config)")] = None
    ref: Annotated[str | None, opt.input_option("--ref", metavar="FILE", help=
        "its reference, detokenised")] = None
    to: opt.ToLanguage = None
    from_: opt.FromLanguage = None
    shortlist: Annotated[Path | None, opt.input_option("--shortlist", metavar="FILE", help=
        "vmap.txt to try (default: one is learned from the run's training data; none: no "
        "shortlist)")] = None
    as_json: opt.AsJson = False
    reset: Annotated[bool, opt.output_option("--reset", help=
        "remove what mt tune has chosen, and try nothing")] = False
    max_loss: Annotated[float, opt.search_option("--max-loss", metavar="BLEU", min=0, help=
        "a faster setting may lose so much, if that may be chance")] = 0.3
    device: Annotated[str, opt.execution_option("--device", metavar="NAME", help=
        "auto, cpu, cuda or cuda:N; the settings are those that are fast there")] = "auto"
    workers: Annotated[int | None, opt.execution_option("--workers", metavar="N", min=1, help=
        "threads on a CPU, or processes on GPUs (default: one per core; a GPU)")] = None


def tune(trained: opt.Model, given: TuneGroup) -> None:
    """Find the fastest decoding that scores as well.

    Tries length penalties, int8, a lexical shortlist and smaller beams on the validation set. A
    faster setting is taken if the paired bootstrap finds it no worse in BLEU and chrF, and it loses
    at most --max-loss BLEU. What is chosen is kept in the model's folder: mt translate, mt evaluate
    and mt export use it from then on. Options given there win.

    \b
    mt tune --model runs/base
    mt tune --model opus --src valid.de --ref valid.en --json
    mt tune --model runs/base --reset
    """
    from mt.cli.evaluate_inputs import System, TextOptions, read_texts, scoring_of
    from mt.config.plan import plan_data
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.runs.model_folder import read_folder
    from mt.translate.load import check_source_language
    from mt.tuning import tune as tuning

    if given.reset:
        say(f"{tuning.forget_tuned(trained)}: decodes as its config says")
        return
    if (given.src is None) != (given.ref is None):
        raise DataError("tune: --src and --ref go together; give both, or neither")
    if given.src == given.ref == "-":
        raise DataError("tune: --src and --ref are both - (stdin); name a file for one of them")
    described = read_folder(trained)
    check_source_language(given.from_, plan_data(described.config.data))
    wanted = opt.make(TextOptions, given, section="valid", ref=[given.ref] if given.ref else None)
    texts, *others = read_texts([System(str(trained), str(trained), trained)], wanted)
    if others:
        raise DataError(
            f"tune: data.valid has {1 + len(others)} directions; give --src, --ref and --to"
        )
    language, choice = scoring_of([trained], None, "auto", texts.data.direction.to)
    scoring = tuning.scoring_settings(choose_tokenizer(language, choice, say), language)
    engine = opt.make(EngineOptions, given, models=[trained])
    trials, chosen = tuning.tune(described, texts.data, scoring, engine, given.max_loss)
    if given.as_json:
        rows = [trial.row() | {"chosen": trial is chosen} for trial in trials]
        print_result(json.dumps({"lines": len(texts.data.refs[0]), "settings": rows}, indent=1))
    else:
        print_result(tuning.format_trials(trials, chosen))
    say(f"{described.folder}: mt translate uses these settings from now on")
