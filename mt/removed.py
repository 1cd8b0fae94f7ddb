"""Names that have left mt: a line for each, which says since when, why, and what to do instead.

Commands and options begin with `mt`, also several options of one command; shipped configs end in
`.yaml`, all others are keys of a config without indices of lists, or `KEY: VALUE`. A key that is
off is ignored, so that configs and models of an earlier version still load.
"""

from __future__ import annotations

import re

# fmt: off
REMOVED = {
    "data.stages.shares": "0.4.0: give the stage weights",
    "data.stages.until.epochs": "0.4.0: end the stage after updates, or a share",
    "data.stages.until.stall": "0.4.0: end the stage after updates, or a share",
    "data.stages.until.tokens": "0.4.0: end the stage after updates, or a share",
    "data.stages.until.text": "0.4.0, with data.stages.until.epochs",
    "data.train.share": "0.4.0: weigh the text by how many more pairs the others have",
    "data.train.tags": "0.4.0: inline tags of TMX and XLIFF are always left out",
    "data.train.test_set": "0.4.0: sacrebleu -t wmt20 -l de-en --echo src > wmt20.de writes a file",
    **dict.fromkeys(
        map("data.augment.{}".format, ("caps", "title", "lower", "no_final_stop", "emoji", "join")),
        "0.4.0: it gained nothing over what mt translate does by default; typos and noise stay",
    ),
    "data.augment.placeholders": "0.4.0: --protect places texts by the alignment",
    "data.clean.duplicates: exact": "0.4.0: data.dedupe drops those; normalised drops more",
    "data.clean.leaks: pairs": "0.4.0: take sides, or null to count only",
    "data.clean.max_targets": "0.4.0: hardly used",
    "iwslt14.yaml": "0.3.0: nobody had measured it; take recipe: medium.yaml",
    "model.source_word_dropout": "0.3.0: it gained nothing; raise model.dropout",
    "mt data get": "0.4.0: run mtdata get, as data/README.md says",
    "mt data prepare --shard": "0.4.0: one process encodes 60 million pairs with 3 GB of memory",
    "mt data split": "0.4.0: data.valid: {split: N} in a config holds a set out",
    "mt data stats --against --cleaning --html": "0.4.0: mt data clean counts it",
    "mt data stats --all --tokenizer --workers": "0.4.0: mt inspect tokens counts tokens",
    "mt distill --ref --metric": "0.4.0: --n-best goes by the teacher's training data, and BLEU",
    "mt evaluate --baseline --width": "0.4.0: the first system is the baseline; --json is exact",
    "mt evaluate --confidence-n --paired-bs-n": "0.4.0: take --resamples",
    "mt evaluate --fit-confidence --reliability": "0.4.0: --scores orders lines as well",
    "mt evaluate --paired-ar --paired-ar-n --paired-bs --no-paired-bs": "0.4.0: a test always runs",
    "mt evaluate --slices --domain --train-src --tokenizer-of": "0.4.0: take --differences",
    "mt evaluate --test-set --langs": "0.4.0: sacrebleu -t wmt20 -l de-en --echo src > wmt20.de",
    "mt evaluate --tsv": "0.4.0: take --json",
    "mt export huggingface --push --public": "0.4.0: run hf upload OWNER/NAME FOLDER",
    "mt import marian": "0.4.0: mt import huggingface says how to convert such a model first",
    "mt inspect attention --pieces --view --word": "0.4.0: mt inspect steps --html has every piece",
    "mt inspect model --batch-tokens --beam-size --length --precision": "0.4.0: take --dry-run",
    "mt report --translate --perturbed": "0.4.0: take mt evaluate --model, and --perturb",
    "mt score --alignments --alignment-heads": "0.4.0: mt translate has --alignments",
    "mt tokenizer decode --ids": "0.4.0: pieces come back; mt.Tokenizer has ids",
    "mt tokenizer encode --ids": "0.4.0: take pieces; mt.Tokenizer has ids",
    "mt tokenizer train --byte-fallback --no-byte-fallback --character-coverage --sample-lines"
    " --split-digits --no-split-digits --user-defined-symbols": "0.4.0: --set tokenizer.KEY=VALUE",
    "mt translate --alignment-heads": "0.4.0: the last decoder layer but one aligns",
    "mt translate --confidence": "0.4.0: it orders lines no better than mt translate --scores",
    "mt translate --ensemble": "0.4.0: probabilities are averaged",
    "mt translate --exact --mbr": "0.4.0: they gained nothing; raise --beam-size",
    "mt translate --forbid --min-length": "0.4.0: hardly used; take --glossary or --length-penalty",
    "mt translate --max-wait": "0.4.0: what a pipe sends waits for 0.2 s",
    "mt translate --repetition-penalty": "0.4.0: take --no-repeat-ngram",
    "mt translate --rerank-with --rerank-weight": "0.4.0: take --n-best and mt score",
    "mt translate --shortlist none": "0.4.0: no model has a shortlist of its own; leave it out",
    "mt train --time": "0.4.0: take --set train.max_minutes=N",
    "mt tune": "0.4.0: it lost 0.2 BLEU; mt/translate/speed.md has what each faster setting loses",
    "optim.optimizer": "0.4.0: AdamW is the optimiser; Muon gained nothing",
    "optim.rdrop": "0.4.0: it gained nothing; model.dropout regularises",
    "train.comet_model": "0.4.0, with train.metric: comet",
    "train.freeze": "0.4.0: general text in data.train keeps what a model knew",
    "train.tensorboard": "0.4.0: metrics.jsonl has all of it, and mt report shows it",
    "train.metric: comet": "0.4.0: mt evaluate --metrics comet compares checkpoints",
}
# fmt: on
# Of the other keys: null, 0, [] or false.
OFF = {"optim.optimizer": "adamw", "data.train.tags": "strip"}


def why_removed(key: str) -> str:
    """The line about a key of a config, without indices of lists; "" for another one."""
    key = re.sub(r"^data\.(valid|test)\.", "data.train.", key)
    return REMOVED.get(key.replace("data.stages.augment.", "data.augment."), "")


def why_option_left(command: str, option: str) -> str:
    """The line about an option, without dashes, of a command; "" for another one."""
    names = (name for name in REMOVED if name.startswith(f"{command} --"))
    return next((REMOVED[name] for name in names if f"--{option}" in name.split()), "")
